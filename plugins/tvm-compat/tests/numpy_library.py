"""A library that NumPy stands in for: kernels, the runtime that runs graphs of them, and the backend that writes these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kernelyard import dtypes
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.ir import Call, Function
from kernelyard.patterns import FusionPattern
from kernelyard.patterns.composite import captured_operands
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.abi.module import BoundCall
from kernelyard.runtime.modules.json_runtime import JSONRuntime


def gemm(y: np.ndarray, a: np.ndarray, b: np.ndarray, transpose_a: bool = False, transpose_b: bool = False) -> None:
    wide = np.float64 if y.dtype.kind == "f" else np.int64
    a, b = (np.swapaxes(x, -1, -2) if transposed else x for x, transposed in ((a, transpose_a), (b, transpose_b)))
    y[...] = (a.astype(wide) @ b.astype(wide)).astype(y.dtype)


def softmax(y: np.ndarray, x: np.ndarray, axis: int, log: bool) -> None:
    shifted = x.astype(np.float64) - x.max(axis, keepdims=True)
    total = np.exp(shifted).sum(axis, keepdims=True)
    y[...] = shifted - np.log(total) if log else np.exp(shifted) / total


def convolution(
    y: np.ndarray, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, relu: bool = False, **window: Any
) -> None:
    top, left, bottom, right = window["padding"]
    step, spread, groups = window["strides"], window["dilation"], window["groups"]
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    reach = [(size - 1) * d + 1 for size, d in zip(w.shape[2:], spread, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    seen = seen[:, :, :: step[0], :: step[1], :: spread[0], :: spread[1]]
    parts = zip(np.split(seen, groups, axis=1), np.split(w, groups), strict=True)
    total = np.concatenate([np.einsum("nchwij,ocij->nohw", s, k.astype(np.float64)) for s, k in parts], axis=1)
    total = total if bias is None else total + bias.reshape(1, -1, 1, 1)
    y[...] = np.maximum(total, 0) if relu else total


KERNELS: Mapping[str, Callable[..., None]] = {"gemm": gemm, "softmax": softmax, "conv2d": convolution}


class NumpyRuntime(JSONRuntime):
    """Runs the graphs kernel by kernel."""

    kind: ClassVar[str] = "numpy-stand-in"

    def build(self, graph: Any, args: Any, values: Any, context: Any) -> BoundCall:
        arrays = {entry: args[len(graph.inputs) + i].as_array() for i, entry in enumerate(graph.outputs)}
        steps = []
        for number, node in enumerate(graph.nodes):
            if node.kind == "input":
                arrays[number, 0] = args[node.index].as_array()
            elif node.kind == "constant":
                arrays[number, 0] = self.constants()[node.digest]
            else:
                (spec,) = node.outputs
                made = np.empty(spec.evaluate(values), dtypes.to_numpy(spec.dtype))
                output = arrays.setdefault((number, 0), made)
                operands = {role: arrays[entry] for role, entry in node.inputs}
                steps.append(partial(KERNELS[node.op], output, **node.attrs, **operands))
        return BoundCall(steps)


class Serializer(JSONSerializer):
    """What a composite computes is among its attributes; an operator by itself is a kernel of `SINGLE`."""

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        operands = captured_operands(composite)
        return KernelNode(composite.attrs["kernel"], list(operands.items()), composite.attrs["arguments"])

    def visit_call(self, call: Call) -> KernelNode:
        kernel, roles, attributes = SINGLE[call.op_name]
        return KernelNode(kernel, list(zip(roles, call.args, strict=True)), attributes(call.attrs))


SINGLE: Mapping[str, tuple[str, tuple[str, ...], Callable[[Any], Mapping[str, Any]]]] = {
    "matmul": ("gemm", ("a", "b"), lambda attrs: {}),
    "nn.softmax": ("softmax", ("x",), lambda attrs: {"axis": attrs["axis"], "log": False}),
    "nn.log_softmax": ("softmax", ("x",), lambda attrs: {"axis": attrs["axis"], "log": True}),
    "nn.conv2d": ("conv2d", ("x", "w"), dict),
}


class Library(Backend):
    def __init__(self, name: str) -> None:
        self.name = name

    def patterns(self, target: Any) -> list[FusionPattern]:
        return []

    def codegen(self, regions: Any, options: Any) -> NumpyRuntime:
        serializer = Serializer()
        return NumpyRuntime(serializer.serialize_all(regions), serializer.constants)
