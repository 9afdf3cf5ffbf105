"""Random graphs for code generators: operators of all kinds that fuse, over odd, unknown and empty sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from graph_builder import Draw, FusedGraph, GraphBuilder, Value
from hypothesis import strategies as st

from kernelyard import dims, dtypes

SIZES = (1, 2, 3, 5, 8, 16, 17, 33)
Step = Callable[[GraphBuilder, Value], None]

# --- steps ------------------------------------------------------------------------------------------------------------
# Each appends a call on a value where one fits. Gains are bounds of the functions' slopes on moderate numbers.
SMOOTH = {
    **dict.fromkeys(("tanh", "sigmoid", "sin", "cos", "erf", "atan", "asinh"), 1.2),
    **dict.fromkeys(("nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.mish", "nn.hard_swish", "nn.softplus", "nn.elu"), 1.6),
    **dict.fromkeys(("nn.softsign", "nn.selu", "nn.celu", "nn.hard_sigmoid"), 2.0),
}
EXACT = ("abs", "negative", "nn.relu")
JUMPING = ("floor", "ceil", "round", "trunc", "sign")
REDUCERS = {"sum": 1.0, "mean": 1.0, "max": 1.0, "min": 1.0}
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def _smooth(g: GraphBuilder, x: Value) -> None:
    name = g.pick(*SMOOTH)
    if x.is_float:
        g.call(name, x, gain=SMOOTH[name])


def _exact(g: GraphBuilder, x: Value) -> None:
    if x.dtype != "bool":
        g.call(g.pick(*EXACT[:2]) if not x.is_float else g.pick(*EXACT), x, exact=True)


def _jumping(g: GraphBuilder, x: Value) -> None:
    if x.is_float:
        g.call(g.pick(*JUMPING), x, exact=True, gain=0.0)


def _with_constant(g: GraphBuilder, x: Value) -> None:
    if x.dtype == "bool":
        return
    shape = tuple(g.pick(1, dim) if isinstance(dim, int) else 1 for dim in x.shape[g.number(0, x.rank) :])
    g.call(g.pick("add", "subtract", "multiply", "maximum", "minimum"), x, g.constant(shape, x.dtype))


def _with_other(g: GraphBuilder, x: Value) -> None:
    others = [v for v in g.values if v.dtype == x.dtype and v.rank <= x.rank]
    if x.dtype == "bool":
        g.call(g.pick("logical_and", "logical_or", "logical_xor"), x, g.pick(*others), exact=True)
        return
    name = g.pick("add", "subtract", "maximum", "minimum", "multiply")
    bound = max(
        (float(np.abs(a.astype(np.float64)).max()) for v in (x, *others) for a in v.arrays if a.size), default=1
    )
    g.call(name, x, g.pick(*others), exact=not x.is_float, gain=max(bound, 1.0) if name == "multiply" else 1.0)


def _comparison(g: GraphBuilder, x: Value) -> None:
    others = [v for v in g.values if v.dtype == x.dtype and v.error == 0.0]
    if x.error == 0.0 and x.dtype != "bool":
        g.call(g.pick(*COMPARISONS), x, g.pick(*others), exact=True, gain=0.0)


def _where(g: GraphBuilder, x: Value) -> None:
    conditions = [v for v in g.values if v.dtype == "bool"]
    others = [v for v in g.values if v.dtype == x.dtype]
    if conditions:
        g.call("where", g.pick(*conditions), x, g.pick(*others), exact=True)


def _cast(g: GraphBuilder, x: Value) -> None:
    target = g.pick("float32", "float16", "bfloat16", "int32", "int64", "float64", "bool", "int8")
    narrows = dtypes.is_float(target) and x.is_float and dtypes.itemsize(target) < dtypes.itemsize(x.dtype)
    to_integer = not dtypes.is_float(target)
    g.call("astype", x, exact=not narrows, gain=0.0 if to_integer else 1.0, dtype=target)


def _reduction(g: GraphBuilder, x: Value) -> None:
    if x.dtype == "bool" or not x.rank:
        return
    axes = tuple(sorted(g.draw(st.sets(st.sampled_from(range(x.rank)), min_size=1))))
    name = g.pick(*REDUCERS)
    count = max(int(np.prod([array.shape[n] for n in axes])) for array in x.arrays)
    gain = float(max(count, 1)) if name == "sum" else 1.0
    if name == "mean" and not count and not x.is_float:
        return  # no integer stands for "not a number"
    exact = name in ("max", "min") or not x.is_float
    g.call(name, x, exact=exact, gain=gain, axes=axes, keepdims=g.pick(True, False))


def _arg(g: GraphBuilder, x: Value) -> None:
    if x.rank and x.error == 0.0 and x.dtype != "bool":
        attrs = {"axis": g.number(0, x.rank - 1), "keepdims": g.pick(True, False)}
        g.call(g.pick("argmax", "argmin"), x, exact=True, gain=0.0, **attrs, select_last_index=g.pick(True, False))


def _softmax(g: GraphBuilder, x: Value) -> None:
    if x.rank and x.is_float:
        g.call(g.pick("nn.softmax", "nn.log_softmax"), x, gain=2.0, axis=g.number(-1, x.rank - 1))


def _norm(g: GraphBuilder, x: Value) -> None:
    size = x.shape[-1] if x.rank else None
    if isinstance(size, int) and size and x.is_float:  # a large epsilon: rows of equal elements stay harmless
        parameters = [g.constant((size,), x.dtype) for _ in range(2)]
        if g.pick(True, False):
            g.call("nn.layer_norm", x, *parameters, gain=12.0, axes=(x.rank - 1,), epsilon=0.1)
        else:
            g.call("nn.rms_norm", x, parameters[0], gain=12.0, axes=(x.rank - 1,), epsilon=0.1)


def _matmul(g: GraphBuilder, x: Value) -> None:
    size = x.shape[-1] if x.rank else None
    if isinstance(size, int) and x.dtype in ("float32", "float64", "int32", "float16"):
        scale = 1 / max(size, 1) ** 0.5
        shape = (size, g.pick(*SIZES)) if x.rank < 3 or g.pick(True, False) else (1, size, g.pick(*SIZES))
        g.call("matmul", x, g.constant(shape, x.dtype, scale), exact=not x.is_float, gain=max(size, 1) ** 0.5)


def _products(g: GraphBuilder, x: Value) -> None:
    """Rows of a value with each other, as attention does it."""
    if x.rank >= 2 and x.is_float:
        axes = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
        g.call("permute_dims", x, exact=True, axes=axes)
        gain = max(1.0, x.largest) * max(array.shape[-1] for array in x.arrays)
        g.call("matmul", x, g.values[-1], gain=gain)


def _conv(g: GraphBuilder, x: Value) -> None:
    rank = x.rank - 2
    if rank not in (1, 2) or x.dtype != "float32" or not isinstance(x.shape[1], int) or not x.shape[1]:
        return
    groups = g.pick(1, x.shape[1])
    shape = (groups * g.number(1, 3), x.shape[1] // groups, *(g.number(1, 3) for _ in range(rank)))
    attrs = {
        "groups": groups,
        "padding": tuple(g.number(0, 2) for _ in range(2 * rank)),
        "strides": (g.number(1, 2),) * rank,
        "dilation": (g.number(1, 2),) * rank,
    }
    gain = float(np.prod(shape[1:])) ** 0.5
    g.call(f"nn.conv{rank}d", x, g.constant(shape, x.dtype, 1 / gain), gain=gain, **attrs)


def _pool(g: GraphBuilder, x: Value) -> None:
    rank = x.rank - 2
    if rank in (1, 2) and x.dtype == "float32":
        name = g.pick("max", "avg")
        attrs = {
            "pool_size": (g.number(1, 3),) * rank,
            "padding": (g.number(0, 1),) * 2 * rank,
            "strides": (g.number(1, 2),) * rank,
        }
        g.call(f"nn.{name}_pool{rank}d", x, exact=name == "max", gain=1.0, **attrs)


def _permutation(g: GraphBuilder, x: Value) -> None:
    g.call("permute_dims", x, exact=True, axes=tuple(g.draw(st.permutations(range(x.rank)))))


def _flattening(g: GraphBuilder, x: Value) -> None:
    keep = g.number(0, x.rank)
    g.call("reshape", x, exact=True, shape=(*x.shape[:keep], dims.product(x.shape[keep:])))


def _new_axis(g: GraphBuilder, x: Value) -> None:
    place = g.number(0, x.rank)
    if x.rank < 5:
        g.call("reshape", x, exact=True, shape=(*x.shape[:place], 1, *x.shape[place:]))


def _broadcast(g: GraphBuilder, x: Value) -> None:
    if x.rank < 5:
        shape = tuple(g.pick(3, 17) if dim == 1 else dim for dim in x.shape)
        g.call("broadcast_to", x, exact=True, shape=(*g.pick((), (2,)), *shape))


def _concatenation(g: GraphBuilder, x: Value) -> None:
    if x.rank:
        others = [v for v in g.values if v.dtype == x.dtype and v.rank == x.rank]
        g.call("concat", x, g.pick(*others), exact=True, axis=g.number(0, x.rank - 1))


def _slice(g: GraphBuilder, x: Value) -> None:
    known = [n for n, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 1]
    if known:
        axis = g.pick(*known)
        size = int(x.shape[axis])  # pyright: ignore[reportArgumentType]
        begin = g.number(0, size - 1)
        end = g.number(begin + 1, size)
        g.call("strided_slice", x, exact=True, axes=(axis,), begin=(begin,), end=(end,), strides=(g.number(1, 3),))


def _split(g: GraphBuilder, x: Value) -> None:
    known = [n for n, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 1]
    if known:
        axis = g.pick(*known)
        size = int(x.shape[axis])  # pyright: ignore[reportArgumentType]
        first = g.pick(size // 2, g.number(1, size - 1))
        g.split(x, axis, (first, size - first))


def _siblings(g: GraphBuilder, x: Value) -> None:
    """Several functions of one value, and one of another of its shape: kernels that may become one."""
    for name in g.draw(st.lists(st.sampled_from(sorted(SMOOTH)), min_size=2, max_size=3, unique=True)):
        if x.is_float:
            g.call(name, x, gain=SMOOTH[name])
    others = [v for v in g.values if v.shape == x.shape and v.dtype != "bool"]
    if others:
        g.call("negative", g.pick(*others), exact=True)


def _sibling_reductions(g: GraphBuilder, x: Value) -> None:
    """Two reductions of the same rows."""
    if x.rank and x.is_float:
        for name in ("max", "mean"):
            g.call(name, x, exact=name == "max", axes=(x.rank - 1,), keepdims=g.pick(True, False))


def _pad(g: GraphBuilder, x: Value) -> None:
    if x.rank and x.dtype != "bool":
        pads = tuple(g.number(0, 2) for _ in range(2 * x.rank))
        g.call("pad", x, exact=True, pads=pads, mode=g.pick("constant", "edge", "reflect"), value=g.pick(0.0, 1.0))


def _flip(g: GraphBuilder, x: Value) -> None:
    if x.rank:
        g.call("flip", x, exact=True, axes=(g.number(0, x.rank - 1),))


def _take(g: GraphBuilder, x: Value) -> None:
    known = [n for n, dim in enumerate(x.shape) if isinstance(dim, int) and dim]
    if known:
        axis = g.pick(*known)
        size = int(x.shape[axis])  # pyright: ignore[reportArgumentType]
        indices = [g.number(-size, size - 1) for _ in range(g.number(0, 4))]
        g.call("take", x, np.array(indices, np.int64), exact=True, axis=axis)


def _cumsum(g: GraphBuilder, x: Value) -> None:
    if x.rank and x.dtype in ("float32", "int64", "int32"):
        axis = g.number(0, x.rank - 1)
        attrs = {"exclusive": g.pick(True, False), "reverse": g.pick(True, False)}
        gain = float(max(1, *(array.shape[axis] for array in x.arrays)))
        g.call("cumsum", x, exact=not x.is_float, gain=gain, axis=axis, **attrs)


def _triangle(g: GraphBuilder, x: Value) -> None:
    if x.rank >= 2:
        g.call("trilu", x, exact=True, k=g.number(-1, 1), upper=g.pick(True, False))


def _quantization(g: GraphBuilder, x: Value) -> None:
    if x.dtype == "float32":  # scales are powers of two: products are exact
        scale, zero = np.asarray(0.25, np.float32), np.asarray(3, np.int8)
        g.call("quantize", x, scale, zero, exact=True, gain=0.0, dtype="int8")
        if g.values[-1].dtype == "int8":
            g.call("dequantize", g.values[-1], scale, zero, exact=True)


STEPS: tuple[Step, ...] = (
    *(_smooth, _smooth, _with_constant, _with_constant, _with_other, _with_other, _reduction, _reduction, _cast),
    *(_exact, _jumping, _comparison, _where, _arg, _softmax, _norm, _matmul, _products, _conv, _pool),
    *(_permutation, _flattening, _new_axis, _broadcast, _concatenation, _slice, _pad, _flip, _take),
    *(_cumsum, _triangle, _quantization),
    *(_split, _siblings, _siblings, _sibling_reductions),
)


@st.composite
def fused_graphs(draw: Draw, max_ops: int = 16) -> FusedGraph:
    """Random graphs with one to five outputs; some have unknown sizes, and then two cases, some have empty axes."""
    unknown = draw(st.booleans())
    some = st.sampled_from(SIZES)  # what is unknown is never 0
    sizes = [{"n": draw(some), "m": draw(some)} for _ in range(2 if unknown else 1)]
    g = GraphBuilder(draw, sizes)
    size = st.sampled_from((*SIZES, 0)) if draw(st.integers(0, 5)) == 5 else some
    axis = st.one_of(st.sampled_from([dims.symbol("n"), dims.symbol("m")]), size) if unknown else size
    common = [draw(axis) for _ in range(draw(st.integers(1, 4)))]
    for number in range(draw(st.integers(1, 3))):
        kept = common if number == 0 else common[draw(st.integers(0, len(common))) :]
        dtype = draw(st.sampled_from(["float32"] * 6 + ["float16", "bfloat16", "float64", "int32", "int64", "bool"]))
        g.input([dim if number == 0 or draw(st.integers(0, 3)) else 1 for dim in kept], dtype)
    for _ in range(draw(st.integers(max_ops // 2, max_ops))):
        step = draw(st.sampled_from(STEPS))
        step(g, draw(st.sampled_from(g.values[-3:])))
    others = draw(st.lists(st.sampled_from(g.values), max_size=4))
    return g.finish(list(dict.fromkeys([g.values[-1], *others])))
