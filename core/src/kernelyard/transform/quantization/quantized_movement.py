"""Operators that hand on stored numbers as they are, so that they may come before a dequantize as well as after it.

One row per operator: the conditions are those of onnxruntime's rules for QDQ models
(`qdq_selector_action_transformer.cc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.ir import Call, Constant, Expr

# From a call and an axis of its operand to that axis of the result; None where it is cut up or merged with others.
AxisRule: TypeAlias = Callable[[Call, int], "int | None"]
# From a call and the dequantize of its operand to a reason against an exchange, or None.
Condition: TypeAlias = Callable[[Call, Call], "str | None"]


def _always(call: Call, dequantize: Call) -> str | None:
    return None


@dataclass(frozen=True)
class Movement:
    """How an operator hands on elements of its first operand, or of all where it is `variadic`.

    attrs: the attributes of the call on stored numbers, where they are others.
    """

    axis: AxisRule
    condition: Condition = _always
    variadic: bool = False
    attrs: Callable[[Call, Call], Mapping[str, Any]] = lambda call, dequantize: call.attrs

    def data(self, call: Call) -> Sequence[Expr]:
        """Return the operands whose elements are handed on."""
        return call.args if self.variadic else call.args[:1]


def refusal(call: Call, dequantizes: Sequence[Call]) -> str | None:
    """Return why a call may not come before the dequantize of its operand, or of each where it has several.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder, get_op
        >>> b = FunctionBuilder()
        >>> x = b.input("x", (2, 3), "int8")
        >>> zero, scales = Constant(np.int8(0)), [Constant(np.float32(scale)) for scale in (1, 2)]
        >>> first, second = (Call(get_op("dequantize"), [x, scale, zero]) for scale in scales)
        >>> concat = Call(get_op("concat"), [b.bind(first), b.bind(second)], {"axis": 0})
        >>> refusal(concat, [first, second])
        'the scales differ'
    """
    movement = MOVEMENTS.get(call.op_name)
    if movement is None:
        return f"{call.op_name} computes with its operand"
    first, *others = dequantizes
    for other in others:
        reason = difference(first, other)
        if reason is not None:
            return reason
    axis = first.attrs["axis"]
    if axis is not None and movement.axis(call, axis % call.args[0].tensor_type.rank) is None:
        return "the axis of the scales does not stay an axis"
    return movement.condition(call, first)


def difference(one: Call, other: Call) -> str | None:
    """Return what differs between the parameters of two calls of quantize or dequantize, or None."""
    if get_stored_dtype(one) != get_stored_dtype(other):
        return "the stored dtypes differ"
    for place, name in ((1, "scales"), (2, "zero points")):
        if not _is_equal(one.args[place], other.args[place]):
            return f"the {name} differ"
    has_vectors = any(arg.tensor_type.rank for arg in one.args[1:])
    if has_vectors and one.attrs["axis"] != other.attrs["axis"]:
        return "the axes of the scales differ"
    return None


def get_stored_dtype(call: Call) -> str:
    """Return the dtype of the stored numbers of a quantize or dequantize."""
    return call.tensor_type.dtype if call.op_name == "quantize" else call.args[0].tensor_type.dtype


def has_positive_scales(call: Call) -> bool:
    """Return True where all scales of a quantize or dequantize are constants, and normal positive numbers."""
    scale = call.args[1]
    if not isinstance(scale, Constant):
        return False
    values = scale.data.astype(np.float32)
    return bool((np.isfinite(values) & (values >= np.finfo(np.float32).tiny)).all())


def _is_equal(one: Expr, other: Expr) -> bool:
    if one is other:
        return True
    if not isinstance(one, Constant) or not isinstance(other, Constant):
        return False
    return bool(np.array_equal(one.data, other.data))


# --- axes -------------------------------------------------------------------------------------------------------------
def _reshape_axis(call: Call, axis: int) -> int | None:
    before, after = call.args[0].tensor_type.shape, call.tensor_type.shape
    count = dims.product(before[:axis])
    places = [place for place in range(len(after)) if dims.product(after[:place]) == count]
    return next((place for place in places if after[place] == before[axis]), None)


def _permute_axis(call: Call, axis: int) -> int | None:
    return call.attrs["axes"].index(axis)


def _keep_axis_from_last(call: Call, axis: int) -> int | None:
    """Broadcasting and tiling count axes from the last one."""
    place = axis + call.tensor_type.rank - call.args[0].tensor_type.rank
    return place if call.tensor_type.shape[place] == call.args[0].tensor_type.shape[axis] else None


def _keep_axis_of_same_size(call: Call, axis: int) -> int | None:
    """Keep an axis along which nothing happens."""
    return axis if call.tensor_type.shape[axis] == call.args[0].tensor_type.shape[axis] else None


def _keep_unlisted_axis(call: Call, axis: int) -> int | None:
    return None if axis in call.attrs["axes"] else axis


def _keep_other_axis(call: Call, axis: int) -> int | None:
    return None if axis == call.attrs["axis"] % call.args[0].tensor_type.rank else axis


def _take_axis(call: Call, axis: int) -> int | None:
    taken, more = call.attrs["axis"] % call.args[0].tensor_type.rank, call.args[1].tensor_type.rank - 1
    return None if axis == taken else axis + (more if axis > taken else 0)


def _keep_batch_or_channels(call: Call, axis: int) -> int | None:
    """Return the axis if it is batch or channels; windows and sizes concern the other axes."""
    return axis if axis < 2 else None


def _drop_axis(call: Call, axis: int) -> int | None:
    return None


# --- conditions -------------------------------------------------------------------------------------------------------
def _check_order(call: Call, dequantize: Call) -> str | None:
    """Return why stored numbers are not ordered as the real ones are; None if they are."""
    return None if has_positive_scales(dequantize) else "the scale is not known to be positive"


def _check_pooling(call: Call, dequantize: Call) -> str | None:
    return _check_order(call, dequantize) or _check_byte(dequantize)


def _check_byte(dequantize: Call) -> str | None:
    return None if itemsize(get_stored_dtype(dequantize)) == 1 else "the stored numbers have more than 8 bits"


def _check_nearest(call: Call, dequantize: Call) -> str | None:
    if call.attrs["method"] != "nearest":
        return f"{call.attrs['method']} interpolation computes with its operand"
    return _check_byte(dequantize)


def _check_padding(call: Call, dequantize: Call) -> str | None:
    return None if _padding(call, dequantize) is not None else "the value of the padding has no stored number"


def _padding(call: Call, dequantize: Call) -> float | None:
    """Return the stored number that stands for the value of a padding."""
    if call.attrs["mode"] != "constant":
        return 0.0
    _, scale, zero = dequantize.args
    if not isinstance(zero, Constant) or not isinstance(scale, Constant) or zero.data.ndim or scale.data.ndim:
        return None
    value, scale_value, zero_value = call.attrs["value"], float(scale.data), float(zero.data)
    stored = value / scale_value + zero_value if value else zero_value
    limits = np.iinfo(to_numpy(get_stored_dtype(dequantize)))
    exact = np.float32(np.float32(stored - zero_value) * np.float32(scale_value)) == np.float32(value)
    return stored if stored == round(stored) and limits.min <= stored <= limits.max and exact else None


def _with_padding(call: Call, dequantize: Call) -> Mapping[str, Any]:
    return {**call.attrs, "value": _padding(call, dequantize)}


MOVEMENTS: Mapping[str, Movement] = {
    "reshape": Movement(_reshape_axis),  # Flatten, Squeeze and Unsqueeze too
    "permute_dims": Movement(_permute_axis),
    "broadcast_to": Movement(_keep_axis_from_last),
    "tile": Movement(_keep_axis_from_last),
    "strided_slice": Movement(_keep_unlisted_axis),
    "flip": Movement(_keep_unlisted_axis),
    "take": Movement(_take_axis),
    "gather_elements": Movement(_drop_axis),
    "gather_nd": Movement(_drop_axis),
    "split": Movement(_keep_other_axis),
    "concat": Movement(_keep_other_axis, variadic=True),
    "pad": Movement(_keep_axis_of_same_size, _check_padding, attrs=_with_padding),
    "image.resize": Movement(_keep_batch_or_channels, _check_nearest),
    **dict.fromkeys(
        ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), Movement(_keep_batch_or_channels, _check_pooling)
    ),
    **dict.fromkeys(("max", "min"), Movement(_drop_axis, _check_order)),
}
