"""What oneDNN can and cannot do, asked of each legal match; every no has a code and a sentence.

Codes: dtype, rank, attribute, dynamic-shape, operand, neighbours, numbers, slow, reference-implementation, light.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.ir import Call, Expr, TensorType, Var
from kernelyard.patterns import Accept, Decline, Match
from kernelyard.patterns.decoded import is_decoded
from kernelyard.transform.run_codegen import Region
from kernelyard_dnnl.composite import Composite, read_composite
from kernelyard_dnnl.memory_order import expected_order
from kernelyard_dnnl.nodes import ANCHORS, AVG_POOLS, concat_axis
from kernelyard_dnnl.post_ops import BINARY, POWERS, UNARY, Binary, exponent_of
from kernelyard_dnnl.probe import objection

Answer: TypeAlias = "Accept | Decline"
FLOAT, NARROW = "float32", "bfloat16"
ONLY_WIDE = ("nn.batch_norm",)  # its scale and shift are made in the dtype of the data, and bfloat16 is not enough
ROUNDING = ("round_prefer_floor", "round_prefer_ceil")
MIN_RUN = 16  # elements that a concat copies at a time; below, oneDNN is slower than a generated kernel
MAX_RANK = 6  # beyond it oneDNN has reference implementations for most primitives


def _declined(match: Match, *rules: Callable[[Composite], Decline | None]) -> Answer:
    """The first objection, or acceptance when oneDNN also has a real implementation for it."""
    composite = read_composite(match.bindings)
    operands = [stage.operand for stage in composite.stages if isinstance(stage, Binary)]
    for operand in operands if composite.bias is None else (composite.bias, *operands):
        if operand in match.members:
            return Decline("operand", "a post-op reads a value from inside its own group", at=operand)
    if is_decoded(match.root, match.value_of):
        return Decline("slow", "it decodes weights, which a generated kernel does as it reads them")
    for rule in (_dtypes, _stages, _powers, *rules):
        refusal = rule(composite)
        if refusal is not None:
            return refusal
    reason = objection(composite)
    if reason is not None:
        return Decline("reference-implementation", reason)
    return Accept()


# --- what holds for every primitive -----------------------------------------------------------------------------------
def _dtypes(composite: Composite) -> Decline | None:
    """One dtype for the whole group up to a cast; sums are float32 in between, whatever it is."""
    taken = (FLOAT,) if composite.anchor.op_name in ONLY_WIDE else (FLOAT, NARROW)
    first = composite.anchor.tensor_type.dtype
    for call in composite.calls:
        is_cast = call.op_name == "astype"
        first = call.tensor_type.dtype if is_cast else first
        for operand in (call,) if is_cast else (*call.args, call):
            dtype = operand.type.dtype if isinstance(operand.type, TensorType) else None
            if dtype not in taken or dtype != first:
                return Decline(
                    "dtype", f"{call.op_name} of {operand.type!r}; taken are {' or '.join(taken)}", at=operand
                )
            if operand.tensor_type.rank > MAX_RANK:
                return Decline("rank", f"rank {operand.tensor_type.rank} is above {MAX_RANK}", at=operand)
    return None


def _stages(composite: Composite) -> Decline | None:
    """A post-op keeps the shape of what the primitive computes, and its operand comes from outside the group."""
    shape = composite.anchor.tensor_type.shape
    for call in composite.following:
        if call.tensor_type.shape != shape:
            return Decline(
                "operand", f"{call.op_name} changes the shape from {_text(shape)} to {_text(call.tensor_type.shape)}"
            )
    for stage in composite.stages:
        if isinstance(stage, Binary) and not _broadcasts(stage.operand, shape):
            found = _text(stage.operand.tensor_type.shape)
            return Decline(
                "operand", f"an operand of shape {found} is not known to broadcast to {_text(shape)}", at=stage.operand
            )
    return None


def _powers(composite: Composite) -> Decline | None:
    for call in composite.calls:
        if call.op_name == "power" and exponent_of(call) not in POWERS:
            return Decline("slow", f"oneDNN computes powers of {exponent_of(call):g} one element at a time")
    return None


def _broadcasts(operand: Expr, shape: Shape) -> bool:
    own = operand.tensor_type.shape
    return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


def _known(what: str, *needed: Dim) -> Decline | None:
    unknown = [str(dim) for dim in needed if not isinstance(dim, int)]
    return Decline("dynamic-shape", f"{what} must be known, found {', '.join(unknown)}") if unknown else None


# --- one function per pattern -----------------------------------------------------------------------------------------
def convolution(match: Match) -> Answer:
    """Channels and the kernel must be known; batch and space may be symbolic."""
    return _declined(match, _known_channels)


def _known_channels(composite: Composite) -> Decline | None:
    data, weight = (operand.tensor_type for operand in composite.operands)
    return _known("the channels and the kernel", data.shape[1], *weight.shape)


def padded_convolution(match: Match) -> Answer:
    """A convolution of data padded with zeros in space; the amounts may be symbolic."""

    def zeros(composite: Composite) -> Decline | None:
        pad = composite.readers[0]
        pads, rank = pad.attrs["pads"], pad.args[0].tensor_type.rank
        if pad.attrs["mode"] != "constant" or pad.attrs["value"] != 0:
            return Decline(
                "attribute", f"padding with {pad.attrs['mode']} {pad.attrs['value']:g}; a convolution pads with zeros"
            )
        if any(amount != 0 for amount in (*pads[:2], *pads[rank : rank + 2])):
            return Decline("attribute", "padding of the batch or the channels")
        if any(isinstance(amount, int) and amount < 0 for amount in pads):
            return Decline("attribute", "negative padding")
        return _known_channels(composite)

    return _declined(match, zeros)


def matmul(match: Match) -> Answer:
    """Any rank from 1, any batch broadcasting, any size symbolic; vectors that make a scalar are not worth a call."""

    def scalar(composite: Composite) -> Decline | None:
        return Decline("rank", "a product of two vectors") if composite.anchor.tensor_type.rank == 0 else None

    def decoded(composite: Composite) -> Decline | None:
        weight = composite.anchor.args[1]
        if not is_decoded(weight, match.value_of):
            return None
        return Decline("slow", "its weights are decoded, which a generated kernel does as it reads them", at=weight)

    return _declined(match, scalar, decoded)


def softmax(match: Match) -> Answer:
    """Softmax and log-softmax over the axis that is innermost in memory."""
    return _declined(match, lambda composite: _rows(match, composite, (composite.anchor.attrs["axis"],)))


def layer_norm(match: Match) -> Answer:
    """Over the last axes, or others that are known to be innermost in memory; their sizes must be known."""

    def sizes(composite: Composite) -> Decline | None:
        axes, shape = composite.anchor.attrs["axes"], composite.anchor.tensor_type.shape
        is_trailing = tuple(axes) == tuple(range(len(shape) - len(axes), len(shape)))
        if not is_trailing and expected_order(match, composite.operands[0]) is None:
            return Decline("attribute", f"layer_norm over axes {axes}; oneDNN normalises over the last axes alone")
        return _known("the normalised sizes", *(shape[axis] for axis in axes)) or _rows(match, composite, axes)

    return _declined(match, sizes)


def _rows(match: Match, composite: Composite, axes: Sequence[int]) -> Decline | None:
    """oneDNN has real implementations for rows alone; making rows by a transposition is slower than a kernel."""
    shape, order = composite.operands[0].tensor_type.shape, expected_order(match, composite.operands[0])
    if order is None:
        return None
    order = [axis for axis in order if shape[axis] != 1]
    moving = {axis for axis in axes if shape[axis] != 1}
    if moving == set(order[len(order) - len(moving) :]):
        return None
    where = f"{composite.anchor.op_name} over axes {tuple(axes)}, which are not innermost in memory"
    return Decline("reference-implementation", f"oneDNN has only its reference implementation for {where}")


def batch_norm(match: Match) -> Answer:
    """Over axis 1 of tensors of rank 2 to 5."""

    def axis(composite: Composite) -> Decline | None:
        data = composite.anchor.args[0].tensor_type
        if composite.anchor.attrs["axis"] != 1 or not 2 <= data.rank <= 5:
            return Decline("attribute", f"batch_norm over axis {composite.anchor.attrs['axis']} of rank {data.rank}")
        return _known("the number of channels", data.shape[1])

    return _declined(match, axis)


def lrn(match: Match) -> Answer:
    """Over an odd number of channels; oneDNN has fast code for the exponent 0.75 alone, as it says itself."""

    def window(composite: Composite) -> Decline | None:
        size = composite.anchor.attrs["size"]
        if size % 2 == 0:
            return Decline("attribute", f"lrn over {size} channels; oneDNN takes as many on both sides")
        return _known("the number of channels", composite.anchor.tensor_type.shape[1])

    return _declined(match, window)


def pool(match: Match) -> Answer:
    """Max, and average with and without the padding counted."""

    def rounding(composite: Composite) -> Decline | None:
        attrs, data = composite.anchor.attrs, composite.anchor.args[0].tensor_type
        if composite.anchor.op_name in AVG_POOLS and any(step != 1 for step in attrs["dilation"]):
            return Decline("attribute", f"an average pool with dilation {attrs['dilation']}")
        if attrs["ceil_mode"] and attrs.get("count_include_pad") and not _ceil_is_floor(composite.anchor):
            return Decline("attribute", "ceil_mode, padding counted, and windows that reach past the padding")
        return _known("the number of channels", data.shape[1])

    return _declined(match, rounding)


def _ceil_is_floor(call: Call) -> bool:
    """True when the windows end exactly at the padded end, so that rounding does not matter."""
    attrs, data, out = call.attrs, call.args[0].tensor_type.shape, call.tensor_type.shape
    rank = len(attrs["pool_size"])
    for i, (size, stride, step) in enumerate(zip(attrs["pool_size"], attrs["strides"], attrs["dilation"], strict=True)):
        reach = (out[2 + i] - 1) * stride + (size - 1) * step + 1
        if reach != data[2 + i] + attrs["padding"][i] + attrs["padding"][rank + i]:
            return False
    return True


def reduce(match: Match) -> Answer:
    """Sum, mean and product over the axes that are innermost in memory; global pooling."""

    def axes(composite: Composite) -> Decline | None:
        rank, name = composite.operands[0].tensor_type.rank, composite.anchor.op_name
        if rank == 0:
            return Decline("rank", "a reduction of a scalar")
        reduced = composite.anchor.attrs["axes"] or tuple(range(rank))
        if rank > 2 and name in ("mean", "max") and tuple(reduced) == tuple(range(2, rank)):
            return None
        refusal = _rows(match, composite, reduced)
        if refusal is None and name in ("max", "min"):  # masks of attention have rows of -inf alone
            return Decline("numbers", f"oneDNN's {name} of infinities alone is a finite number, and it passes NaN over")
        return refusal

    return _declined(match, axes)


def resample(match: Match) -> Answer:
    """Nearest and linear resizing on the half-pixel grid, which is oneDNN's only one."""

    def grid(composite: Composite) -> Decline | None:
        attrs, data = composite.anchor.attrs, composite.anchor.args[0].tensor_type
        if not 3 <= data.rank <= 5:
            return Decline("rank", f"resizing a tensor of rank {data.rank}")
        if not _scales_follow_sizes(composite.anchor):
            return Decline("attribute", f"scales {attrs['scales']} that are not the ratios of the sizes")
        if attrs["method"] == "nearest" and _is_whole_upsampling(composite.anchor):
            return None
        if attrs["method"] == "linear" and attrs["coordinate_transformation_mode"] == "half_pixel":
            return None
        how = f"{attrs['method']}, {attrs['coordinate_transformation_mode']}, {attrs['nearest_mode']}"
        return Decline("attribute", f"resizing by {how}; oneDNN has half-pixel linear and whole-number nearest")

    return _declined(match, grid)


def _scales_follow_sizes(call: Call) -> bool:
    """True when every given scale is the ratio of the sizes, which is the only scale that oneDNN knows."""
    data, out = call.args[0].tensor_type.shape, call.tensor_type.shape
    for scale, before, after in zip(call.attrs["scales"], data[2:], out[2:], strict=False):
        if isinstance(before, int) and isinstance(after, int):
            if not math.isclose(scale * before, after, rel_tol=1e-6):
                return False
        elif not scale.is_integer() or int(scale) * before != after:
            return False
    return True


def _is_whole_upsampling(call: Call) -> bool:
    """True when each pixel is repeated a whole number of times and the rounding picks that pixel."""
    attrs, data, out = call.attrs, call.args[0].tensor_type.shape, call.tensor_type.shape
    whole = all(
        isinstance(dims.floordiv(o, d), int) and dims.floordiv(o, d) * d == o
        for o, d in zip(out[2:], data[2:], strict=True)
    )
    asymmetric = attrs["coordinate_transformation_mode"] == "asymmetric" and attrs["nearest_mode"] == "floor"
    centred = (
        attrs["coordinate_transformation_mode"] in ("half_pixel", "pytorch_half_pixel")
        and attrs["nearest_mode"] in ROUNDING
    )
    return whole and (asymmetric or centred)


def concat(match: Match) -> Answer:
    """Any number of tensors along one axis, unless they would be interleaved a few elements at a time."""

    def runs(composite: Composite) -> Decline | None:
        if _is_stack(composite) and any(map(_may_be_ours, (*_makers(match), *_users(match)))):
            return None  # the runtime lays whole tensors one after the other, and leaves the rest to who reads them
        orders = [expected_order(match, operand) for operand in composite.operands]
        length = _run_length(composite, max((order for order in orders if order is not None), default=None))
        if length is None or length >= MIN_RUN:
            return None
        return Decline("slow", f"oneDNN would copy {length:g} elements at a time; below {MIN_RUN} a kernel is faster")

    return _declined(match, runs)


def _is_stack(composite: Composite) -> bool:
    """True where each operand is one element thick along the axis."""
    return all(operand.tensor_type.shape[concat_axis(composite)] == 1 for operand in composite.operands)


def _run_length(composite: Composite, order: tuple[int, ...] | None) -> float | None:
    """How many elements lie side by side in an operand, on average; None where that is not known."""
    if order is None:
        return None
    shape = composite.anchor.tensor_type.shape
    inner = dims.product(shape[axis] for axis in order[order.index(concat_axis(composite)) :])
    return inner / len(composite.operands) if isinstance(inner, int) else None


def elementwise(match: Match) -> Answer:
    """Activations, and arithmetic of two tensors that may be broadcast; sizes may turn out equal at run time."""

    def scalar(composite: Composite) -> Decline | None:
        return Decline("rank", "arithmetic of scalars") if composite.anchor.tensor_type.rank == 0 else None

    return _declined(match, scalar)


def reorder(match: Match) -> Answer:
    """A transposition."""

    def scalar(composite: Composite) -> Decline | None:
        return Decline("rank", "a transposition of rank below 2") if composite.anchor.tensor_type.rank < 2 else None

    return _declined(match, scalar)


def cast(match: Match) -> Answer:
    """Between float32 and bfloat16, where a tensor enters or leaves what oneDNN computes; kernels cast on their way."""
    source, target = match.call.args[0].tensor_type, match.call.tensor_type
    if {source.dtype, target.dtype} != {FLOAT, NARROW}:
        return Decline("dtype", f"a cast from {source.dtype} to {target.dtype}; oneDNN casts {FLOAT} and {NARROW}")
    if not all(isinstance(maker, Var) or _may_be_ours(maker) for maker in _makers(match)):
        return Decline("neighbours", "a cast of what a kernel makes")
    if not all(map(_may_be_ours, _users(match))):
        return Decline("neighbours", "a cast for a kernel")
    return _declined(match)


def view(match: Match) -> Answer:
    """The same bytes seen otherwise, where tensors of oneDNN stand on both sides: their region then stays one."""
    if not all(any(map(_may_be_ours, side)) for side in (_makers(match), _users(match))):
        return Decline("neighbours", f"{match.call.op_name} with nothing of oneDNN before it or after it")
    return _declined(match)


def slices(match: Match) -> Answer:
    """Slices that go forwards, as views between tensors of oneDNN."""
    if any(step < 1 for step in match.call.attrs["strides"]):
        return Decline("attribute", f"a slice with strides {match.call.attrs['strides']}")
    return view(match)


def _makers(match: Match) -> list[Expr]:
    """What the match's operands are bound to."""
    return [match.value_of(arg) for arg in match.call.args]


def _users(match: Match) -> list[Expr]:
    """What reads the match's result."""
    return [match.value_of(user) for user in match.users(match.root)]


def _may_be_ours(value: Expr) -> bool:
    return isinstance(value, Call) and value.op_name in ANCHORS


# --- whole regions ----------------------------------------------------------------------------------------------------
LIGHT = (*UNARY, *BINARY, "power", "concat", "permute_dims", "reshape", "strided_slice", "astype")


def prune(region: Region) -> Answer:
    """Declines regions that compute element by element, or move elements, alone."""
    anchors = [read_composite(composite.bindings).anchor.op_name for _, composite in region.composites()]
    if any(name not in LIGHT for name in anchors):
        return Accept()
    return Decline(
        "light", f"a region of {', '.join(dict.fromkeys(anchors))}, which a generated kernel does on its way"
    )
