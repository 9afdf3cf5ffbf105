"""The tokenizer and the chat template of a folder of HuggingFace's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelyard_llm.errors import ModelFileError, TokenizerError
from kernelyard_llm.from_huggingface import read_json
from kernelyard_llm.tokenizer import ENDS, Tokenizer

_TOKENIZER = "tokenizer.json"
# Which files may say what ends a text, by the name of the entry.
_ENDS = {"generation_config.json": "eos_token_id", "config.json": "eos_token_id", "tokenizer_config.json": "eos_token"}


def folder_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json`. Raises: TokenizerError where there is none, ModelFileError for a damaged file."""
    path = folder / _TOKENIZER
    if not path.is_file():
        raise TokenizerError("the folder has no tokenizer", where=str(folder), expected=_TOKENIZER)
    document = json.dumps({**read_json(path), "truncation": None, "padding": None}, ensure_ascii=False)
    plain = Tokenizer(document, None, ())
    ends = dict.fromkeys(_ends(folder, plain))
    return Tokenizer(document, plain.begin_of_documents(), tuple(ends))


def folder_template(folder: Path) -> str | None:
    """Return the chat template: a file of its own, or an entry of a file. Raises: ModelFileError for a damaged one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError("the chat template cannot be read", where=str(path), found=str(error)) from error
    entries = (_entries(folder / name).get("chat_template") for name in ("chat_template.json", "tokenizer_config.json"))
    found = next((each for each in entries if each), None)
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _entries(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _ends(folder: Path, tokenizer: Tokenizer) -> Iterator[int]:
    for name, entry in _ENDS.items():
        found = _entries(folder / name).get(entry)
        for each in found if isinstance(found, list) else [found]:
            text = each.get("content") if isinstance(each, Mapping) else each
            token = tokenizer.token_of(text) if isinstance(text, str) else text
            if isinstance(token, int):
                yield token
    for text in ENDS:
        token = tokenizer.token_of(text)
        if token is not None:
            yield token
