"""From a composite to a node of the JSON graph: which primitive, its operands by role, its attributes.

The runtime half (`primitives/`) reads exactly these; the shapes stand beside them in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kernelyard.dims import Dim
from kernelyard.ir import Constant, Expr
from kernelyard.placement.json_serializer import KernelNode
from kernelyard_dnnl.composite import CONVOLUTIONS, DECONVOLUTIONS, Composite
from kernelyard_dnnl.post_ops import BINARY, UNARY, Binary, Eltwise, Stage, stages_of

MAX_POOLS = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
AVG_POOLS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
REDUCTIONS = ("mean", "sum", "max", "min", "prod")

Writer: TypeAlias = Callable[[Composite], KernelNode]


def node_of(composite: Composite) -> KernelNode:
    """The node that computes a composite."""
    anchor = ANCHORS[composite.anchor.op_name](composite)
    inputs = list(anchor.inputs)
    if composite.bias is not None:
        inputs.append(("bias", composite.bias))
    post_ops: list[dict[str, Any]] = list(anchor.attrs.get("post_ops", ()))
    for stage in composite.stages:
        post_ops.append(_post_op(stage, composite, f"post{len(post_ops)}", inputs))
    return KernelNode(anchor.op, inputs, {**anchor.attrs, "post_ops": post_ops})


def _post_op(stage: Stage, composite: Composite, role: str, inputs: list[tuple[str, Expr]]) -> dict[str, Any]:
    if not isinstance(stage, Binary):
        return _eltwise_post_op(stage)
    inputs.append((role, stage.operand))
    same_shape = stage.operand.tensor_type.shape == composite.anchor.tensor_type.shape
    if stage.algorithm == "add" and same_shape:
        return {"kind": "sum", "role": role}
    return {"kind": "binary", "algorithm": stage.algorithm, "role": role}


def _eltwise_post_op(stage: Eltwise) -> dict[str, Any]:
    return {"kind": "eltwise", **stage.attributes()}


def _named(composite: Composite, *roles: str) -> tuple[tuple[str, Expr], ...]:
    return tuple(zip(roles, composite.operands, strict=True))


def _halves(padding: Sequence[int]) -> dict[str, list[int]]:
    rank = len(padding) // 2
    return {"padding_begin": list(padding[:rank]), "padding_end": list(padding[rank:])}


def _window(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "strides": list(attrs["strides"]),
        **_halves(attrs["padding"]),
        "dilation": list(attrs["dilation"]),
        "groups": attrs["groups"],
    }


def _convolution(composite: Composite) -> KernelNode:
    attrs = {"rank": len(composite.anchor.attrs["strides"]), **_window(composite.anchor.attrs)}
    if 0 in composite.readers:
        attrs |= _with_padding(attrs, composite.readers[0].attrs["pads"])
    return KernelNode("conv", _named(composite, "data", "weight"), attrs)


def _with_padding(attrs: Mapping[str, Any], pads: Sequence[Dim]) -> dict[str, list[Dim]]:
    """The padding of a convolution together with that of the `pad` before it."""
    rank = len(pads) // 2
    before, after = pads[2:rank], pads[rank + 2 :]
    return {
        "padding_begin": [own + more for own, more in zip(attrs["padding_begin"], before, strict=True)],
        "padding_end": [own + more for own, more in zip(attrs["padding_end"], after, strict=True)],
    }


def _deconvolution(composite: Composite) -> KernelNode:
    attrs = composite.anchor.attrs
    attrs = {"rank": len(attrs["strides"]), **_window(attrs), "output_padding": list(attrs["output_padding"])}
    return KernelNode("conv_transpose", _named(composite, "data", "weight"), attrs)


def _matmul(composite: Composite) -> KernelNode:
    attrs = {"transpose_a": 0 in composite.readers, "transpose_b": 1 in composite.readers}
    return KernelNode("matmul", _named(composite, "a", "b"), attrs)


def _max_pool(composite: Composite) -> KernelNode:
    return _pool("max", composite)


def _avg_pool(composite: Composite) -> KernelNode:
    is_counted = composite.anchor.attrs["count_include_pad"]
    return _pool("avg_include_padding" if is_counted else "avg_exclude_padding", composite)


def _pool(algorithm: str, composite: Composite) -> KernelNode:
    attrs = composite.anchor.attrs
    attrs = {
        "algorithm": algorithm,
        "kernel": list(attrs["pool_size"]),
        "strides": list(attrs["strides"]),
        **_halves(attrs["padding"]),
        "dilation": list(attrs["dilation"]),
    }
    return KernelNode("pool", _named(composite, "x"), attrs)


def _reduce(composite: Composite) -> KernelNode:
    call = composite.anchor
    rank = call.args[0].tensor_type.rank
    axes = [axis % rank for axis in call.attrs["axes"]] or list(range(rank))
    attrs = {"algorithm": call.op_name, "axes": axes, "keepdims": call.attrs["keepdims"]}
    return KernelNode("reduce", _named(composite, "x"), attrs)


def _softmax(op: str) -> Writer:
    def write(composite: Composite) -> KernelNode:
        axis = composite.anchor.attrs["axis"] % composite.anchor.tensor_type.rank
        return KernelNode(op, _named(composite, "x"), {"axis": axis})

    return write


def _layer_norm(composite: Composite) -> KernelNode:
    attrs = {"axes": list(composite.anchor.attrs["axes"]), "epsilon": composite.anchor.attrs["epsilon"]}
    return KernelNode("layer_norm", _named(composite, "x", "gamma", "beta"), attrs)


def _batch_norm(composite: Composite) -> KernelNode:
    attrs = {"epsilon": composite.anchor.attrs["epsilon"]}
    return KernelNode("batch_norm", _named(composite, "x", "gamma", "beta", "mean", "variance"), attrs)


def _lrn(composite: Composite) -> KernelNode:
    return KernelNode("lrn", _named(composite, "x"), dict(composite.anchor.attrs))


def _resample(composite: Composite) -> KernelNode:
    return KernelNode("resample", _named(composite, "x"), {"algorithm": composite.anchor.attrs["method"]})


def _concat(composite: Composite) -> KernelNode:
    roles = (f"x{i}" for i in range(len(composite.operands)))
    return KernelNode("concat", _named(composite, *roles), {"axis": concat_axis(composite)})


def concat_axis(composite: Composite) -> int:
    """The axis that a concat joins, counted from the front."""
    return composite.anchor.attrs["axis"] % composite.anchor.tensor_type.rank


def _reorder(composite: Composite) -> KernelNode:
    return KernelNode("reorder", _named(composite, "x"), {"axes": list(composite.anchor.attrs["axes"])})


def _cast(composite: Composite) -> KernelNode:
    return KernelNode("cast", _named(composite, "x"))


def _slice(composite: Composite) -> KernelNode:
    attrs = {name: list(composite.anchor.attrs[name]) for name in ("axes", "begin", "strides")}
    return KernelNode("slice", _named(composite, "x"), attrs)


def _reshape(composite: Composite) -> KernelNode:
    return KernelNode("reshape", _named(composite, "x"))


def _binary(composite: Composite) -> KernelNode:
    return KernelNode("binary", _named(composite, "a", "b"), {"algorithm": BINARY[composite.anchor.op_name]})


def _eltwise(composite: Composite) -> KernelNode:
    stages = stages_of(composite.anchor, composite.operands[0])
    first, *others = (stage for stage in stages if isinstance(stage, Eltwise))
    if others or composite.stages:
        return _multiplied_by_one(composite, [first, *others])
    return KernelNode("eltwise", (("x", composite.operands[0]),), first.attributes())


def _multiplied_by_one(composite: Composite, stages: Sequence[Eltwise]) -> KernelNode:
    """What is more than one function: a binary primitive takes it all as post-ops, an eltwise one does not."""
    one = Constant(np.ones((), np.float32))
    attrs = {"algorithm": "mul", "post_ops": [_eltwise_post_op(stage) for stage in stages]}
    return KernelNode("binary", (("a", composite.operands[0]), ("b", one)), attrs)


ANCHORS: Mapping[str, Writer] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(DECONVOLUTIONS, _deconvolution),
    "matmul": _matmul,
    **dict.fromkeys(MAX_POOLS, _max_pool),
    **dict.fromkeys(AVG_POOLS, _avg_pool),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.layer_norm": _layer_norm,
    "nn.batch_norm": _batch_norm,
    "nn.lrn": _lrn,
    "image.resize": _resample,
    "concat": _concat,
    "permute_dims": _reorder,
    "strided_slice": _slice,
    "reshape": _reshape,
    "astype": _cast,
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(UNARY, _eltwise),
    "power": _eltwise,
}
