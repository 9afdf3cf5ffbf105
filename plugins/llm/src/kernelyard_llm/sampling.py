"""Choose the next token of logits: greedily, or at random among the likely ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelyard_llm.errors import LanguageModelError
from kernelyard_llm.grammar import Grammar, grammar_of

if TYPE_CHECKING:
    from kernelyard_llm.tokenizer import Tokenizer

_FORMS = ("json_schema", "regex", "grammar")
_MOST_LIKELY = 4096  # tokens that are sorted first; more only where they are not enough


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; what changes logits and the filters apply in this order.

    logit_bias: what is added to the logits of tokens. repetition_penalty: logits of tokens in the text so far, the
    prompt included, are divided by it, negative ones multiplied. frequency_penalty, presence_penalty: what is
    subtracted for each time that a token was chosen, and once. json_schema, regex, grammar (Lark's notation, as
    llguidance reads it): one form that the answer has to have; needs `pip install kernelyard-llm[grammar]`.
    temperature: what logits are divided by; 0 chooses the best token. top_k: so many tokens at most (0: all). top_p:
    the most likely ones that together have this share. min_p: none less likely than this share of the best one. seed:
    equal seeds give equal texts. log_probabilities: of each token, and of so many best ones, are kept (None: of none);
    they are the model's own, before anything above. Raises: LanguageModelError for a number out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    log_probabilities: int | None = None
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        finite = {"frequency_penalty": self.frequency_penalty, "presence_penalty": self.presence_penalty}
        finite |= {f"logit_bias of {token}": each for token, each in self.logit_bias.items()}
        ranges = {
            "temperature": (self.temperature, 0 <= self.temperature < np.inf, "0 or more"),
            "top_k": (self.top_k, self.top_k >= 0, "0 or more"),
            "top_p": (self.top_p, 0 < self.top_p <= 1, "more than 0, and 1 at most"),
            "min_p": (self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed, self.seed is None or self.seed >= 0, "0 or more"),
            "repetition_penalty": (self.repetition_penalty, 0 < self.repetition_penalty < np.inf, "more than 0"),
            "log_probabilities": (self.log_probabilities, (self.log_probabilities or 0) >= 0, "0 or more"),
            **{name: (found, bool(np.isfinite(found)), "a number") for name, found in finite.items()},
        }
        for name, (found, is_valid, expected) in ranges.items():
            if not is_valid:
                raise LanguageModelError(f"{name} is out of range", found=found, expected=expected)
        forms = [name for name in _FORMS if getattr(self, name) is not None]
        if len(forms) > 1:
            raise LanguageModelError("an answer has one form at most", found=", ".join(forms))

    @property
    def form(self) -> tuple[str, str] | None:
        """The form that the answer has to have: its kind and its text."""
        name = next((name for name in _FORMS if getattr(self, name) is not None), None)
        if name is None:
            return None
        given = getattr(self, name)
        return name, given if isinstance(given, str) else json.dumps(given)


class Scored(NamedTuple):
    """A chosen token. log_probability: of the model's own softmax; best: the likeliest tokens with theirs."""

    token: int
    log_probability: float
    best: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses tokens one after the other. prompt: the tokens before; tokenizer: of the model, for a form of answers.

    Example:
        >>> Sampler(Sampling()).choose(np.array([0.5, 2.0, 1.0], np.float32))
        1
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), tokenizer: Tokenizer | None = None) -> None:
        self._how = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._changes = _Changes(sampling, prompt) if _changes_logits(sampling) else None
        self._grammar: Grammar | None = None if sampling.form is None else grammar_of(sampling.form, tokenizer)

    @property
    def is_done(self) -> bool:
        """True where the form of the answer allows nothing more."""
        return self._grammar is not None and self._grammar.is_done

    def sample_with_score(self, logits: np.ndarray) -> Scored:
        """Return a token of logits (vocabulary,), and how likely it and the best ones are."""
        token = self.choose(logits)
        shifted = logits.astype(np.float64) - float(logits.max())
        shifted -= np.log(np.exp(shifted).sum())
        count = min(self._how.log_probabilities or 0, logits.size)
        best = np.argpartition(-shifted, count - 1)[:count] if count else np.empty(0, np.int64)
        best = best[np.lexsort((best, -shifted[best]))]
        return Scored(token, float(shifted[token]), tuple((int(each), float(shifted[each])) for each in best))

    def choose(self, logits: np.ndarray) -> int:
        """Return a token of logits (vocabulary,). Raises: LanguageModelError where the form of answers allows none."""
        if self._changes is not None:
            logits = self._changes.apply(logits)
        if self._grammar is not None:
            logits = self._grammar.mask(logits)
        token = int(logits.argmax()) if self._how.temperature == 0 else self._random_token(logits)
        if self._changes is not None:
            self._changes.count(token)
        if self._grammar is not None:
            self._grammar.accept(token)
        return token

    def _random_token(self, logits: np.ndarray) -> int:
        how = self._how
        tokens = self._likely(logits)
        best = logits[tokens[0]]
        weights = np.exp((logits[tokens] - best).astype(np.float64) / how.temperature)
        kept = len(weights)
        if how.top_p < 1:
            # Of all tokens, also of those that are not among the sorted ones.
            whole = weights.sum() if how.top_k else np.exp((logits - best).astype(np.float64) / how.temperature).sum()
            kept = int(np.searchsorted(np.cumsum(weights), how.top_p * whole)) + 1
        if how.min_p > 0:
            kept = min(kept, int(np.count_nonzero(weights >= how.min_p)))
        sums = np.cumsum(weights[:kept])
        place = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(tokens[min(place, int(np.searchsorted(sums, sums[-1])))])

    def _likely(self, logits: np.ndarray) -> np.ndarray:
        """Return the tokens that come into question, the most likely first; equal ones by their number."""
        wanted = self._how.top_k or (logits.size if self._how.top_p == 1 and not self._how.min_p else _MOST_LIKELY)
        if wanted < logits.size:
            found = np.sort(np.argpartition(-logits, wanted - 1)[:wanted])
            found = found[np.argsort(-logits[found], kind="stable")]
            if self._how.top_k or self._is_enough(logits, found):
                return found
        return np.argsort(-logits, kind="stable")

    def _is_enough(self, logits: np.ndarray, found: np.ndarray) -> bool:
        """Return True where the filters keep no token that is not among those found."""
        scaled = (logits - logits[found[0]]).astype(np.float64) / self._how.temperature
        if self._how.min_p > 0 and np.exp(scaled[found[-1]]) < self._how.min_p:
            return True
        weights = np.exp(scaled)
        return bool(self._how.top_p < 1 and weights[found].sum() >= self._how.top_p * weights.sum())


def _changes_logits(how: Sampling) -> bool:
    neutral = Sampling()
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    return bool(how.logit_bias) or any(getattr(how, name) != getattr(neutral, name) for name in names)


class _Changes:
    """Bias and penalties, kept by token: a new token changes one entry, whatever the length of the text."""

    def __init__(self, how: Sampling, prompt: Sequence[int]) -> None:
        self._how, self._prompt = how, prompt
        self._chosen: set[int] = set()
        self._added: np.ndarray | None = None
        self._is_seen: np.ndarray | None = None

    def apply(self, logits: np.ndarray) -> np.ndarray:
        if self._added is None or self._is_seen is None:
            self._added, self._is_seen = self._first(logits.size)
        logits = logits + self._added
        penalty = self._how.repetition_penalty
        if penalty != 1.0:
            seen = logits[self._is_seen]
            logits[self._is_seen] = np.where(seen > 0, seen / np.float32(penalty), seen * np.float32(penalty))
        return logits

    def count(self, token: int) -> None:
        assert self._added is not None
        assert self._is_seen is not None
        if token not in self._chosen:
            self._chosen.add(token)
            self._added[token] -= self._how.presence_penalty
        self._added[token] -= self._how.frequency_penalty
        self._is_seen[token] = True

    def _first(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        added, is_seen = np.zeros(size, np.float32), np.zeros(size, bool)
        wrong = [token for token in self._how.logit_bias if not 0 <= token < size]
        if wrong:
            raise LanguageModelError("logit_bias names no token", found=wrong[0], expected=f"0 to {size - 1}")
        for token, bias in self._how.logit_bias.items():
            added[token] = bias
        is_seen[list(self._prompt)] = True
        return added, is_seen
