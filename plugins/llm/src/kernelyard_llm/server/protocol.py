"""Requests of OpenAI's protocol: what is asked, checked and in the terms of this package.

Source: https://platform.openai.com/docs/api-reference (chat and completions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from kernelyard_llm.sampling import Sampling
from kernelyard_serve.errors import RequestFormatError, UnknownServedModelError

DEFAULT_NEW_TOKENS = 512
_MOST_CHOICES = 32

Count = Annotated[int, msgspec.Meta(ge=1)]


class TextPart(msgspec.Struct):
    """A part of a message; texts alone are understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[TextPart] | None = None


class StreamOptions(msgspec.Struct):
    """Configure what a stream has besides text."""

    include_usage: bool = False


class Common(msgspec.Struct):
    """Declare the fields that chats and completions have in common. None is the protocol's default."""

    model: str = ""
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=_MOST_CHOICES)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the strings at which generation ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def new_tokens(self) -> int:
        """Return the limit of new tokens."""
        return self.max_tokens or DEFAULT_NEW_TOKENS


class Completion(Common):
    """A request for completions."""

    prompt: str | list[str | int | list[int]] = ""
    logprobs: int | None = None

    @property
    def best(self) -> int | None:
        """Return how many alternatives have their log-probability returned; None for no log-probabilities."""
        return self.logprobs

    @property
    def form(self) -> Mapping[str, Any] | None:
        """Return the constraint on the output."""
        return None


class Chat(Common):
    """A request for a chat's answer."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=list)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def new_tokens(self) -> int:
        """Return the limit of new tokens."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_NEW_TOKENS

    @property
    def best(self) -> int | None:
        """Return how many alternatives have their log-probability returned; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def form(self) -> Mapping[str, Any] | None:
        """Return the constraint on the output."""
        return self.response_format

    def plain(self) -> list[dict[str, str]]:
        """Return the messages as templates take them. Raises: RequestFormatError for one that is no text."""
        return [{"role": message.role, "content": _text(message)} for message in self.messages]


def read(body: bytes, kind: type[Chat] | type[Completion]) -> Any:
    """Return a request. Raises: RequestFormatError for what is none of the protocol."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestFormatError("the body is no request of the protocol", found=str(error)) from error
    if isinstance(request, Chat) and not request.messages:
        raise RequestFormatError("a chat needs messages", expected="messages with a role and content")
    return request


def sampling_of(request: Chat | Completion, index: int) -> Sampling:
    """Return how the tokens of a choice are chosen. Raises: LanguageModelError, RequestFormatError."""
    bias = request.logit_bias or {}
    wrong = [token for token in bias if not token.isdecimal()]
    if wrong:
        raise RequestFormatError("logit_bias names tokens by their numbers", found=wrong[0])
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=None if request.seed is None else request.seed + index,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias={int(token): each for token, each in bias.items()},
        log_probabilities=request.best,
        json_schema=_schema(request.form),
    )


def _schema(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the schema that an answer has to fit, None for any text. Raises: RequestFormatError."""
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = form.get("json_schema")
    schema = described.get("schema") if kind == "json_schema" and isinstance(described, dict) else None
    if not isinstance(schema, dict):
        expected = "type text, json_object, or json_schema with a schema"
        raise RequestFormatError("response_format is not one of the protocol", found=str(form)[:200], expected=expected)
    return schema


def prompts_of(request: Completion, encode: Any) -> list[list[int]]:
    """Return the tokens of each prompt. Raises: RequestFormatError for texts and tokens that are mixed."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [encode(prompt)]
    if prompt and all(isinstance(each, int) for each in prompt):
        return [[each for each in prompt if isinstance(each, int)]]
    if any(isinstance(each, int) for each in prompt) or not prompt:
        raise RequestFormatError("a prompt is a text, tokens, or a list of either", found="a mixture or an empty list")
    return [encode(each) if isinstance(each, str) else _tokens(each) for each in prompt]


def _tokens(each: object) -> list[int]:
    assert isinstance(each, list)
    return each


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    parts: Sequence[TextPart] = message.content or ()
    wrong = [part.type for part in parts if part.type != "text" or part.text is None]
    if wrong or message.content is None:
        raise RequestFormatError("a message has to be text", found=wrong[0] if wrong else "no content")
    return "".join(part.text or "" for part in parts)


def check_model(name: str, served: str) -> None:
    """Check the model's name. Raises: UnknownServedModelError for another one."""
    if name and name != served:
        raise UnknownServedModelError("there is no such model", found=name, expected=served)
