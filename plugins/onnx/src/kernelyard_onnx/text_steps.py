"""Carry out the steps of a text prefix: each operator as a function of arrays, made from its attributes.

Text is an array of `str` objects. A maker returns the function and whether it gives text, or None for attributes that
it does not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import onnx

from kernelyard_onnx.registry import LEARNING, MICROSOFT
from kernelyard_onnx.tensors import DTYPES

Attributes = Mapping[str, Any]
Step = Callable[..., np.ndarray]
Maker = Callable[[Attributes], "tuple[Step, bool] | None"]
MAP_VALUES = "element type of the map's values"  # among the attributes of what reads a map
OF_MAPS = ((LEARNING, "DictVectorizer"), (LEARNING, "CastMap"))
START, END = "\x02", "\x03"  # what a tokenizer that marks puts around a text


def decode(array: np.ndarray) -> np.ndarray:
    """Return text as `str` objects, whatever it was read as."""
    flat = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in array.reshape(-1)]
    return _objects(flat, array.shape)


def _objects(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    made = np.empty(len(items), object)
    made[:] = items
    return made.reshape(shape)


# --- text to text -----------------------------------------------------------------------------------------------------
def _reshape(attributes: Attributes) -> tuple[Step, bool]:
    def step(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        sizes = shape.tolist()
        return x.reshape([size or x.shape[axis] for axis, size in enumerate(sizes)] if 0 in sizes else sizes)

    return step, True


@dataclass(frozen=True)
class Flatten:
    """Make the axes before one of them a single axis, and those from there on another."""

    axis: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(math.prod(x.shape[: self.axis]), math.prod(x.shape[self.axis :]))


def _flatten(attributes: Attributes) -> tuple[Step, bool]:
    return Flatten(attributes.get("axis", 1)), True


def _identity(attributes: Attributes) -> tuple[Step, bool]:
    return lambda x: x, True


def _concat(attributes: Attributes) -> tuple[Step, bool]:
    axis = attributes["axis"]
    return lambda *parts: np.concatenate(parts, axis), True


def _features(attributes: Attributes) -> tuple[Step, bool]:
    return lambda x, at: np.take(x, at.reshape(-1), x.ndim - 1), True


def _gather(attributes: Attributes) -> tuple[Step, bool]:
    axis = attributes.get("axis", 0)
    return lambda x, at: np.take(x, at, axis), True


@dataclass(frozen=True)
class ChangeCase:
    """Change the case of each text."""

    change: Callable[[str], str]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return _objects(list(map(self.change, x.reshape(-1).tolist())), x.shape)


def _normalizer(attributes: Attributes) -> tuple[Step, bool] | None:
    """Return the step that normalizes text. Stop words are refused: removing them changes the number of texts."""
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}.get(attributes.get("case_change_action", "NONE"))
    if change is None or attributes.get("stopwords"):
        return None
    return ChangeCase(change), True


@dataclass(frozen=True)
class Tokenize:
    """Find tokens by a regular expression, along a new last axis as long as the longest text, filled up.

    least: characters of a token. is_marked: put something around each text.
    """

    expression: re.Pattern[str]
    least: int
    filler: str
    is_marked: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        # What adds nothing need not be called for each text; `findall` gives the groups, where there are any.
        is_all = not self.expression.groups and self.least <= 1 and not self.is_marked
        split = self.expression.findall if is_all else self._tokens
        return _fill_up(list(map(split, x.reshape(-1).tolist())), self.filler, x.shape)

    def _tokens(self, text: str) -> list[str]:
        found = [match.group() for match in self.expression.finditer(text)]
        if self.least > 1:
            found = [token for token in found if len(token) >= self.least]
        return [START, *found, END] if self.is_marked else found


def _tokenizer(attributes: Attributes) -> tuple[Step, bool] | None:
    pattern, mark = attributes.get("tokenexp"), attributes.get("mark", 0)
    if not pattern or attributes.get("separators"):
        return None
    least, filler = attributes.get("mincharnum", 1), attributes.get("pad_value", "#")
    return Tokenize(re.compile(pattern), least, filler, bool(mark)), True


def _fill_up(rows: Sequence[list[str]], filler: str, shape: Sequence[int]) -> np.ndarray:
    """Return a text for each token of each row, filled up to the longest of them, in the shape of the rows."""
    widths = list(map(len, rows))
    width = max(widths, default=0)
    if min(widths, default=0) < width:
        rows = [row + [filler] * (width - len(row)) for row in rows]
    return _objects(list(chain.from_iterable(rows)), (*shape, width))


# --- text to numbers --------------------------------------------------------------------------------------------------
def _codes(x: np.ndarray, table: Mapping[str, Any], default: Any, dtype: Any) -> np.ndarray:
    return np.fromiter(map(table.get, x.reshape(-1).tolist(), repeat(default)), dtype, x.size).reshape(x.shape)


def _one_hot(attributes: Attributes) -> tuple[Step, bool] | None:
    categories = attributes.get("cats_strings")
    if not categories:
        return None
    table = {text: place for place, text in enumerate(categories)}
    rows = np.concatenate([np.eye(len(categories), dtype=np.float32), np.zeros((1, len(categories)), np.float32)])
    return lambda x: rows[_codes(x, table, len(categories), np.int64)], False


def _label_encoder(attributes: Attributes) -> tuple[Step, bool] | None:
    keys = attributes.get("keys_strings")
    if not keys:
        return None
    for kind, dtype, default in (("int64s", np.int64, -1), ("floats", np.float32, -0.0)):
        values = attributes.get(f"values_{kind}")
        if values:
            table = dict(zip(keys, values, strict=True))
            missing = attributes.get(f"default_{kind[:-1]}", default)
            return lambda x, table=table, missing=missing, dtype=dtype: _codes(x, table, missing, dtype), False
    return None


def _category_mapper(attributes: Attributes) -> tuple[Step, bool]:
    table = dict(zip(attributes["cats_strings"], attributes["cats_int64s"], strict=True))
    return lambda x: _codes(x, table, attributes.get("default_int64", -1), np.int64), False


def _cast(attributes: Attributes) -> tuple[Step, bool] | None:
    if attributes["to"] == onnx.TensorProto.STRING:
        return _identity(attributes)
    floats = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.DOUBLE: np.float64}
    dtype = floats.get(attributes["to"])
    if dtype is None:
        return None
    return lambda x: np.array([float(item or "nan") for item in x.reshape(-1)], dtype).reshape(x.shape), False


# --- words ------------------------------------------------------------------------------------------------------------
def _tfidf(attributes: Attributes) -> tuple[Step, bool] | None:
    """Count words of a pool; pools with n-grams of several words are not counted here."""
    pool, begins = attributes.get("pool_strings"), attributes.get("ngram_counts")
    most, least = attributes["max_gram_length"], attributes["min_gram_length"]
    if not pool or (least, most) != (1, 1) or any(begin < len(pool) for begin in (begins or ())[1:]):
        return None
    columns = np.array(attributes["ngram_indexes"], np.int64)
    width = int(columns.max()) + 1
    weights = None
    if attributes["mode"] != "TF" and attributes.get("weights"):
        weights = np.ones(width, np.float32)
        weights[columns] = attributes["weights"]
    table = dict(zip(pool, columns.tolist(), strict=True))
    return CountWords(table, width, weights, attributes["mode"] == "IDF"), False


@dataclass(frozen=True)
class CountWords:
    """Count words along the last axis, each in its column.

    columns: by word. weights: of the columns; None for ones. is_once: further occurrences do not count.
    """

    columns: Mapping[str, int]
    width: int
    weights: np.ndarray | None
    is_once: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        found = _codes(rows, self.columns, -1, np.int64)
        return self.of_places((found + np.arange(len(rows))[:, None] * self.width)[found >= 0], x.shape[:-1])

    def of_places(self, places: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return the weighted counts of rows of that shape, whose words are at these places of the result."""
        counts = np.bincount(places, minlength=math.prod(shape) * self.width).astype(np.float32)
        counts = counts.reshape(*shape, self.width)
        if self.is_once:
            np.minimum(counts, 1, out=counts)
        if self.weights is not None:
            counts *= self.weights
        return counts


# --- maps to numbers --------------------------------------------------------------------------------------------------
def _dict_vectorizer(attributes: Attributes) -> tuple[Step, bool] | None:
    """Look the words of a vocabulary up in a map: a row of its values, 0 for those that it does not have."""
    words = attributes.get("string_vocabulary") or attributes.get("int64_vocabulary")
    dtype = DTYPES.get(attributes[MAP_VALUES])
    if not words or dtype is None:
        return None
    return lambda x: np.fromiter(map(x.item().get, words, repeat(0)), dtype, len(words))[None], False


def _cast_map(attributes: Attributes) -> tuple[Step, bool] | None:
    """Return a row of a map's values in the order of its keys, or, if it is sparse, at the places that they name."""
    dtype = {"TO_FLOAT": np.float32, "TO_INT64": np.int64}.get(attributes.get("cast_to", "TO_FLOAT"))
    is_sparse, width = attributes.get("map_form", "DENSE") == "SPARSE", attributes.get("max_map", 1)
    if dtype is None:
        return None

    def step(x: np.ndarray) -> np.ndarray:
        entries = sorted(x.item().items())
        row = np.zeros((1, width if is_sparse else len(entries)), dtype)
        for place, (key, value) in enumerate(entries):
            at = key if is_sparse else place
            if 0 <= at < row.shape[1]:
                row[0, at] = dtype(float(value))
        return row

    return step, False


STEPS: dict[tuple[str, str], Maker] = {
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Identity"): _identity,
    ("", "Concat"): _concat,
    ("", "Gather"): _gather,
    ("", "StringNormalizer"): _normalizer,
    ("", "Cast"): _cast,
    ("", "TfIdfVectorizer"): _tfidf,
    (MICROSOFT, "Tokenizer"): _tokenizer,
    (LEARNING, "ArrayFeatureExtractor"): _features,
    (LEARNING, "OneHotEncoder"): _one_hot,
    (LEARNING, "LabelEncoder"): _label_encoder,
    (LEARNING, "CategoryMapper"): _category_mapper,
    (LEARNING, "DictVectorizer"): _dict_vectorizer,
    (LEARNING, "CastMap"): _cast_map,
}
