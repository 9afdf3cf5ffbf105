"""Reports and models for the tests of views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Node, Placed, PlacedRegion, Reason


def report_of(count: int) -> Report:
    """Pairs of ops on a library and one that stays, in a chain with skips, as residual networks have them."""
    nodes: list[Node] = []
    for i in range(count):
        mine = i % 3 < 2
        place = ("acme", "acme.pair", "acme_0") if mine else ("native-cpu", "", "")
        reasons = () if mine else (Reason("acme", "acme.floor", "no-match", "expected <tanh>, found </script>"),)
        inputs = tuple(sorted({i - 1, max(0, i - 4)})) if i else ()
        op = "matmul" if mine else "floor"
        origin = f"node '/layers.{i}/{op}' (Op)"
        nodes.append(Node("main", origin, op, "Tensor", *place, i, 5 + i, 8, inputs, reasons=reasons))
    if nodes:
        nodes[0] = replace(nodes[0], reads=("x",))
        nodes[-1] = replace(nodes[-1], gives=("y",))
    placed = (Placed("acme", "matmul", 2, 90, 8), Placed("native-cpu", "floor", 1, 10, 8))
    region = PlacedRegion("acme", "acme.pair", ("matmul",), "acme_0", "node 0")
    return Report("cpu", placed, (region,), nodes=tuple(nodes))


def network() -> IRModule:
    """Two dense layers with a softmax, by names as ONNX nodes have them."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    value = b.input("x", (4, 64))
    for number in range(2):
        weights = random.standard_normal((64, 64)).astype(np.float32) / 8
        value = b.op("matmul", value, weights, origin=f"node '/dense.{number}/MatMul' (MatMul)")
        value = b.op("nn.relu", value, origin=f"node '/dense.{number}/Relu' (Relu)")
    return IRModule({"main": b.function(b.op("nn.softmax", value, axis=1, origin="node '/Softmax' (Softmax)"))})
