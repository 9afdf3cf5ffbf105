"""Checks of groups that read or store quantized values: what oneDNN's integer primitives have."""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.plugins.api import Call, Constant, Expr
from kernelyard_dnnl.candidate import Candidate
from kernelyard_dnnl.composite import Composite
from kernelyard_dnnl.nodes import shift_to_signed, zero_point
from kernelyard_dnnl.post_ops import Binary
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, Refusal
from kernelyard_dnnl.primitives.integer_product import can_multiply_integers

WEIGHT = 1  # the operand number of a product's second side


def check_integers(candidate: Candidate) -> Refusal | None:
    """Return the first objection to a group with quantized values; None for one without."""
    composite = candidate.composite
    return next(_refusals(composite), None) if composite.is_of_integers else None


def _refusals(composite: Composite) -> Iterator[Refusal]:
    decoders, encoder = composite.decoders, composite.encoder
    residuals = [s.decoder for s in composite.stages if isinstance(s, Binary) and s.decoder is not None]
    conversions = [*decoders.values(), *residuals, *([] if encoder is None else [encoder])]
    yield from filter(None, map(_conversion, conversions))
    is_product = composite.kind.bias_axis is not None
    known = [*residuals, *([] if is_product else decoders.values()), *([] if encoder is None else [encoder])]
    yield from filter(None, map(_one_known_scale, known))
    if is_product:
        yield from filter(None, (_data(composite), _weight(composite), _instructions()))
    elif encoder is None:
        yield Refusal("slow", "oneDNN computes float32 results of integers by reference code")
    else:
        check = OTHERS.get(composite.kind.node)
        yield from filter(None, (check(composite, encoder) if check is not None else None,))


def _conversion(call: Call) -> Refusal | None:
    """Return an objection to other dtypes than 8 bits and float32."""
    operand, scale = call.args[0].tensor_type, call.args[1].tensor_type
    dtypes = {operand.dtype, call.tensor_type.dtype}
    if scale.dtype == FLOAT and FLOAT in dtypes and len(dtypes.intersection(INTEGERS)) == 1:
        return None
    return Refusal(
        "dtype", f"{call.op_name} of {operand!r} to {call.tensor_type.dtype}; supported are 8 bits and {FLOAT}"
    )


def _one_known_scale(call: Call) -> Refusal | None:
    if all(isinstance(parameter, Constant) and parameter.data.size == 1 for parameter in call.args[1:]):
        return None
    return Refusal(
        "attribute", f"{call.op_name} with several scales, or with scales that are not constants", at=call.args[1]
    )


def _data(composite: Composite) -> Refusal | None:
    """Return an objection to data with several scales, other than one for each row of a matrix that is not shifted."""
    decoder = composite.decoders[0]
    operand, scale, zero = decoder.args
    rows = operand.tensor_type.shape[0] if operand.tensor_type.rank == 2 and composite.kind.bias_axis == -1 else None
    is_by_row = scale.tensor_type.rank == 1 and decoder.attrs["axis"] in (0, -2) and scale.tensor_type.shape == (rows,)
    if is_by_row and 0 not in composite.readers and isinstance(zero, Constant) and not zero.data.any():
        return None
    for parameter in (scale, zero):
        if parameter.tensor_type.rank and parameter.tensor_type.shape != (1,):
            return Refusal("attribute", "oneDNN multiplies data of one scale and one zero point", at=parameter)
    return None


def _weight(composite: Composite) -> Refusal | None:
    """Return an objection to weights that are not int8 with a scale for each channel of the result, or one zero
    point; convolutions have none."""
    decoder = composite.decoders[WEIGHT]
    operand, scale, zero = shift_to_signed(decoder.args[0]), decoder.args[1], zero_point(decoder)
    if operand.tensor_type.dtype != "int8" and composite.kind.bias_axis == 1:
        return Refusal("dtype", "weights of uint8 that are not constant; oneDNN's are int8", at=operand)
    if not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return Refusal("attribute", "scales of weights that are not constants", at=scale)
    if not scale.data.size or not zero.data.size:
        return Refusal("empty", "weights of no channels", at=scale)
    if scale.data.size > 1 and decoder.attrs["axis"] % operand.tensor_type.rank != _channels(composite, operand):
        return Refusal("attribute", f"scales of weights along axis {decoder.attrs['axis']}", at=scale)
    if scale.data.size > 1 and composite.kind.node == "conv_transpose" and composite.anchor.attrs["groups"] > 1:
        return Refusal("attribute", "several scales of a transposed convolution in groups, which share them", at=scale)
    least, most = int(zero.data.min()), int(zero.data.max())
    if least != most or (least != 0 and composite.kind.bias_axis == 1):
        return Refusal("attribute", f"weights with zero points from {least} to {most}", at=zero)
    return None


def _arithmetic(composite: Composite, _: Call) -> Refusal | None:
    """Return an objection to sums and products that post-ops cannot say."""
    if 0 not in composite.decoders:
        return Refusal("operand", "a constant on the left, where primitives read integers", at=composite.operands[0])
    points = [float(decoder.args[2].data.reshape(())) for decoder in composite.decoders.values()]  # pyright: ignore
    if composite.anchor.op_name == "multiply" and len(points) > 1 and all(points):
        return Refusal("attribute", f"a product of tensors with the zero points {points}")
    if composite.anchor.tensor_type.shape not in [operand.tensor_type.shape for operand in composite.operands]:
        return Refusal("slow", "neither operand has the shape of the result")
    return None


def _window(composite: Composite, encoder: Call) -> Refusal | None:
    """Return an objection to means that oneDNN's pools of integers are not."""
    anchor, decoder = composite.anchor, composite.decoders[0]
    stored_type = decoder.args[0].tensor_type
    if encoder.tensor_type.dtype != stored_type.dtype:
        return Refusal("dtype", f"from {stored_type.dtype} to {encoder.tensor_type.dtype}")
    if anchor.op_name == "mean" and tuple(anchor.attrs["axes"]) != tuple(range(2, stored_type.rank)):
        return Refusal("attribute", f"a mean over axes {anchor.attrs['axes']}, other than all of space")
    is_shifted = bool(decoder.args[2].data.any())  # pyright: ignore
    if is_shifted and anchor.attrs.get("count_include_pad") and any(anchor.attrs["padding"]):
        return Refusal("numbers", "oneDNN pads with the integer 0, which is not the zero point")
    return None


OTHERS = {"binary": _arithmetic, "pool": _window, "reduce": _window}


def _channels(composite: Composite, weight: Expr) -> int | None:
    """Return the axis of the stored weights that the result's channels lie along; None for a vector, all summed."""
    if composite.kind.bias_axis == 1:
        return 1 if composite.kind.node == "conv_transpose" else 0
    rank = weight.tensor_type.rank
    if rank == 1:
        return None
    return rank - 2 if WEIGHT in composite.readers else rank - 1


def _instructions() -> Refusal | None:
    if can_multiply_integers():
        return None
    return Refusal("numbers", "without VNNI, oneDNN adds pairs of products in 16 bits and cuts off what is too large")
