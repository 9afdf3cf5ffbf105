"""quantize and dequantize: reorders that scale, shift, round and cut on their way.

Node schema: quantize: operands x, result_scale and result_zero. dequantize: operands x, x_scale and x_zero. No
post-ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelyard import dims
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import dequantize_operand, quantize_result
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call, Expr
    from kernelyard_dnnl.candidate import Candidate

# Bytes by which a weight grows that is folded, and by which all of a matmul may grow (`fold_constants.max_growth`).
GROWTH, MOST_GROWTH = 3, 1 << 16
FLOAT_ERROR = 1e-6  # by which the logarithm of a float32 scale may be off
PER_TENSOR = "oneDNN's reorders are used with one scale and one zero point"


def check(conversion: Candidate) -> Refusal | None:
    """Between float32 and 8 bits, by one scale; where a tensor enters or leaves what oneDNN computes."""
    from kernelyard.plugins.api import Constant  # inside: the runtime half has no compiler

    source, result = conversion.call.args[0].tensor_type, conversion.result
    real, stored = (source, result) if conversion.op_name == "quantize" else (result, source)
    scale = conversion.call.args[1]
    if real.dtype != FLOAT or stored.dtype not in INTEGERS or scale.tensor_type.dtype != FLOAT:
        return Refusal("dtype", f"{conversion.op_name} of {source!r} by {scale.tensor_type.dtype} to {result.dtype}")
    if conversion.op_name == "quantize" and not isinstance(scale, Constant):
        return Refusal("numbers", "oneDNN multiplies by the reciprocal of a scale that is computed", at=scale)
    if source.rank == 0:
        return Refusal("rank", f"{conversion.op_name} of a scalar")
    if any(parameter.tensor_type.rank for parameter in conversion.call.args[1:]):
        return Refusal("attribute", PER_TENSOR)
    if conversion.op_name == "quantize" and (reason := _why_halves_move(conversion)):
        return Refusal("numbers", reason)
    if what := _what_is_elsewhere(conversion):
        return Refusal("neighbours", f"a generated kernel {what}, and fuses the {conversion.op_name}")
    return None


def _what_is_elsewhere(conversion: Candidate) -> str:
    """Return what a generated kernel has of the conversion's neighbours, "" where it has none."""
    if _is_made_elsewhere(conversion):
        return "computes the operand"
    is_read = any(not conversion.may_be_ours(user) or _decodes_weights(conversion, user) for user in conversion.users)
    return "reads the result" if is_read else ""


def _is_made_elsewhere(conversion: Candidate) -> bool:
    """Return True where a generated kernel makes the operand."""
    maker, *_ = conversion.makers
    if _is_quantized_elsewhere(conversion.behind_views(maker)):
        return True
    return not (conversion.is_unmade(maker) or conversion.may_be_ours(maker))


def _decodes_weights(conversion: Candidate, user: Expr) -> bool:
    """Return True for a product with large weights that are dequantized, which is left to a generated kernel: one of
    integers where the data is dequantized there, too. Small weights are folded, and oneDNN multiplies floats."""
    from kernelyard.plugins.api import Call

    if not isinstance(user, Call) or user.op_name != "matmul" or not conversion.is_dequantized(user.args[1]):
        return False
    count = dims.product(user.args[1].tensor_type.shape)
    return not isinstance(count, int) or count * GROWTH > MOST_GROWTH


def _is_quantized_elsewhere(maker: Expr) -> bool:
    """Return True for a quantize that oneDNN does not have, by its scale and its zero point."""
    from kernelyard.plugins.api import Call, Constant

    if not isinstance(maker, Call) or maker.op_name != "quantize":
        return False
    return not isinstance(maker.args[1], Constant) or _can_move_halves(maker)


def _why_halves_move(conversion: Candidate) -> str:
    """Return why numbers halfway between two codes may get the other one, "" where they cannot."""
    if _can_move_halves(conversion.call):
        return "oneDNN adds an odd zero point before it rounds, so that halves go to the other side"
    if conversion.is_unmade(conversion.makers[0]) and _is_scale_of_images(conversion.call.args[1]):
        return "oneDNN multiplies by the reciprocal, which moves halves: images in [-1, 1] are such"
    return ""


def _can_move_halves(quantize: Call) -> bool:
    """Return True where numbers may lie exactly between two codes, by a scale that is a power of two, and the zero
    point may be odd."""
    from kernelyard.plugins.api import Constant

    _, scale, zero = quantize.args
    is_exact = isinstance(scale, Constant) and math.frexp(float(scale.data))[0] == 0.5
    is_even = isinstance(zero, Constant) and int(zero.data) % 2 == 0
    return is_exact and not is_even


def _is_scale_of_images(scale: Expr) -> bool:
    """Return True for 2 / 255, also by powers of two: (k - 127.5) / 127.5 for bytes k lies halfway between codes."""
    from kernelyard.plugins.api import Constant

    if not isinstance(scale, Constant) or not 0 < float(scale.data) < math.inf:
        return False
    exponent = math.log2(255 * float(scale.data))
    return abs(exponent - round(exponent)) < FLOAT_ERROR


def lower_quantize(node: Node, graph: Lowering) -> Value:
    """Lower a quantize node."""
    return quantize_result(node, graph, node.operands["x"])


def lower_dequantize(node: Node, graph: Lowering) -> Value:
    """Lower a dequantize node."""
    return dequantize_operand(node, graph, "x")


QUANTIZE = PrimitiveKind(
    node="quantize",
    summary="to 8 bits where a tensor enters oneDNN primitives; one reorder with a change of layout",
    ops=("quantize",),
    operands=("x", "result_scale", "result_zero"),
    check_surroundings=check,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_quantize,
    dtypes=(FLOAT, *INTEGERS, "int32"),
    pattern="quantize",
    is_light=True,
)
DEQUANTIZE = QUANTIZE._replace(
    node="dequantize",
    summary="from 8 bits, the same",
    ops=("dequantize",),
    operands=("x", "x_scale", "x_zero"),
    lower=lower_dequantize,
    pattern="dequantize",
)
