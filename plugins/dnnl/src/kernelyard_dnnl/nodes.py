"""From a composite to a node of the JSON graph: which primitive, its operands by role, its attributes.

The runtime half (`primitives/`) reads exactly these; the shapes stand beside them in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard.ir import Call, Expr
from kernelyard.placement.json_serializer import KernelNode
from kernelyard_dnnl.composite import CONVOLUTIONS, DECONVOLUTIONS, Composite
from kernelyard_dnnl.post_ops import BINARY, ELTWISE, Binary, Stage, stage_of

MAX_POOLS = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
AVG_POOLS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")


def node_of(composite: Composite) -> KernelNode:
    """The node that computes a composite."""
    anchor = ANCHORS[composite.anchor.op_name](composite.anchor)
    if composite.padding is not None:
        anchor = _padded(anchor, composite.padding)
    inputs = list(anchor.inputs)
    if composite.bias is not None:
        inputs.append(("bias", composite.bias))
    post_ops: list[dict[str, Any]] = []
    for stage in composite.stages:
        post_ops.append(_post_op(stage, composite, f"post{len(post_ops)}", inputs))
    return KernelNode(anchor.op, inputs, {**anchor.attrs, "post_ops": post_ops})


def _post_op(stage: Stage, composite: Composite, role: str, inputs: list[tuple[str, Expr]]) -> dict[str, Any]:
    if not isinstance(stage, Binary):
        return {"kind": "eltwise", "algorithm": stage.algorithm, "alpha": stage.alpha, "beta": stage.beta}
    inputs.append((role, stage.operand))
    same_shape = stage.operand.type == composite.anchor.type
    if stage.algorithm == "add" and same_shape:
        return {"kind": "sum", "role": role}
    return {"kind": "binary", "algorithm": stage.algorithm, "role": role}


def _halves(padding: Sequence[int]) -> dict[str, list[int]]:
    rank = len(padding) // 2
    return {"padding_begin": list(padding[:rank]), "padding_end": list(padding[rank:])}


def _convolution(call: Call) -> KernelNode:
    attrs = {
        "rank": len(call.attrs["strides"]),
        "strides": list(call.attrs["strides"]),
        **_halves(call.attrs["padding"]),
        "dilation": list(call.attrs["dilation"]),
        "groups": call.attrs["groups"],
    }
    return KernelNode("conv", (("data", call.args[0]), ("weight", call.args[1])), attrs)


def _padded(node: KernelNode, pad: Call) -> KernelNode:
    """A convolution that reads what `pad` reads and pads it itself."""
    pads, rank = pad.attrs["pads"], pad.args[0].tensor_type.rank
    before, after = pads[2:rank], pads[rank + 2 :]
    attrs = {
        **node.attrs,
        "padding_begin": [own + more for own, more in zip(node.attrs["padding_begin"], before, strict=True)],
        "padding_end": [own + more for own, more in zip(node.attrs["padding_end"], after, strict=True)],
    }
    return KernelNode(node.op, [("data", pad.args[0]), *node.inputs[1:]], attrs)


def _deconvolution(call: Call) -> KernelNode:
    node = _convolution(call)
    attrs = {**node.attrs, "output_padding": list(call.attrs["output_padding"])}
    return KernelNode("conv_transpose", node.inputs, attrs)


def _matmul(call: Call) -> KernelNode:
    attrs = {"transpose_a": False, "transpose_b": False}
    return KernelNode("matmul", (("a", call.args[0]), ("b", call.args[1])), attrs)


def _pool(algorithm: str, call: Call) -> KernelNode:
    attrs = {
        "algorithm": algorithm,
        "kernel": list(call.attrs["pool_size"]),
        "strides": list(call.attrs["strides"]),
        **_halves(call.attrs["padding"]),
        "dilation": list(call.attrs["dilation"]),
    }
    return KernelNode("pool", (("x", call.args[0]),), attrs)


def _avg_pool(call: Call) -> KernelNode:
    return _pool("avg_include_padding" if call.attrs["count_include_pad"] else "avg_exclude_padding", call)


def _reduce(call: Call) -> KernelNode:
    rank = call.args[0].tensor_type.rank
    axes = [axis % rank for axis in call.attrs["axes"]] or list(range(rank))
    attrs = {"algorithm": call.op_name, "axes": axes, "keepdims": call.attrs["keepdims"]}
    return KernelNode("reduce", (("x", call.args[0]),), attrs)


def _softmax(op: str) -> Callable[[Call], KernelNode]:
    return lambda call: KernelNode(
        op, (("x", call.args[0]),), {"axis": call.attrs["axis"] % call.args[0].tensor_type.rank}
    )


def _layer_norm(call: Call) -> KernelNode:
    roles = ("x", "gamma", "beta")
    return KernelNode("layer_norm", tuple(zip(roles, call.args, strict=True)), {"epsilon": call.attrs["epsilon"]})


def _batch_norm(call: Call) -> KernelNode:
    roles = ("x", "gamma", "beta", "mean", "variance")
    return KernelNode("batch_norm", tuple(zip(roles, call.args, strict=True)), {"epsilon": call.attrs["epsilon"]})


def _resample(call: Call) -> KernelNode:
    return KernelNode("resample", (("x", call.args[0]),), {"algorithm": call.attrs["method"]})


def _concat(call: Call) -> KernelNode:
    inputs = tuple((f"x{i}", arg) for i, arg in enumerate(call.args))
    return KernelNode("concat", inputs, {"axis": call.attrs["axis"] % call.tensor_type.rank})


def _reorder(call: Call) -> KernelNode:
    return KernelNode("reorder", (("x", call.args[0]),), {"axes": list(call.attrs["axes"])})


def _slice(call: Call) -> KernelNode:
    attrs = {name: list(call.attrs[name]) for name in ("axes", "begin", "strides")}
    return KernelNode("slice", (("x", call.args[0]),), attrs)


def _binary(call: Call) -> KernelNode:
    return KernelNode("binary", (("a", call.args[0]), ("b", call.args[1])), {"algorithm": BINARY[call.op_name]})


def _eltwise(call: Call) -> KernelNode:
    stage = stage_of(call, call.args[0])
    assert not isinstance(stage, Binary)
    attrs = {"algorithm": stage.algorithm, "alpha": stage.alpha, "beta": stage.beta}
    return KernelNode("eltwise", (("x", call.args[0]),), attrs)


ANCHORS: Mapping[str, Callable[[Call], KernelNode]] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(DECONVOLUTIONS, _deconvolution),
    "matmul": _matmul,
    **dict.fromkeys(MAX_POOLS, lambda call: _pool("max", call)),
    **dict.fromkeys(AVG_POOLS, _avg_pool),
    **dict.fromkeys(("mean", "sum", "max", "min", "prod"), _reduce),
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.layer_norm": _layer_norm,
    "nn.batch_norm": _batch_norm,
    "image.resize": _resample,
    "concat": _concat,
    "permute_dims": _reorder,
    "strided_slice": _slice,
    "reshape": lambda call: KernelNode("reshape", (("x", call.args[0]),), {}),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(ELTWISE, _eltwise),
}
