"""From a graph to cuDNN's own, through nvidia-cudnn-frontend.

Source: cuDNN frontend, "Graph API" and "Operations"; cuDNN backend, "Numerical notes".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from types import ModuleType
from typing import Any

from kernelyard_cudnn.graph import Attention, Convolution, ConvolutionTranspose, Graph, Norm, Pointwise, Tensor

DTYPES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float8_e4m3fn": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2",
    "int32": "INT32",
}
# What rounds operands of float32 to fewer bits than they have.
NARROWING = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")


class Builder:
    """Makes one graph. cudnn: the frontend's module. where: keywords of its graph that say what it is planned for."""

    def __init__(self, cudnn: ModuleType, where: Mapping[str, Any]) -> None:
        self.cudnn = cudnn
        wide = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            name="kernelyard", io_data_type=wide, intermediate_data_type=wide, compute_data_type=wide, **where
        )
        self._tensors: dict[int, Any] = {}

    def build(self, graph: Graph) -> Any:
        """Return the frontend's graph, with every operation; not validated yet."""
        for node in graph.nodes:
            add(node, self)
        result = self._tensors[graph.result.uid]
        result.set_output(True).set_data_type(self.dtype(graph.result))
        result.set_dim(list(graph.result.dims)).set_stride(list(graph.result.strides)).set_uid(graph.result.uid)
        return self.graph

    def dtype(self, tensor: Tensor) -> Any:
        """Return the frontend's name of a tensor's dtype."""
        return getattr(self.cudnn.data_type, DTYPES[tensor.dtype])

    def of(self, tensor: Tensor) -> Any:
        """Return the frontend's tensor: what an operation has made, or one in memory."""
        if tensor.uid not in self._tensors:
            self._tensors[tensor.uid] = self.graph.tensor(
                dim=list(tensor.dims), stride=list(tensor.strides), data_type=self.dtype(tensor), uid=tensor.uid
            )
        return self._tensors[tensor.uid]

    def optional(self, **tensors: Tensor | None) -> dict[str, Any]:
        """Return the tensors that are not None."""
        return {name: self.of(tensor) for name, tensor in tensors.items() if tensor is not None}

    def record_result(self, tensor: Tensor, value: Any) -> None:
        """Record the tensor of cuDNN that an operation gave for `tensor`."""
        self._tensors[tensor.uid] = value


@singledispatch
def add(node: object, builder: Builder) -> None:
    """Add an operation to the graph."""
    raise TypeError(f"no cuDNN operation for {node!r}")


@add.register
def _(node: Convolution, builder: Builder) -> None:
    made = builder.graph.conv_fprop(
        image=builder.of(node.x),
        weight=builder.of(node.w),
        padding=list(node.window.padding),
        stride=list(node.window.strides),
        dilation=list(node.window.dilation),
    )
    builder.record_result(node.y, made)


@add.register
def _(node: ConvolutionTranspose, builder: Builder) -> None:
    made = builder.graph.conv_dgrad(
        loss=builder.of(node.x),
        filter=builder.of(node.w),
        padding=list(node.window.padding),
        stride=list(node.window.strides),
        dilation=list(node.window.dilation),
    )
    made.set_dim(list(node.y.dims)).set_stride(list(node.y.strides))  # they do not follow from the operands
    builder.record_result(node.y, made)


@add.register
def _(node: Pointwise, builder: Builder) -> None:
    operation = getattr(builder.graph, node.mode)
    operands = [builder.of(each) for each in (node.x, node.operand) if each is not None]
    builder.record_result(node.y, operation(*operands, **dict(node.parameters)))


@add.register
def _(node: Norm, builder: Builder) -> None:
    cudnn, graph = builder.cudnn, builder.graph
    epsilon = graph.tensor_scalar(node.epsilon, cudnn.scalar_type.RUNTIME_PARAM)
    phase = cudnn.norm_forward_phase.INFERENCE
    operation = graph.rmsnorm if node.bias is None else graph.layernorm
    operands = builder.optional(input=node.x, scale=node.scale, bias=node.bias)
    made, *_ = operation(norm_forward_phase=phase, epsilon=epsilon, **operands)
    builder.record_result(node.y, made)


@add.register
def _(node: Attention, builder: Builder) -> None:
    alignment = builder.cudnn.diagonal_alignment
    masks: dict[str, Any] = builder.optional(bias=node.bias, seq_len_q=node.lengths_q, seq_len_kv=node.lengths_kv)
    if node.lengths_kv is not None:
        masks["use_padding_mask"] = True
    if node.causal != "none":
        masks["diagonal_alignment"] = getattr(alignment, node.causal.upper())
        masks["diagonal_band_right_bound"] = 0
    operands = builder.optional(q=node.q, k=node.k, v=node.v)
    made, _ = builder.graph.sdpa(**operands, attn_scale=node.scale, generate_stats=False, **masks)
    builder.record_result(node.y, made)
