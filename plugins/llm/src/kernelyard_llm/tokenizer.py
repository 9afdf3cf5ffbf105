"""Tokenizers: built from what a model's file says, run by the library `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard_llm.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6  # kinds of tokens in GGUF
_SPACE = "▁"  # SentencePiece writes spaces so

# How texts are cut before they are merged, by GGUF's name: the expressions that the models' makers published.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = (_WORDS + numbers + _REST for numbers in (r"\p{N}{1,3}", r"\p{N}"))
_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "deepseek-r1-qwen"), (_QWEN2,)),
}


class Tokenizer:
    """Text to tokens and back. document: a `tokenizer.json`; begin: the token that texts begin with, if any.

    ends: the tokens that end an answer.
    """

    def __init__(self, document: str, begin: int | None, ends: Sequence[int]) -> None:
        from tokenizers import Tokenizer as Library

        self.document, self.begin, self.ends = document, begin, tuple(ends)
        try:
            self._library: Library = Library.from_str(document)
        except Exception as error:  # the library raises a bare Exception
            raise TokenizerError("the tokenizer cannot be read", found=str(error)) from error

    @cached_property
    def for_grammars(self) -> Any:
        """The tokenizer as llguidance reads it. Raises: TokenizerError for a kind that it does not know."""
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self.document, eos_token=list(self.ends) or None)
        except ValueError as error:
            raise TokenizerError("grammars do not work with this tokenizer", found=str(error)) from error

    def encode(self, text: str, is_document: bool = True) -> list[int]:
        """Return the tokens of a text; is_document: it begins with the token for that, where there is one."""
        ids = self._library.encode(text, add_special_tokens=False).ids
        return [self.begin, *ids] if is_document and self.begin is not None and ids[:1] != [self.begin] else ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of tokens."""
        size = self._library.get_vocab_size(with_added_tokens=True)
        wrong = [each for each in ids if not 0 <= each < size]
        if wrong:
            raise TokenizerError("there is no such token", found=wrong[0], expected=f"0 to {size - 1}")
        return self._library.decode(list(ids), skip_special_tokens=skip_special)

    def begin_of_documents(self) -> int | None:
        """Return the token that the document of the tokenizer puts before texts, None where it does not put one."""
        plain, whole = (self._library.encode("a", add_special_tokens=added).ids for added in (False, True))
        added = len(whole) - len(plain)
        return whole[0] if added > 0 and whole[1 : len(plain) + 1] == plain else None

    def token_of(self, text: str) -> int | None:
        """Return the token that is written so, None where there is none."""
        return self._library.token_to_id(text)

    def text_of(self, token: int) -> str:
        """Return a special token as it is written in templates."""
        return self._library.id_to_token(token) or ""


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF file. Raises: TokenizerError for a kind that is not supported."""
    entries = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    kind, tokens = entries.get("model"), entries.get("tokens")
    if not isinstance(tokens, list) or not tokens or kind not in _MODELS:
        raise TokenizerError("the tokenizer of the file is not supported", found=kind, expected=", ".join(_MODELS))
    document = {"version": "1.0", "truncation": None, "padding": None, **_MODELS[kind](entries, tokens)}
    document["added_tokens"] = _read_added_tokens(tokens, entries.get("token_type"))
    adds = entries.get("add_bos_token", kind == "llama")
    begin = entries.get("bos_token_id") if adds else None
    ends = [entries[name] for name in ("eos_token_id", "eot_token_id", "eom_token_id") if name in entries]
    ends += [number for number, text in enumerate(tokens) if text in ENDS and number not in ends]
    return Tokenizer(json.dumps(document), begin, ends)


# What ends a turn in the usual templates, whether or not the metadata say so.
ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")


def _read_added_tokens(tokens: list[str], kinds: np.ndarray | None) -> list[dict[str, Any]]:
    if kinds is None or len(kinds) != len(tokens):
        return []
    return [
        {
            "id": number,
            "content": tokens[number],
            "special": bool(kinds[number] == _CONTROL),
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number in np.flatnonzero((kinds == _CONTROL) | (kinds == _USER_DEFINED)).tolist()
        if tokens[number]
    ]


def _byte_level(entries: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Merges of bytes, as GPT-2 has them."""
    name = entries.get("pre", "default")
    if name not in _PATTERNS:
        raise TokenizerError(
            "how this tokenizer cuts texts is unknown", where="tokenizer.ggml.pre", found=name, expected=list(_PATTERNS)
        )
    cuts: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in _PATTERNS[name]
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, as_bytes]},
        "post_processor": None,
        "decoder": as_bytes,
        "model": {"type": "BPE", **_merges(entries, tokens), "ignore_merges": name.startswith("llama")},
    }


def _sentence_pieces(entries: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Return SentencePiece's merges, which GGUF stores as scores: the best pair of neighbours is merged."""
    scores = entries.get("scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens):
        raise TokenizerError("the scores of the tokens are missing", where="tokenizer.ggml.scores")
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if entries.get("add_space_prefix", True) else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    vocabulary = {text: number for number, text in enumerate(tokens)}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": _merges_of_scores(tokens, vocabulary, scores),
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": tokens[entries.get("unknown_token_id", 0)],
        },
    }


def _merges_of_scores(tokens: list[str], vocabulary: Mapping[str, int], scores: np.ndarray) -> list[list[str]]:
    """Return each pair of tokens that makes a token, those of the best scores first."""
    found: list[tuple[float, int, int, list[str]]] = []
    for number, text in enumerate(tokens):
        for cut in range(1, len(text)):
            left, right = vocabulary.get(text[:cut]), vocabulary.get(text[cut:])
            if left is not None and right is not None:
                found.append((-float(scores[number]), left, right, [text[:cut], text[cut:]]))
    return [pair for *_, pair in sorted(found)]


def _merges(entries: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    merges = entries.get("merges")
    if not isinstance(merges, list) or not all(isinstance(each, str) and " " in each[1:] for each in merges):
        raise TokenizerError("the merges of the tokenizer are missing", where="tokenizer.ggml.merges")
    pairs = [each[: each.index(" ", 1)] for each in merges], [each[each.index(" ", 1) + 1 :] for each in merges]
    vocabulary = {text: number for number, text in enumerate(tokens)}
    return {"vocab": vocabulary, "merges": list(map(list, zip(*pairs, strict=True)))}


_MODELS = {"gpt2": _byte_level, "llama": _sentence_pieces}
