"""From a composite to a node of the JSON graph: which primitive, its operands by role, its attributes.

The lowering of the kind reads exactly these; the shapes stand beside them in the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelyard.plugins.api import Call, Constant, Expr, KernelNode
from kernelyard_dnnl.composite import Composite
from kernelyard_dnnl.post_ops import Binary, Eltwise, Stage
from kernelyard_dnnl.primitives.integer_product import SHIFT


def node_of(composite: Composite) -> KernelNode:
    """Return the node that computes a composite."""
    write = composite.kind.write or _write_node
    anchor = write(composite)
    inputs = list(anchor.inputs)
    for number, decoder in composite.decoders.items():
        role = inputs[number][0]
        inputs[number] = (role, shift_to_signed(inputs[number][1]))
        inputs += _parameters(role, decoder)
    if composite.encoder is not None:
        inputs += _parameters("result", composite.encoder)
    if composite.bias is not None:
        inputs.append(("bias", composite.bias))
    post_ops: list[dict[str, Any]] = list(anchor.attrs.get("post_ops", ()))
    for stage in composite.stages:
        post_ops.append(_post_op(stage, composite, f"post{len(post_ops)}", inputs))
    return KernelNode(anchor.op, inputs, {**anchor.attrs, "post_ops": post_ops})


def _write_node(composite: Composite) -> KernelNode:
    kind = composite.kind
    roles = kind.operands or tuple(f"x{number}" for number in range(len(composite.operands)))
    inputs = tuple(zip(roles, composite.operands, strict=True))
    return KernelNode(kind.node, inputs, dict(kind.attributes(composite)))


def _post_op(stage: Stage, composite: Composite, role: str, inputs: list[tuple[str, Expr]]) -> dict[str, Any]:
    if not isinstance(stage, Binary):
        return eltwise_post_op(stage)
    inputs.append((role, stage.operand))
    if stage.decoder is not None:
        inputs += _parameters(role, stage.decoder)
    same_shape = stage.operand.tensor_type.shape == composite.anchor.tensor_type.shape
    if stage.algorithm == "add" and same_shape:
        return {"kind": "sum", "role": role}
    return {"kind": "binary", "algorithm": stage.algorithm, "role": role}


def shift_to_signed(operand: Expr) -> Expr:
    """Return an operand of a product of integers as oneDNN takes it: constants of uint8 as int8."""
    if isinstance(operand, Constant) and operand.data.dtype == np.uint8:
        return Constant((operand.data.astype(np.int16) - SHIFT).astype(np.int8))
    return operand


def zero_point(decoder: Call) -> Expr:
    """Return the zero point of what `shift_to_signed` returns."""
    operand, _, zero = decoder.args
    if shift_to_signed(operand) is operand or not isinstance(zero, Constant):
        return zero
    return Constant(zero.data.astype(np.int32) - SHIFT)


def _parameters(role: str, call: Call) -> list[tuple[str, Expr]]:
    """Return the scale and the zero point of a dequantize or quantize, shaped to broadcast to constants."""
    x, scale, zero = call.args[0], call.args[1], zero_point(call)
    rank, axis = x.tensor_type.rank, call.attrs["axis"]
    return [(f"{role}_scale", _along(scale, axis, rank)), (f"{role}_zero", _along(zero, axis, rank))]


def _along(parameter: Expr, axis: int | None, rank: int) -> Expr:
    if not isinstance(parameter, Constant) or parameter.data.size == 1 or axis is None:
        return parameter
    return Constant(parameter.data.reshape([-1 if n == axis % rank else 1 for n in range(rank)]))


def eltwise_post_op(stage: Eltwise) -> dict[str, Any]:
    """Return a function of one element, as a node's attribute `post_ops` has it."""
    return {"kind": "eltwise", **stage.attributes()}
