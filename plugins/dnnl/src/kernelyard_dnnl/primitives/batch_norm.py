"""batch_norm: one multiplication and one addition per element, in any layout.

Node schema: operands x (N, C, spatial...), gamma, beta, mean, variance (C,); attribute epsilon; post-ops.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import Eltwise, PostOps
from kernelyard_dnnl.primitive_kind import FLOAT, Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.post_ops import (
    SOURCE_1,
    Step,
    apply_steps,
    binary_primitive,
    broadcast_operand,
    execute,
)
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate

STATISTICS = ("gamma", "beta", "mean", "variance")


def check(norm: Candidate) -> Refusal | None:
    """Require axis 1 of tensors of rank 2 to 5."""
    data = norm.call.args[0].tensor_type
    if norm.attrs["axis"] != 1 or not 2 <= data.rank <= 5:
        return Refusal("attribute", f"batch_norm over axis {norm.attrs['axis']} of rank {data.rank}")
    return norm.check_known("the number of channels", data.shape[1])


def lower_batch_norm(node: Node, graph: Lowering) -> Value:
    """Lower a batch_norm node: x * scale with `+ shift` as its first post-op.

    scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale.
    """
    x = graph.make_strided(node.operands["x"])
    operands = [node.operands[role] for role in STATISTICS]
    if all(operand.is_constant for operand in operands):
        scale, shift = _fold_scale_and_shift(operands, float(node.attrs["epsilon"]), graph)
    else:
        scale, shift = _compute_scale_and_shift(operands, float(node.attrs["epsilon"]), graph)
    per_channel = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    layout = x.descriptor
    right = broadcast_operand(graph, graph.reshape(scale, per_channel), layout)
    addition = Step("binary", algorithm="add", operand=graph.reshape(shift, per_channel))
    reuse = x if graph.may_overwrite(x, [value for role, value in node.operands.items() if role != "x"]) else None

    def create(post_ops: PostOps) -> Primitive:
        return binary_primitive(graph, "mul", layout, right.descriptor, post_ops)

    arguments = {SOURCE: x, SOURCE_1: right}
    return execute(graph, node, layout, arguments, create, reuse=reuse, before=[addition])


def _fold_scale_and_shift(operands: list[Value], epsilon: float, graph: Lowering) -> tuple[Value, Value]:
    gamma, beta, mean, variance = (operand.array().astype(np.float64) for operand in operands)
    scale = gamma / np.sqrt(variance + epsilon)
    shift = beta - mean * scale
    keys = "/".join(operand.buffer.key for operand in operands)
    name = hashlib.sha256(f"batch_norm/{epsilon!r}/{keys}".encode()).hexdigest()
    dtype = operands[0].array().dtype
    return graph.constant(scale.astype(dtype), f"{name}/scale"), graph.constant(shift.astype(dtype), f"{name}/shift")


def _compute_scale_and_shift(operands: list[Value], epsilon: float, graph: Lowering) -> tuple[Value, Value]:
    """Emit primitives that compute the same, where the statistics are known only at run time."""
    gamma, beta, mean, variance = (graph.make_plain(operand) for operand in operands)
    layout = dense(gamma.shape, gamma.descriptor.dtype)
    root = [Step("eltwise", Eltwise("linear", 1.0, epsilon)), Step("eltwise", Eltwise("pow", 1.0, -0.5))]
    scale = apply_steps(graph, [*root, Step("binary", algorithm="mul", operand=gamma)], graph.copy(variance, layout))
    negated = [Step("eltwise", Eltwise("linear", -1.0, 0.0)), Step("binary", algorithm="mul", operand=scale)]
    shift = apply_steps(graph, [*negated, Step("binary", algorithm="add", operand=beta)], graph.copy(mean, layout))
    return scale, shift


BATCH_NORM = PrimitiveKind(
    node="batch_norm",
    summary="over axis 1, non-constant statistics; constant ones are folded by the core",
    ops=("nn.batch_norm",),
    operands=("x", *STATISTICS),
    attributes=lambda group: {"epsilon": group.anchor.attrs["epsilon"]},
    check=check,
    follows=Follows.POST_OPS,
    order=MemoryOrder.FIRST_OPERAND,
    dtypes=(FLOAT,),  # scale and shift are made in the dtype of the data, and bfloat16 is not enough
    lower=lower_batch_norm,
)
