"""Hold answers to a form, a JSON schema, a regular expression or a grammar, by the library llguidance."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard_llm.errors import LanguageModelError

if TYPE_CHECKING:
    from kernelyard_llm.tokenizer import Tokenizer

# Room for indented JSON between its parts; without a limit, some models go on with blanks until they are cut off.
_BLANKS = r"\n?[ \t]{0,16}"
_EXTRA = "pip install kernelyard-llm[grammar]"


class Grammar:
    """The tokens that may follow, as the answer grows. matcher: llguidance's, which is advanced."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def is_done(self) -> bool:
        """True where nothing more may follow."""
        return self._matcher.is_stopped()

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """Return logits with -inf where a token may not follow. Raises: LanguageModelError where none may."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        is_allowed = np.zeros(logits.size, bool)
        is_allowed[: min(bits.size, logits.size)] = bits[: logits.size] > 0
        if not is_allowed.any():
            raise LanguageModelError("no token may follow", found=self._matcher.get_error() or None)
        return np.where(is_allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Advance by a token that may follow."""
        if not self.is_done and not self._matcher.consume_token(token):
            raise LanguageModelError("this token may not follow", found=self._matcher.get_error())


def grammar_of(form: tuple[str, str], tokenizer: Tokenizer | None) -> Grammar:
    """Return the state of a form before the first token. form: its kind (json_schema, regex, grammar), and its text.

    Raises: LanguageModelError for a form that cannot be read, and where the library or the tokenizer is missing.
    """
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise LanguageModelError("forms of answers need the library llguidance", hint=_EXTRA) from error
    if tokenizer is None:
        raise LanguageModelError("a form of answers needs the tokenizer of the model")
    kind, text = form
    readers = {
        "json_schema": partial(LLMatcher.grammar_from_json_schema, defaults={"whitespace_pattern": _BLANKS}),
        "regex": LLMatcher.grammar_from_regex,
    }
    try:
        matcher = LLMatcher(tokenizer.for_grammars, readers.get(kind, LLMatcher.grammar_from_lark)(text))
    except ValueError as error:
        raise LanguageModelError("the form of the answer cannot be read", found=str(error)) from error
    if matcher.is_error():
        raise LanguageModelError("the form of the answer cannot be read", found=matcher.get_error())
    return Grammar(matcher)
