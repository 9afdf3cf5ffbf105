"""Templates of attention, plain and stacked, and the rewriters that compose it where it is decomposed.

Captures: "query", "key", "value", "bias", "second_bias", and "root" (the attention itself). Sizes are called B
(batch), S (queries), T (keys), N (heads), H (size of a head).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from operator import or_
from typing import Any

from kernelyard.dims import Shape
from kernelyard.ir.expr import Call, Constant, Expr
from kernelyard.ir.types import TensorType
from kernelyard.patterns.language.constructors import is_const, is_op, wildcard
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.traced import op
from kernelyard.patterns.legality import leaking_intermediates
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.rewriting.function_rewriter import Rewriter, rewriter_of
from kernelyard.patterns.templates import SWAP_HEADS

ROLES = ("query", "key", "value")
BIASES = ("bias", "second_bias")
VAR_LEN = ("seqstart_q", "seqstart_k", "max_seqlen_q", "max_seqlen_k")
_MOVES = ("broadcast_to", "permute_dims", "reshape")
TURN_KEYS = (0, 3, 1, 2)  # (B, N, H, T) -> (B, T, N, H)
TRANSPOSE_KEYS = (0, 2, 3, 1)  # and back
SWAP_BATCH = (1, 0, 2, 3)  # (S, B, N, H) <-> (B, S, N, H)


def attention(with_bias: bool = False, var_len: bool = False) -> Pattern:
    """Match nn.attention, nn.attention_bias or nn.attention_var_len; the latter's lengths are captured by name."""
    name = "nn.attention_var_len" if var_len else "nn.attention_bias" if with_bias else "nn.attention"
    operands = (*ROLES, *(VAR_LEN if var_len else ("bias",) if with_bias else ()))
    return is_op(name)(*(wildcard().capture(operand) for operand in operands)).capture("root")


def stacked_attention(start: str = "split", with_bias: bool = False, layout: str = "BS3NH") -> Pattern:
    """Match attention of queries, keys and values that are thirds of one tensor, captured as "stacked".

    start: how it is sliced, "split" or "strided_slice" (pieces captured as "query_slice", ...: see
    `are_thirds`). layout: "BS3NH" (each piece is reshaped to four axes: "query_reshape", ...) or "SBN3H" (each piece,
    and the result, has its first two axes swapped).
    """
    stacked = wildcard().capture("stacked")
    if start == "split":
        split = is_op("split")(stacked).has_attr(sections=_three_equal).capture("split")
        pieces = [split[i] for i in range(3)]
    else:
        pieces = [is_op("strided_slice")(stacked).capture(f"{role}_slice") for role in ROLES]
    swap = is_op("permute_dims")
    if layout == "BS3NH":
        laid_out = [is_op("reshape")(p).capture(f"{role}_reshape") for role, p in zip(ROLES, pieces, strict=True)]
    else:
        laid_out = [swap(piece).has_attr(axes=SWAP_BATCH) for piece in pieces]
    operands = [piece.capture(role) for role, piece in zip(ROLES, laid_out, strict=True)]
    bias = (wildcard().capture("bias"),) if with_bias else ()
    root = is_op("nn.attention_bias" if with_bias else "nn.attention")(*operands, *bias).capture("root")
    return root if layout == "BS3NH" else swap(root).has_attr(axes=SWAP_BATCH)


def are_thirds(match: Match) -> bool:
    """Return True if the slices of a stacked attention are the thirds of one axis, in order."""
    calls = [match.call_of(f"{role}_slice") for role in ROLES]
    axes, shape = calls[0].attrs["axes"], calls[0].args[0].tensor_type.shape
    if len(axes) != 1 or any(call.attrs["axes"] != axes or call.attrs["strides"] != (1,) for call in calls):
        return False
    size = calls[0].tensor_type.shape[axes[0]]
    begins = [call.attrs["begin"] for call in calls]
    return shape[axes[0]] == size * 3 and begins == [(size * i,) for i in range(3)]


def _three_equal(sections: tuple[Any, ...]) -> bool:
    return len(sections) == 3 and len(set(sections)) == 1


# --- composing decomposed attention -----------------------------------------------------------------------------------
Accepts = Callable[[Call], bool]  # whether an attention is to be composed


def _always(attention: Call) -> bool:
    return True


def attention_rewriter(
    layout: str = "BSNH",
    with_bias: bool = False,
    with_cast: bool = False,
    with_kv_repeat: bool = False,
    accepts: Accepts = _always,
) -> Rewriter:
    """Return a rewriter from decomposed attention to nn.attention or nn.attention_bias.

    layout: "BSNH" (queries, keys and values of four axes are brought to (B * N, S, H) and the result back) or "BSH"
    (one head). with_cast: the scores are converted around the softmax. with_kv_repeat: heads of keys and values are
    repeated first, which attention does itself. The scale, a constant factor or divisor, becomes an attribute. What
    does not fit exactly, a bias of another shape say, stays as it is.
    """
    parts = _Parts(layout, with_cast, with_kv_repeat)

    def pattern(query: Pattern, key: Pattern, value: Pattern) -> Pattern:
        return parts.pattern(query, key, value, wildcard().capture("bias") if with_bias else None)

    def replacement(match: Match) -> Expr | None:
        return _attention_of(match, layout, accepts)

    return rewriter_of(pattern, replacement)


def attention_rewriters(accepts: Accepts = _always) -> Rewriter:
    """Return all attention rewriters, the longest form first. accepts: a predicate on each attention to be composed."""
    choices = product(("BSNH", "BSH"), (True, False), (True, False), (True, False))
    kinds = [kind for kind in choices if not (kind[0] == "BSH" and kind[3])]
    heads_first = (heads_first_rewriter(*kind, accepts) for kind in product((2, 1, 0), (True, False)))
    return reduce(or_, (*(attention_rewriter(*kind, accepts) for kind in kinds), *heads_first))


def heads_first_rewriter(biases: int = 0, with_cast: bool = False, accepts: Accepts = _always) -> Rewriter:
    """Return a rewriter from attention decomposed over four axes: queries and values (B, N, S, H), keys (B, N, H, T).

    ONNX models use this form. Scores may be scaled by a number; a bias is anything added to them that does not enlarge
    their shape. biases: so many are added one after the other, a relative position and a mask, say; they become one.
    The operator is wrapped in permutations, which cancel those of the model.
    """
    parts = _Parts("BNSH", with_cast, with_kv_repeat=False)

    def pattern(query: Pattern, key: Pattern, value: Pattern) -> Pattern:
        products = op.matmul(query, key).capture("products")
        scores = parts._scale(products) | products
        for name in BIASES[:biases]:
            scores = op.add(scores, wildcard().capture(name))
        scores = scores.capture("scores")
        return op.matmul(parts._cast(op.nn.softmax(parts._cast(scores), axis=3)), value)

    return rewriter_of(pattern, lambda match: _heads_first(match, accepts))


class _Parts:
    """The pieces of one form, as patterns."""

    def __init__(self, layout: str, with_cast: bool, with_kv_repeat: bool) -> None:
        self.layout = layout
        self.with_cast = with_cast
        self.with_kv_repeat = with_kv_repeat

    def pattern(self, query: Pattern, key: Pattern, value: Pattern, bias: Pattern | None) -> Pattern:
        products = op.matmul(self._flat(query, "query"), self._transpose_keys(key)).capture("products")
        scores = self._scale(products)
        scores = scores if bias is None else op.add(scores, bias)
        weights = self._cast(op.nn.softmax(self._cast(scores), axis=2))
        result = op.matmul(weights, self._flat(self._repeat_heads(value, "value"), "value"))
        if self.layout == "BSH":
            return result
        return op.permute_dims(op.reshape(result).capture("heads"), axes=SWAP_HEADS)

    def _flat(self, x: Pattern, role: str) -> Pattern:
        if self.layout == "BSH":
            return x
        return op.reshape(op.permute_dims(x, axes=SWAP_HEADS)).capture(f"{role}_flat")

    def _transpose_keys(self, key: Pattern) -> Pattern:
        repeated = self._repeat_heads(key, "key")
        transposed = op.permute_dims(self._flat(repeated, "key"), axes=(0, 2, 1))
        if self.layout == "BSH":
            return transposed
        # What canonicalize makes of it.
        return transposed | op.reshape(op.permute_dims(repeated, axes=TRANSPOSE_KEYS)).capture("key_transposed")

    def _repeat_heads(self, x: Pattern, role: str) -> Pattern:
        if not self.with_kv_repeat:
            return x
        one_more = op.reshape(x).capture(f"{role}_one_more")
        return op.reshape(op.broadcast_to(one_more).capture(f"{role}_wider")).capture(f"{role}_repeated")

    def _scale(self, products: Pattern) -> Pattern:
        def number(name: str) -> Pattern:
            constant = is_const().capture(name)
            return (op.astype(constant) | constant) if self.with_cast else constant

        return op.multiply(products, number("factor")) | op.divide(products, number("divisor"))

    def _cast(self, x: Pattern) -> Pattern:
        return op.astype(x) if self.with_cast else x


def _attention_of(match: Match, layout: str, accepts: Accepts) -> Expr | None:
    scale = _scale_of(match)
    fits = _is_one_head if layout == "BSH" else _is_many_heads
    if scale is None or not fits(match) or _is_read_by_others(match):
        return None
    operands = [_four_axes(match[role]) if layout == "BSH" else match[role] for role in ROLES]
    shape = _shape(operands[0])
    bias = _bias_of(match, shape, _shape(operands[1])[1])
    if bias is None:
        return None
    name = "attention_bias" if bias else "attention"
    result = getattr(op.nn, name)(*operands, *bias, scale=scale)
    if not accepts(result):
        return None
    result = op.reshape(result, shape=_shape(match.root)) if layout == "BSH" else result
    return result if result.type == match.root.type else None


def _heads_first(match: Match, accepts: Accepts) -> Expr | None:
    is_scaled = "factor" in match or "divisor" in match
    scale = _scale_of(match) if is_scaled else 1.0
    if scale is None or not _are_heads_first(match) or _is_read_by_others(match):
        return None
    query, key, value = (match[role] for role in ROLES)
    operands = [op.permute_dims(query, axes=SWAP_HEADS), op.permute_dims(key, axes=TURN_KEYS)]
    operands += [op.permute_dims(value, axes=SWAP_HEADS)]
    biases = [match[name] for name in BIASES if name in match]
    if biases:
        result = op.nn.attention_bias(*operands, reduce(op.add, biases), scale=scale)
    else:
        result = op.nn.attention(*operands, scale=scale)
    if not accepts(result):
        return None
    result = op.permute_dims(result, axes=SWAP_HEADS)
    return result if result.type == match.root.type else None


def _are_heads_first(match: Match) -> bool:
    """Return True if all operands have four axes and the same heads, and the bias does not enlarge the scores."""
    operands = [match[role] for role in ROLES]
    if any(operand.tensor_type.rank != 4 for operand in operands) or len({_shape(each)[:2] for each in operands}) != 1:
        return False
    return _shape(match["scores"]) == _shape(match["products"])


def _is_read_by_others(match: Match) -> bool:
    """Return True if scores or weights are read outside the match: they would be computed twice."""
    leaking = (match.value_of(var) for var in leaking_intermediates(match))
    return any(isinstance(value, Call) and value.op_name not in _MOVES for value in leaking)


def _scale_of(match: Match) -> float | None:
    constant = match.get("factor") or match.get("divisor")
    if not isinstance(constant, Constant) or constant.data.size != 1 or constant.tensor_type.rank > 3:
        return None
    number = float(constant.data.reshape(()))
    return number if "factor" in match else 1 / number if number else None


def _shape(expr: Expr) -> Shape:
    return expr.tensor_type.shape


def _four_axes(x: Expr) -> Call:
    batch, rows, size = _shape(x)
    return op.reshape(x, shape=(batch, rows, 1, size))


def _is_one_head(match: Match) -> bool:
    ranks = [match[role].tensor_type.rank for role in ROLES]
    batches = {_shape(match[role])[0] for role in ROLES}
    return ranks == [3, 3, 3] and len(batches) == 1


def _is_many_heads(match: Match) -> bool:
    """Return True if every reshape only merges batch and heads, or splits them again."""
    for role in ROLES:
        if match[role].tensor_type.rank != 4 or not repeats_heads(match, role, 2):
            return False
        batch, rows, heads, size = _shape(match.get(f"{role}_repeated") or match[role])
        is_transposed = f"{role}_transposed" in match
        merged = (batch * heads, size, rows) if is_transposed else (batch * heads, rows, size)
        if _shape(match[f"{role}_transposed" if is_transposed else f"{role}_flat"]) != merged:
            return False
    batch, rows, heads, _ = _shape(match["query"])
    result = _shape(match["heads"])
    return len(result) == 4 and result == (batch, heads, rows, _shape(match["value"])[3])


def repeats_heads(match: Match, role: str, axis: int) -> bool:
    """Return True if each head is repeated in place: axis 2 of (B, T, M, H) -> (B, T, M, 1, H) -> (B, T, M, g, H) ->
    (B, T, N, H), or axis 1 of (B, M, T, H); also where nothing is repeated."""
    if f"{role}_repeated" not in match:
        return True
    shape, wider = _shape(match[role]), _shape(match[f"{role}_wider"])
    if len(shape) != 4 or len(wider) != 5:
        return False
    before, heads, after, group = shape[:axis], shape[axis], shape[axis + 1 :], wider[axis + 1]
    is_wider = wider == (*before, heads, group, *after)
    is_one_more = _shape(match[f"{role}_one_more"]) == (*before, heads, 1, *after)
    return is_one_more and is_wider and _shape(match[f"{role}_repeated"]) == (*before, heads * group, *after)


BiasRule = Callable[[Any, Any, Any, Any], tuple[Shape, Shape]]

# From batch, heads, queries, keys: a shape in which the bias is written, and its shape with four axes.
BIAS_SHAPES: tuple[BiasRule, ...] = (
    lambda b, n, s, t: ((b * n, s, t), (b, n, s, t)),
    lambda b, n, s, t: ((b * n, 1, t), (b, n, 1, t)),
    lambda b, n, s, t: ((b, s, t), (b, 1, s, t)),
    lambda b, n, s, t: ((b, 1, t), (b, 1, 1, t)),
    lambda b, n, s, t: ((1, s, t), (1, 1, s, t)),
    lambda b, n, s, t: ((s, t), (1, 1, s, t)),
    lambda b, n, s, t: ((1, 1, t), (1, 1, 1, t)),
    lambda b, n, s, t: ((1, t), (1, 1, 1, t)),
    lambda b, n, s, t: ((t,), (1, 1, 1, t)),
)


def _bias_of(match: Match, queries: Shape, keys: Any) -> tuple[Expr, ...] | None:
    """Return the bias with four axes, () without a bias, None if its shape is none of `BIAS_SHAPES`."""
    bias = match.get("bias")
    if bias is None:
        return ()
    if not isinstance(bias.type, TensorType):
        return None
    batch, rows, heads, _ = queries
    for rule in BIAS_SHAPES:
        written, wanted = rule(batch, heads, rows, keys)
        if bias.type.shape == written:
            return (op.reshape(bias, shape=wanted),)
    return None
