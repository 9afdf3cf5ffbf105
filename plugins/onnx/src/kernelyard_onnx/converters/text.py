"""Text: computed while the model is compiled, since programs compute with numbers.

A session compiles a model whose inputs are text for what it is given. Converters of the domain TEXT are those of
operators that work on numbers too, for inputs that are text.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import TEXT, converter
from kernelyard_onnx.values import StringTensor


def text_of(node: Node, index: int) -> np.ndarray:
    """Return the text of an input: an array of `str` objects.

    Raises: RejectedError when it is no text.
    """
    value = node.value(index)
    return value.data if isinstance(value, StringTensor) else node.reject(f"its input {index} is not text")


def each(data: np.ndarray, function: Callable[..., object], *others: np.ndarray) -> np.ndarray:
    """Map a function over the elements, to an array of objects."""
    arrays = np.broadcast_arrays(data, *others)
    result = np.empty(arrays[0].shape, object)
    result.reshape(-1)[:] = [function(*items) for items in zip(*(a.reshape(-1) for a in arrays), strict=True)]
    return result


def write_numbers(node: Node, x: Expr) -> StringTensor:
    """Return numbers as text, as onnxruntime writes them: 8 digits, and truth values as 0 and 1."""
    numbers = node.constant(x, "input")
    numbers = numbers if numbers.dtype.kind in "biu" else numbers.astype(np.float64)
    return StringTensor(each(numbers.astype(object), _write_number))


def _write_number(number: bool | int | float) -> str:
    if isinstance(number, float):
        return "NaN" if math.isnan(number) else f"{number:.8g}".replace("inf", "INF")
    return str(int(number))


@converter("StringConcat", since=20)
def string_concat(node: Node) -> StringTensor:
    return StringTensor(each(text_of(node, 0), lambda a, b: a + b, text_of(node, 1)))


@converter("StringSplit", since=20)
def string_split(node: Node) -> tuple[StringTensor, Expr]:
    """Return the parts along a new last axis, filled up with empty text, and how many there are."""
    data, delimiter = text_of(node, 0), node.attr("delimiter", "") or None
    most = node.attr("maxsplit", -1)
    parts = [item.split(delimiter, most) for item in data.reshape(-1)]
    width = max(map(len, parts), default=0)
    table = np.empty((len(parts), width), object)
    for row, items in enumerate(parts):
        table[row] = items + [""] * (width - len(items))
    counts = np.array([len(items) for items in parts], np.int64)
    return StringTensor(table.reshape(*data.shape, width)), Constant(counts.reshape(data.shape))


@converter("RegexFullMatch", since=20)
def regex_full_match(node: Node) -> Expr:
    try:
        pattern = re.compile(node.require_attr("pattern"))
    except re.error as error:
        node.reject(f"its pattern is malformed: {error}")
    return Constant(each(text_of(node, 0), lambda item: pattern.fullmatch(item) is not None).astype(bool))


@converter("StringNormalizer", since=10)
def string_normalizer(node: Node) -> StringTensor:
    """Case changed, and words left out, in a row of words."""
    data = text_of(node, 0)
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}.get(node.attr("case_change_action", "NONE"))
    if change is None:
        node.reject("its case_change_action is unknown")
    if data.ndim not in (1, 2) or (data.ndim == 2 and len(data) != 1):
        node.reject(f"its input has the shape {data.shape}")
    same = str if node.attr("is_case_sensitive", 0) else str.lower
    left_out = {same(word) for word in node.attr("stopwords", ())}
    kept = [change(_strip_accents(item)) for item in data.reshape(-1) if same(item) not in left_out]
    words = np.array(kept or [""], object)
    return StringTensor(words if data.ndim == 1 else words[None])


def _strip_accents(item: str) -> str:
    if item.isascii():
        return item
    return "".join(c for c in unicodedata.normalize("NFKD", item) if not unicodedata.combining(c))


# --- TfIdfVectorizer --------------------------------------------------------------------------------------------------
@converter("TfIdfVectorizer", since=9)
def count_numbers(node: Node) -> Expr:
    pool = np.array(node.attr("pool_int64s") or node.reject("its pool_int64s is missing"), np.int64)
    return _count_ngrams(node, node.cast(node.input(0), "int64"), pool)


@converter("TfIdfVectorizer", since=9, domain=TEXT)
def count_words(node: Node) -> Expr:
    words = node.attr("pool_strings") or node.reject("its pool_strings is missing")
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    data = each(text_of(node, 0), lambda item: numbers.get(item, -1)).astype(np.int64)
    return _count_ngrams(node, Constant(data), np.array([numbers[word] for word in words], np.int64))


def _count_ngrams(node: Node, x: Expr, pool: np.ndarray) -> Expr:
    """Count each n-gram of the pool in each row, in its column of the result, weighted."""
    rank = node.rank(x)
    length = node.require_fixed(node.shape(x)[-1], "length of its rows") if rank else 1
    rows = node.reshape(x, (node.shape(x)[0] if rank == 2 else 1, length))
    columns = np.array(node.require_attr("ngram_indexes"), np.int64)
    counts = _counts(node, rows, pool, length)
    if node.shape(counts)[1] != len(columns):
        node.reject("its ngram_counts, ngram_indexes and pool do not fit together")
    weights = np.array(node.attr("weights") or [1.0] * len(columns), np.float32)
    if node.require_attr("mode") == "IDF":
        counts = node.op("minimum", counts, 1)
    if node.require_attr("mode") == "TF":
        weights = np.ones_like(weights)
    place = np.zeros((len(columns), int(columns.max()) + 1), np.float32)
    place[np.arange(len(columns)), columns] = weights
    result = node.op("matmul", counts, place)
    return result if rank == 2 else node.reshape(result, (place.shape[1],))


def _counts(node: Node, rows: Expr, pool: np.ndarray, length: int) -> Expr:
    """(rows, n-grams of the pool): how often each occurs, its elements up to `max_skip_count` apart."""
    begins = [*node.require_attr("ngram_counts"), len(pool)]
    least, most = node.require_attr("min_gram_length"), node.require_attr("max_gram_length")
    skips = node.require_attr("max_skip_count")
    parts: list[Expr] = []
    for size, (begin, end) in enumerate(itertools.pairwise(begins), start=1):
        grams = pool[begin:end].reshape(-1, size)
        steps = range(1, 2 + (skips if size > 1 else 0)) if least <= size <= most else ()
        found: Expr = node.full(0, (node.shape(rows)[0], len(grams)), "float32")
        for step in steps:
            found = node.op("add", found, _occurrences(node, rows, grams, length, step))
        parts.append(found)
    return node.concat(parts, 1)


def _occurrences(node: Node, rows: Expr, grams: np.ndarray, length: int, step: int) -> Expr:
    count, size = grams.shape
    starts = np.arange(max(length - step * (size - 1), 0))
    if not (len(starts) and count):
        return node.full(0, (node.shape(rows)[0], count), "float32")
    windows = node.op("take", rows, Constant(starts[:, None] + step * np.arange(size)), axis=1)
    lined_up = node.reshape(windows, (node.shape(rows)[0], 1, len(starts), size))
    same = node.cast(node.op("equal", lined_up, grams[:, None, :]), "float32")
    return node.op("sum", node.op("min", same, axes=(3,), keepdims=False), axes=(2,), keepdims=False)


def require_text(texts: Sequence[str]) -> StringTensor:
    """Return a vector of text."""
    data = np.empty(len(texts), object)
    data[:] = list(texts)
    return StringTensor(data)
