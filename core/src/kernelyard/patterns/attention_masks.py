"""Rewriters for what models write around attention: masks of booleans, rows that see nothing, heads that are repeated.

Before `attention_templates` recognises it, masks become a bias that is added to the scores, and what is done to rows of
weights is done to rows of the result. Afterwards a bias that hides what comes later becomes the attribute `causal`, and
heads that are repeated for several heads of queries become fewer heads of keys. Sizes as there: B, S, T, N, H.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import ml_dtypes
import numpy as np

from kernelyard.ir.expr import Constant, Expr
from kernelyard.patterns.attention_templates import ROLES, repeats_heads
from kernelyard.patterns.language.constructors import is_const, is_op, wildcard
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.traced import op
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.rewriting.function_rewriter import Rewriter, rewriter_of
from kernelyard.patterns.templates import SWAP_HEADS

NAMES = ("attention", "attention_bias")


def rewriters_before_recognition() -> Rewriter:
    """Return the rewriters that normalize decomposed attention for `attention_rewriters`."""
    return _replace_masked_scores() | _hoist_row_mask() | _rows_without_numbers() | _unmerge_transposed_heads()


def rewriters_after_recognition() -> Rewriter:
    """Return the rewriters that fold masks and scales into `nn.attention`."""
    scaled = (_fold_scale(name, role) for name in NAMES for role in ROLES[:2])
    return reduce(or_, (_causal(), _causal_rows(), *map(_remove_repeated_heads, NAMES), *scaled))


# --- before -----------------------------------------------------------------------------------------------------------
def _replace_masked_scores() -> Rewriter:
    """Rewrite `softmax(where(visible, products, -inf))` to `softmax(products + where(visible, 0, -inf))`."""

    def pattern(a: Pattern, b: Pattern) -> Pattern:
        products = op.matmul(a, b)
        factor = is_const()
        scores = op.multiply(products, factor) | op.divide(products, factor) | products
        scores = (op.add(scores, wildcard()) | scores).capture("scores")
        number = is_const().capture("number")
        masked = op.where(wildcard().capture("visible"), scores, number)
        masked |= op.where(wildcard().capture("hidden"), number, scores)
        return op.nn.softmax((op.astype(masked) | masked).capture("operand")).capture("weights")

    def replacement(match: Match) -> Expr | None:
        weights, scores = match.call_of("weights"), match["scores"]
        if not _is_all(match["number"], -np.inf) or not _is_over_last_axis(match):
            return None
        dtype = scores.tensor_type.dtype
        nothing, hidden = _number(0, match["number"]), _number(-np.inf, match["number"])
        bias = (
            op.where(match["visible"], nothing, hidden)
            if "visible" in match
            else op.where(match["hidden"], hidden, nothing)
        )
        masked = op.add(scores, bias)
        if masked.type != scores.type:
            return None
        wide = weights.tensor_type.dtype
        return op.nn.softmax(masked if wide == dtype else op.astype(masked, dtype=wide), axis=weights.attrs["axis"])

    return rewriter_of(pattern, replacement)


def _weights() -> Pattern:
    softmax = op.nn.softmax(wildcard()).capture("weights")
    return (op.astype(softmax) | softmax).capture("shares")


def _hoist_row_mask() -> Rewriter:
    """Rewrite `where(rows, softmax(scores), 0) @ values` to `where(rows, softmax(scores) @ values, 0)`."""

    def pattern(rows: Pattern, values: Pattern) -> Pattern:
        return op.matmul(op.where(rows, _weights(), is_const().capture("zero")), values)

    def replacement(match: Match) -> Expr | None:
        is_of_rows = match["rows"].tensor_type.shape[-1:] in ((), (1,))
        if not _is_all(match["zero"], 0) or not is_of_rows or not _is_over_last_axis(match):
            return None
        product = op.matmul(match["shares"], match["values"])
        return op.where(match["rows"], product, _number(0, match["zero"]))

    return rewriter_of(pattern, replacement)


def _rows_without_numbers() -> Rewriter:
    """Rewrite `where(isnan(weights), 0, weights) @ values` to `where(max(bias) > -inf, weights @ values, 0)`.

    weights: `softmax(scores + bias)`, of which those rows are no numbers that the bias hides. Rows whose scores are no
    numbers to begin with stay so.
    """

    def pattern(values: Pattern) -> Pattern:
        scores = op.add(wildcard(), wildcard().capture("bias")).capture("scores")
        softmax = op.nn.softmax(op.astype(scores) | scores).capture("weights")
        shares = (op.astype(softmax) | softmax).capture("shares")
        return op.matmul(op.where(op.isnan(shares), is_const().capture("zero"), shares), values)

    def replacement(match: Match) -> Expr | None:
        bias, scores = match["bias"].tensor_type, match["scores"].tensor_type
        if not _is_all(match["zero"], 0) or not _is_over_last_axis(match) or not bias.rank or bias == scores:
            return None
        largest = op.max(match["bias"], axes=(bias.rank - 1,), keepdims=True)
        product = op.matmul(match["shares"], match["values"])
        return op.where(op.greater(largest, -np.inf), product, _number(0, match["zero"]))

    return rewriter_of(pattern, replacement)


def _unmerge_transposed_heads() -> Rewriter:
    """Return the rewriter of keys transposed with merged batch and heads, as exporters to ONNX write them."""

    def pattern(x: Pattern) -> Pattern:
        flat = op.reshape(x).capture("flat")
        return op.reshape(op.permute_dims(flat, axes=(0, 2, 1))).capture("result")

    def replacement(match: Match) -> Expr | None:
        shape, flat = match["x"].tensor_type.shape, match["flat"].tensor_type.shape
        if len(shape) != 4 or flat != (shape[0] * shape[1], shape[2], shape[3]):
            return None
        result = op.permute_dims(match["x"], axes=(0, 1, 3, 2))
        return result if result.type == match.root.type else None

    return rewriter_of(pattern, replacement)


# --- after ------------------------------------------------------------------------------------------------------------
def _up_to_diagonal() -> Pattern:
    """Return the pattern of a boolean (S, T) causal mask: true up to the diagonal."""
    columns, rows = (is_op("arange")().has_attr(start=0, step=1).capture(name) for name in ("columns", "rows"))
    return op.less_equal(columns, op.reshape(rows)).capture("lower")


def _after_diagonal() -> Pattern:
    ones = op.broadcast_to(is_const().capture("ones"))
    return op.equal(op.trilu(ones, k=0, upper=False), is_const().capture("no")).capture("lower")


def _is_lower(match: Match) -> bool:
    """Return True for a captured mask whose rows are counted along its first axis."""
    if "ones" in match:
        return _is_all(match["ones"], 1) and _is_all(match["no"], 0)
    rows, columns = (match.call_of(name).attrs["count"] for name in ("rows", "columns"))
    return match["lower"].tensor_type.shape == (rows, columns)


def _causal() -> Rewriter:
    """Make a bias that hides the keys after a query, and is 0 for the others, the attribute `causal`.

    The lowest number of its dtype hides a key like -inf where another one is seen: its share is 0.
    """

    def pattern(query: Pattern, key: Pattern, value: Pattern) -> Pattern:
        nothing, hidden = is_const().capture("nothing"), is_const().capture("hiding")
        bias = op.where(_up_to_diagonal(), nothing, hidden) | op.where(_after_diagonal(), hidden, nothing)
        bias |= is_const().capture("constant")
        return op.nn.attention_bias(query, key, value, bias.capture("bias"), causal="none").capture("root")

    def replacement(match: Match) -> Expr | None:
        query, key, bias = (match[name].tensor_type.shape for name in ("query", "key", "bias"))
        if bias[-2:] != (query[1], key[1]) or any(size != 1 for size in bias[:-2]):
            return None
        if "constant" in match:
            data = match["constant"].data.reshape(bias[-2:])  # pyright: ignore[reportAttributeAccessIssue]
            lower = np.tri(*data.shape, dtype=bool)
            is_causal = not data[lower].any() and _is_hidden(data[~lower])
        else:
            is_causal = _is_lower(match) and _is_all(match["nothing"], 0)
            is_causal = is_causal and _is_hidden(match["hiding"].data)  # pyright: ignore[reportAttributeAccessIssue]
        operands = (match[role] for role in ROLES)
        scale = match.call_of("root").attrs["scale"]
        return op.nn.attention(*operands, scale=scale, causal="top_left") if is_causal else None

    return rewriter_of(pattern, replacement)


def _causal_rows() -> Rewriter:
    """Rewrite `where(any(lower), x, 0)` to x: every row up to the diagonal has a column."""

    def pattern(x: Pattern) -> Pattern:
        return op.where(op.any(_up_to_diagonal(), axes=(1,), keepdims=True), x, is_const())

    def replacement(match: Match) -> Expr | None:
        return match["x"] if _is_lower(match) and match["x"].type == match.root.type else None

    return rewriter_of(pattern, replacement)


def _remove_repeated_heads(name: str) -> Rewriter:
    """Rewrite attention of repeated heads (B, M, T, H) of keys and values to that of grouped heads of queries."""

    def repeat_heads(x: Pattern, role: str) -> Pattern:
        one_more = op.reshape(x).capture(f"{role}_one_more")
        repeated = op.reshape(op.broadcast_to(one_more).capture(f"{role}_wider")).capture(f"{role}_repeated")
        return op.permute_dims(repeated, axes=SWAP_HEADS)

    def pattern(query: Pattern, key: Pattern, value: Pattern) -> Pattern:
        extra = (wildcard().capture("bias"),) if name == "attention_bias" else ()
        return getattr(op.nn, name)(query, repeat_heads(key, "key"), repeat_heads(value, "value"), *extra).capture(
            "root"
        )

    def replacement(match: Match) -> Expr | None:
        if not all(repeats_heads(match, role, 1) for role in ROLES[1:]):
            return None
        operands = [match["query"], *(op.permute_dims(match[role], axes=SWAP_HEADS) for role in ROLES[1:])]
        operands += [match["bias"]] if "bias" in match else []
        return getattr(op.nn, name)(*operands, **match.call_of("root").attrs)

    return rewriter_of(pattern, replacement)


def _fold_scale(name: str, role: str) -> Rewriter:
    """Make a number that queries or keys are multiplied by a part of the scale."""

    def pattern() -> Pattern:
        operands = {each: wildcard().capture(each) for each in ROLES}
        product = op.multiply(wildcard().capture("plain"), is_const().capture("factor"))
        operands[role] = (op.permute_dims(product).capture("permuted") | product).capture(role)
        extra = (wildcard().capture("bias"),) if name == "attention_bias" else ()
        return getattr(op.nn, name)(*operands.values(), *extra).capture("root")

    def replacement(match: Match) -> Expr | None:
        factor, attrs, plain = match["factor"], match.call_of("root").attrs, match["plain"]
        if not isinstance(factor, Constant) or factor.data.size != 1 or attrs["scale"] is None:
            return None
        if "permuted" in match:
            plain = op.permute_dims(plain, axes=match.call_of("permuted").attrs["axes"])
        if plain.type != match[role].type:
            return None
        attrs = {**attrs, "scale": attrs["scale"] * float(factor.data.reshape(()))}
        operands = [plain if each == role else match[each] for each in (*ROLES, "bias") if each in match]
        return getattr(op.nn, name)(*operands, **attrs)

    return rewriter_of(pattern, replacement)


# --- what many ask ----------------------------------------------------------------------------------------------------
def _is_all(expr: Expr, number: float) -> bool:
    return isinstance(expr, Constant) and bool((expr.data.astype(np.float64) == number).all())


def _is_hidden(data: np.ndarray) -> bool:
    """Return True where all are -inf, or the lowest number of the dtype."""
    return bool((data <= ml_dtypes.finfo(data.dtype).min).all())


def _number(number: float, like: Expr) -> Constant:
    assert isinstance(like, Constant)
    return Constant(np.asarray(number, like.data.dtype))


def _is_over_last_axis(match: Match) -> bool:
    weights = match.call_of("weights")
    return weights.attrs["axis"] == weights.tensor_type.rank - 1
