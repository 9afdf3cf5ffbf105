"""Bodies of OpenAI's protocol: whole answers, the chunks of streams, and errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from kernelyard.errors import KernelyardError
from kernelyard_llm.model import LanguageModel
from kernelyard_llm.sampling import Scored
from kernelyard_llm.server.answer import Answer, Piece


class Bodies:
    """The bodies of one answer, of a chat or of completions. name: of the model."""

    def __init__(self, model: LanguageModel, name: str, is_chat: bool, has_scores: bool) -> None:
        self._model, self._is_chat, self._has_scores = model, is_chat, has_scores
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._object, self._name, self._created = (
            "chat.completion" if is_chat else "text_completion",
            name,
            int(time.time()),
        )

    def whole(self, pieces: Sequence[Piece], answer: Answer) -> dict[str, Any]:
        """Return a whole answer."""
        choices = []
        for index in range(answer.choices):
            own = [piece for piece in pieces if piece.index == index]
            text, scores = "".join(piece.text for piece in own), [each for piece in own for each in piece.scores]
            said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
            choices.append(self._choice(index, said, scores, own[-1].reason))
        return {**self._head(self._object), "choices": choices, "usage": usage(answer)}

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """Return a chunk of a stream."""
        said = {"delta": {"content": piece.text} if piece.text else {}} if self._is_chat else {"text": piece.text}
        return self._chunk([self._choice(piece.index, said, piece.scores, piece.reason)])

    def first(self, index: int) -> dict[str, Any]:
        """Return the chunk that a chat's stream begins with."""
        return self._chunk([self._choice(index, {"delta": {"role": "assistant", "content": ""}}, (), None)])

    def last(self, answer: Answer) -> dict[str, Any]:
        """Return the chunk that tells how many tokens there were."""
        return {**self._chunk([]), "usage": usage(answer)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk" if self._is_chat else self._object), "choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _choice(self, index: int, said: dict[str, Any], scores: Sequence[Scored], reason: str | None) -> dict[str, Any]:
        told = None
        if self._has_scores:
            told = self._chat_scores(scores) if self._is_chat else self._completion_scores(scores)
        return {"index": index, **said, "logprobs": told, "finish_reason": reason}

    def _chat_scores(self, scores: Sequence[Scored]) -> dict[str, Any]:
        content = [
            {
                **self._token(each.token, each.log_probability),
                "top_logprobs": [self._token(*best) for best in each.best],
            }
            for each in scores
        ]
        return {"content": content, "refusal": None}

    def _completion_scores(self, scores: Sequence[Scored]) -> dict[str, Any]:
        return {
            "tokens": [self._text(each.token) for each in scores],
            "token_logprobs": [each.log_probability for each in scores],
            "top_logprobs": [{self._text(token): value for token, value in each.best} for each in scores],
        }

    def _token(self, token: int, log_probability: float) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": log_probability, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return self._model.tokenizer.decode([token], skip_special=False)


def usage(answer: Answer) -> dict[str, int]:
    """Return the tokens of an answer, and of its prompts."""
    prompt, new = answer.prompt_tokens, answer.new_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def error_body(error: KernelyardError, status: int) -> dict[str, Any]:
    """Return an error as the protocol writes it, with the facts that it was found by."""
    kind = "invalid_request_error" if 400 <= status < 429 else "rate_limit_error" if status == 429 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
