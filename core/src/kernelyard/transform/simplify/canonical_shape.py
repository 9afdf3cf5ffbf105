"""Canonicalization of operators that move elements, and of reductions over nothing."""

from __future__ import annotations

import math

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Call, Expr, FunctionMutator, Tuple
from kernelyard.transform.pass_infra.rewrite_rule import Rule, defining_call, make


def _remove_identity(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a change of shape that changes nothing."""
    return call.args[0] if call.args[0].type == call.type else None


def _merge_nested(*inner_ops: str) -> Rule:
    """Keep the outer shape alone: reshape(reshape(x)), broadcast_to(broadcast_to(x))."""

    def rule(mutator: FunctionMutator, call: Call) -> Expr | None:
        inner = defining_call(mutator, call.args[0], *inner_ops)
        return Call(call.op, inner.args, call.attrs) if inner else None

    return rule


def _broadcast_of_ones(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a broadcast that repeats nothing only adds axes of size 1."""
    x = call.args[0].tensor_type
    return make("reshape", call.args[0], shape=call.attrs["shape"]) if x.numel == call.tensor_type.numel else None


def _permute_of_permute(mutator: FunctionMutator, call: Call) -> Expr | None:
    inner = defining_call(mutator, call.args[0], "permute_dims")
    if inner is None:
        return None
    axes = tuple(inner.attrs["axes"][axis] for axis in call.attrs["axes"])
    return make("permute_dims", inner.args[0], axes=axes)


def _permute_in_place(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a permutation that moves axes of size 1 alone is a reshape; one that moves nothing is no operation."""
    x, axes = call.args[0], call.attrs["axes"]
    if axes == tuple(range(len(axes))):
        return x
    moved = [axis for axis in axes if x.tensor_type.shape[axis] != 1]
    return make("reshape", x, shape=call.tensor_type.shape) if moved == sorted(moved) else None


def _reshape_before_permute(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Reshape before axes are permuted where that makes one reshape of two: reshape(permute(reshape(x)))."""
    permute = defining_call(mutator, call.args[0], "permute_dims")
    inner = permute and defining_call(mutator, permute.args[0], "reshape")
    return _exchange(mutator, call, permute, inner.args[0]) if permute and inner else None


def _permute_of_reshaped_permute(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Reshape before or after both permutations where that makes one of them: permute(reshape(permute(x)))."""
    reshape = defining_call(mutator, call.args[0], "reshape")
    inner = reshape and defining_call(mutator, reshape.args[0], "permute_dims")
    if not reshape or not inner:
        return None
    exchanged = _exchange(mutator, reshape, inner, inner.args[0])
    if exchanged is None:
        return _permute_before_reshape(mutator, call, reshape, inner)
    axes = tuple(exchanged.attrs["axes"][axis] for axis in call.attrs["axes"])
    return make("permute_dims", exchanged.args[0], axes=axes)


def _permute_before_reshape(mutator: FunctionMutator, outer: Call, reshape: Call, inner: Call) -> Call | None:
    """Return the reshape of one permutation, where the outer one moves what is merged or split as a whole."""
    groups = _group_axes(inner.tensor_type.shape, reshape.tensor_type.shape) or []
    place = {axis: place for place, axis in enumerate(outer.attrs["axes"])}
    groups.sort(key=lambda group: [place[axis] for axis in group[1]])
    if [axis for _, after in groups for axis in after] != list(outer.attrs["axes"]):
        return None
    axes = tuple(inner.attrs["axes"][axis] for before, _ in groups for axis in before)
    permuted = mutator.emit(make("permute_dims", inner.args[0], axes=axes))
    return make("reshape", permuted, shape=outer.tensor_type.shape)


def _exchange(mutator: FunctionMutator, reshape: Call, permute: Call, x: Expr) -> Call | None:
    """Return the permutation of a reshape of `x`, which has the elements that `permute` reads; None if there is none.

    Axes that the reshape merges or splits must be neighbours before the permutation, too."""
    shape, order = reshape.tensor_type.shape, permute.attrs["axes"]
    groups = _group_axes(permute.tensor_type.shape, shape)
    if groups is None:
        return None
    sources = [[order[axis] for axis in before] for before, _ in groups]
    if any(list(range(axes[0], axes[0] + len(axes))) != axes for axes in sources):
        return None
    moved = [axis for _, after in sorted(zip(sources, [after for _, after in groups], strict=True)) for axis in after]
    reshaped = mutator.emit(make("reshape", x, shape=tuple(shape[axis] for axis in moved)))
    return make("permute_dims", reshaped, axes=tuple(moved.index(axis) for axis in range(len(shape))))


def _group_axes(before: Shape, after: Shape) -> list[tuple[range, range]] | None:
    """Return the axes of two shapes, taken together as few as have the same number of elements; None for others."""
    groups: list[tuple[range, range]] = []
    start, begin = 0, 0
    for stop in range(1, len(before) + 1):
        size = dims.product(before[start:stop])
        ends = range(len(after), begin - 1, -1) if stop == len(before) else range(begin, len(after) + 1)
        end = next((end for end in ends if dims.product(after[begin:end]) == size), None)
        if end is not None:
            groups.append((range(start, stop), range(begin, end)))
            start, begin = stop, end
    return groups if start == len(before) and begin == len(after) else None


def _concat(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Drop operands without elements; a single operand needs no concat."""
    axis = call.attrs["axis"]
    kept = [arg for arg in call.args if arg.tensor_type.shape[axis] != 0]
    if len(kept) == 1:
        return kept[0]
    return None if len(kept) in (0, len(call.args)) else make("concat", *kept, axis=axis)


def _split_in_one(mutator: FunctionMutator, call: Call) -> Expr | None:
    return Tuple(call.args) if len(call.attrs["sections"]) == 1 else None


def _whole_slice(mutator: FunctionMutator, call: Call) -> Expr | None:
    is_plain = all(stride == 1 for stride in call.attrs["strides"]) and not any(call.attrs["begin"])
    return call.args[0] if is_plain and call.args[0].type == call.type else None


def _slice_of_slice(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return two slices of different axes, or with stride 1 of the same, are one."""
    inner = defining_call(mutator, call.args[0], "strided_slice")
    if inner is None or any(stride != 1 for c in (inner, call) for stride in c.attrs["strides"]):
        return None
    ranges = {axis: (begin, end) for axis, begin, end in _ranges(inner)}
    for axis, begin, end in _ranges(call):
        offset = ranges[axis][0] if axis in ranges else 0
        ranges[axis] = (begin + offset, end + offset)
    axes = tuple(sorted(ranges))
    begins, ends = zip(*(ranges[axis] for axis in axes), strict=True)
    return make("strided_slice", inner.args[0], axes=axes, begin=begins, end=ends, strides=(1,) * len(axes))


def _ranges(call: Call) -> list[tuple]:
    return list(zip(call.attrs["axes"], call.attrs["begin"], call.attrs["end"], strict=True))


def _nothing(attribute: str, neutral: int) -> Rule:
    """Return an operator whose attribute has only its neutral value."""

    def rule(mutator: FunctionMutator, call: Call) -> Expr | None:
        return call.args[0] if all(value == neutral for value in call.attrs[attribute]) else None

    return rule


def _flip_nothing(mutator: FunctionMutator, call: Call) -> Expr | None:
    return call.args[0] if all(call.args[0].tensor_type.shape[axis] == 1 for axis in call.attrs["axes"]) else None


def _resolve_axes(call: Call) -> tuple[int, ...]:
    return call.attrs["axes"] or tuple(range(call.args[0].tensor_type.rank))


def _reduce_ones(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Replace a reduction over axes of size 1 by a reshape."""
    x = call.args[0].tensor_type
    is_trivial = all(x.shape[axis] == 1 for axis in _resolve_axes(call))
    return make("reshape", call.args[0], shape=call.tensor_type.shape) if is_trivial else None


def _explicit_axes(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a reduction over all axes names them."""
    axes = _resolve_axes(call)
    if not axes or call.attrs["axes"]:
        return None
    return make(call.op_name, call.args[0], axes=axes, keepdims=call.attrs["keepdims"])


def _padding_of_convolution(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Fold a zero pad of the image into the padding of the convolution."""
    pad = defining_call(mutator, call.args[0], "pad")
    if pad is None or not _pads_with(pad, 0.0):
        return None
    return _with_padding(call, pad)


def _padding_of_average(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Fold a zero pad of the image into the padding of the average pool, if it counts padding."""
    pad = defining_call(mutator, call.args[0], "pad")
    is_counted = call.attrs["count_include_pad"] or not any(call.attrs["padding"])
    if pad is None or not is_counted or not _pads_with(pad, 0.0):
        return None
    return _with_padding(call, pad, count_include_pad=True)


def _padding_of_maximum(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Fold padding into a max pool if its value cannot win: -inf, or zeros around values that are never negative."""
    pad = defining_call(mutator, call.args[0], "pad")
    if pad is None:
        return None
    is_dense = all(step == 1 for step in call.attrs["dilation"])  # so that each window has an element of the image
    is_least = _pads_with(pad, 0.0) and is_dense and _is_nonnegative(mutator, pad.args[0])
    return _with_padding(call, pad) if is_least or _pads_with(pad, -math.inf) else None


def _clip_window(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Shorten a window to the padded image where it reaches beyond (ceil_mode): nothing is there, nor counted."""
    attrs, rank = call.attrs, len(call.attrs["pool_size"])
    padding, spatial = attrs["padding"], call.args[0].tensor_type.shape[2:]
    padded = [size + padding[axis] + padding[rank + axis] for axis, size in enumerate(spatial)]
    clipped = tuple(
        min(size, room) if isinstance(room, int) and step == 1 else size
        for size, room, step in zip(attrs["pool_size"], padded, attrs["dilation"], strict=True)
    )
    if clipped == attrs["pool_size"] or 0 in spatial:  # an image without elements has windows of padding alone
        return None
    new = Call(call.op, call.args, {**attrs, "pool_size": clipped})
    return new if new.type == call.type else None


def _maximum_of_sequence(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return the maximum of whole sequences as a reduction, which generated convolutions take in; over an image it
    stays a pool, which keeps the layout of convolutions."""
    x, attrs = call.args[0], call.attrs
    if attrs["pool_size"] != x.tensor_type.shape[2:] or any((*attrs["padding"], *(d - 1 for d in attrs["dilation"]))):
        return None
    return make("max", x, axes=(2,), keepdims=True)


def _is_nonnegative(mutator: FunctionMutator, x: Expr) -> bool:
    if defining_call(mutator, x, "nn.relu", "sigmoid") is not None:
        return True
    clip = defining_call(mutator, x, "clip")
    return clip is not None and clip.attrs["min"] is not None and clip.attrs["min"] >= 0


def _pads_with(pad: Call, value: float) -> bool:
    return pad.attrs["mode"] == "constant" and pad.attrs["value"] == value


def _with_padding(call: Call, pad: Call, **attrs: bool) -> Expr | None:
    """Return a window operator that does the `pad` of its image itself; None where its result would be another."""
    pads = [amount for amount in pad.attrs["pads"] if isinstance(amount, int) and amount >= 0]
    rank = pad.tensor_type.rank
    begins, ends = pads[:rank], pads[rank:]
    if len(pads) != 2 * rank or any(begins[:2] + ends[:2]):
        return None
    around = (*begins[2:], *ends[2:])
    padding = tuple(a + b for a, b in zip(call.attrs["padding"], around, strict=True))
    try:
        new = Call(call.op, [pad.args[0], *call.args[1:]], {**call.attrs, **attrs, "padding": padding})
    except TypeInferenceError:  # a pool may not be wider padded than its window reaches
        return None
    return new if new.type == call.type else None


_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_AVERAGES = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
_MAXIMA_OF_IMAGES = ("nn.max_pool2d", "nn.max_pool3d")
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")

SHAPE_RULES: dict[str, tuple[Rule, ...]] = {
    "reshape": (_remove_identity, _merge_nested("reshape"), _reshape_before_permute),
    "broadcast_to": (_remove_identity, _broadcast_of_ones, _merge_nested("broadcast_to")),
    "permute_dims": (_permute_in_place, _permute_of_permute, _permute_of_reshaped_permute),
    "concat": (_concat,),
    "split": (_split_in_one,),
    "strided_slice": (_whole_slice, _slice_of_slice),
    "pad": (_nothing("pads", 0),),
    "tile": (_nothing("repeats", 1),),
    "flip": (_flip_nothing,),
    **dict.fromkeys(_CONVOLUTIONS, (_padding_of_convolution,)),
    **dict.fromkeys(_AVERAGES, (_padding_of_average, _clip_window)),
    "nn.max_pool1d": (_padding_of_maximum, _clip_window, _maximum_of_sequence),
    **dict.fromkeys(_MAXIMA_OF_IMAGES, (_padding_of_maximum, _clip_window)),
    **dict.fromkeys(_REDUCTIONS, (_explicit_axes, _reduce_ones)),
}
