"""Chat templates: Jinja, in a sandbox that can change nothing and reach nothing but its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from kernelyard_llm.errors import TokenizerError

# For models without a template of their own: ChatML, which most are taught.
DEFAULT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MOST_TEMPLATE = 1 << 18


class ChatTemplate:
    """Messages to the text that a model is given.

    Example:
        >>> ChatTemplate(DEFAULT).render([{"role": "user", "content": "Hi"}])
        '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """

    def __init__(self, source: str, **tokens: str) -> None:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.source, self.tokens = source, tokens
        if len(source) > _MOST_TEMPLATE:
            raise TokenizerError("the chat template is too long", found=f"{len(source)} characters")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().astimezone().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TokenizerError("the chat template cannot be read", found=str(error)) from error

    def render(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> str:
        """Return the text of messages, up to where the answer begins.

        Raises: TokenizerError for messages that are none, and for what the template refuses.
        """
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise TokenizerError("a message needs a role and its content", found=repr(message)[:200])
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self.tokens, **given)
        except TokenizerError:
            raise
        except Exception as error:  # a template is a program of its own
            raise TokenizerError(
                "the chat template cannot be applied", found=f"{type(error).__name__}: {error}"
            ) from error


def _refuse(message: str) -> NoReturn:
    raise TokenizerError("the chat template refuses these messages", found=message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
