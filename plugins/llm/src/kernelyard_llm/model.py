"""LanguageModel: a compiled network with its tokenizer and chat template."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard import Executable, VirtualMachine
from kernelyard_llm.description import Description
from kernelyard_llm.errors import LanguageModelError
from kernelyard_llm.lookup import Lookup
from kernelyard_llm.sampling import Sampler, Sampling, Scored
from kernelyard_llm.state import CHUNK, State
from kernelyard_llm.steps import Steps
from kernelyard_llm.text_stream import TextStream

if TYPE_CHECKING:
    from kernelyard_llm.template import ChatTemplate
    from kernelyard_llm.tokenizer import Tokenizer

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True)
class Stats:
    """Statistics of a generation. time_to_first_token: seconds from the call to the first token.

    drafted_tokens: draft tokens proposed by speculative decoding; accepted_tokens: those that were verified.
    """

    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    time_to_first_token: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    def to_json(self) -> dict[str, float]:
        """Return all numbers by name."""
        speeds = ("prefill_tokens_per_second", "decode_tokens_per_second")
        return {**asdict(self), **{name: getattr(self, name) for name in speeds}}


class LanguageModel:
    """A loaded language model; see `kernelyard_llm.load`. Calls from several threads are serialized.

    stats: statistics of the last generation, None before the first. scores: its tokens with log-probabilities, if its
    `Sampling` requested them.
    """

    def __init__(self, executable: Executable, description: Description, context: int | None = None) -> None:
        self.executable, self.description = executable, description
        self.config = description.config
        self.context = min(context or DEFAULT_CONTEXT, self.config.context)
        if self.context < 1:
            raise LanguageModelError("the context must hold at least one token", found=context)
        self.stats: Stats | None = None
        self.scores: list[Scored] | None = None
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._state = State(VirtualMachine(executable, contexts=1), self.config, self.context)
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None

    # --- text ---------------------------------------------------------------------------------------------------------
    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, built on first use."""
        with self._making:  # built once, also when several threads request it at the same time
            if self._tokenizer is None:
                self._tokenizer = self.description.tokenizer()
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The chat template; ChatML if the file has none."""
        if self._template is None:
            self._template = self.description.template(self.tokenizer)
        return self._template

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self.tokenizer.decode(ids)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Apply the chat template to messages; return the tokens of the prompt."""
        text = self.template.render(messages)
        return self.tokenizer.encode(text, is_document=False)

    # --- generation ---------------------------------------------------------------------------------------------------
    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        ignore_eos: bool = False,
        draft: int = 0,
        **sampling: Any,
    ) -> list[int]:
        """Generate the tokens that follow `ids`; the end-of-sequence token is included.

        temperature and sampling: the fields of `Sampling`. ignore_eos: continue past the end-of-sequence token. draft:
        draft tokens per step of speculative decoding by n-gram lookup; the result is the same, faster for repetitive
        text. Raises: LanguageModelError.
        """
        how = Sampling(temperature, **sampling)
        return list(self.stream(ids, max_new_tokens, how, ignore_eos, draft))

    def stream(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
        draft: int = 0,
    ) -> Iterator[int]:
        """Yield the tokens that follow `ids`, each as soon as it is sampled. Raises: LanguageModelError."""
        self.check(ids, max_new_tokens)
        if not 0 <= draft < CHUNK:
            raise LanguageModelError("draft is out of range", found=draft, expected=f"0 to {CHUNK - 1}")
        how = sampling or Sampling()
        sampler = Sampler(how, ids, self.tokenizer if how.form else None)
        scores: list[Scored] | None = None if how.log_probabilities is None else []
        ends, begin = () if ignore_eos else self.tokenizer.ends, time.perf_counter()
        with self._lock:
            kept, self.scores = self._state, scores
            kept.clear()
            best = _sample(sampler, kept.append(ids), scores)
            first = time.perf_counter()
            steps = Steps(kept, lambda logits: _sample(sampler, logits, scores), Lookup(draft, ids) if draft else None)
            count = 0
            try:
                for token in steps.tokens(best):
                    count += 1
                    yield token
                    if token in ends or sampler.is_done or count == max_new_tokens:
                        break
            finally:
                now = time.perf_counter()
                self.stats = Stats(
                    len(ids), count, first - begin, now - first, first - begin, steps.drafted, steps.accepted
                )

    def check(self, ids: Sequence[int], max_new_tokens: int) -> None:
        """Check the arguments of a generation. Raises: LanguageModelError for unknown tokens, or none to generate."""
        wrong = [token for token in ids if not 0 <= token < self.config.vocabulary]
        if wrong:
            raise LanguageModelError("unknown token", found=wrong[0], expected=f"0 to {self.config.vocabulary - 1}")
        if max_new_tokens < 1:
            raise LanguageModelError("max_new_tokens must be at least 1", found=max_new_tokens)

    def chat(self, messages: Sequence[Mapping[str, Any]], max_new_tokens: int = 512, **how: Any) -> str:
        """Return the model's reply to messages, such as `[{"role": "user", "content": "Hello"}]`.

        how: stop (strings that end the reply, excluded from it), draft (see `generate`), and the fields of `Sampling`.
        """
        return "".join(self.stream_chat(messages, max_new_tokens, **how))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int = 512,
        stop: str | Sequence[str] = (),
        draft: int = 0,
        **sampling: Any,
    ) -> Iterator[str]:
        """Stream the reply to messages as pieces of text; see `chat`."""
        tokens = self.stream(self.prompt(messages), max_new_tokens, Sampling(**sampling), draft=draft)
        return self._pieces(tokens, (stop,) if isinstance(stop, str) else tuple(stop))

    def _pieces(self, tokens: Iterator[int], stops: tuple[str, ...]) -> Iterator[str]:
        """Decode a stream of tokens; yield text as soon as no stop string can begin in it."""
        text = TextStream(self.decode, stops)
        for token in tokens:
            piece = text.push(token)
            if piece:
                yield piece
            if text.is_ended:
                return
        yield text.finish()

    # --- numbers ------------------------------------------------------------------------------------------------------
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits (tokens, vocabulary) that follow each token."""
        self.check(ids, 1)
        with self._lock:
            self._state.clear()
            return self._state.append_all(ids)

    def perplexity(self, ids: Sequence[int]) -> float:
        """Return the perplexity of at least two tokens: exp of the mean negative log-likelihood of tokens."""
        if len(ids) < 2:
            raise LanguageModelError("perplexity needs at least two tokens", found=len(ids))
        logits = self.logits(ids)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(logits)), np.asarray(ids[1:])]
        return float(np.exp((np.log(np.exp(logits).sum(axis=1)) - chosen).mean()))

    def save(self, path: str | Path) -> None:
        """Save program, weights, tokenizer and chat template as one artifact for `kernelyard_llm.load`."""
        self.executable.save(path)


def _sample(sampler: Sampler, logits: np.ndarray, scores: list[Scored] | None) -> int:
    """Sample a token from logits, and append its score if there is a list of them."""
    if scores is None:
        return sampler.choose(logits)
    scores.append(sampler.sample_with_score(logits))
    return scores[-1].token
