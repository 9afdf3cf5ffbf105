"""Each layer of quantized networks, beside what onnxruntime makes of it operator by operator, from the same codes.

    python benchmarks/int8_layers.py FILE.onnx [...] [--json FILE]

Beside FILE.onnx lies FILE.npz with its inputs. A layer is what leads from stored integers to stored integers: it gets
the codes that onnxruntime has there, without its optimisations, and its own codes are compared with onnxruntime's.
Differences of whole networks say less: rounding that falls on the other side in one number is a change as good as any,
and networks with random weights make much of it. `--flip` shows how much: onnxruntime's own results with one code in
100,000 of the second layer moved by one, and the share of them within a quantum, a 255th of the results' range.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from int8 import share_within
from onnx import helper, numpy_helper

import kernelyard as ky

STORES = ("QuantizeLinear", "QLinear", "QGemm")  # what the names of operators that return codes begin with
QUANTUM_OF_CODES = 1
FLIPPED_OF = 100_000


@dataclass(frozen=True)
class Layer:
    """Codes of one layer. off: the share that differs; far: that by more than one; most: the largest difference."""

    name: str
    op: str
    count: int
    off: float
    far: float
    most: int


@dataclass(frozen=True)
class Row:
    """A file with its layers. after_a_flip: the share of onnxruntime's results that few changed codes leave alone."""

    file: str
    layers: tuple[Layer, ...]
    after_a_flip: float | None = None

    def __str__(self) -> str:
        codes = sum(layer.count for layer in self.layers)
        off, far = (sum(getattr(layer, name) * layer.count for layer in self.layers) / codes for name in ("off", "far"))
        worst = max(self.layers, key=lambda layer: (layer.most, layer.off))
        flip = "" if self.after_a_flip is None else f"  after a flip {100 * self.after_a_flip:.1f} %"
        return (
            f"{self.file:32}{len(self.layers):5} layers  {100 * (1 - off):8.4f} % the same  "
            f"{100 * (1 - far):8.4f} % within one  {worst.most:3} at most ({worst.op} {worst.name}){flip}"
        )


class Network:
    """A quantized model, and every value in it as onnxruntime computes it operator by operator."""

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(path)
        self.feeds = dict(np.load(path.with_suffix(".npz")))
        graph = self.model.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.codes = [node.output[0] for node in graph.node if _stores(node) and not self._is_constant(node)]
        if not self.codes:
            raise SystemExit(f"{path}: no layer of it stores integers, as in networks that are quantized dynamically")
        self.values = {**self.feeds, **dict(zip(self.codes, run(self.model, self.feeds, self.codes), strict=True))}

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        return all(name in self.constants for name in node.input if name)

    def layer(self, result: str) -> onnx.ModelProto:
        """Return the model from the codes before a result to the result."""
        nodes: dict[str, onnx.NodeProto] = {}
        inputs: dict[str, None] = {}
        waiting = [result]
        while waiting:
            name = waiting.pop()
            if name in self.constants or not name:
                continue
            if name in self.values and name != result:
                inputs[name] = None
            elif (maker := self.makers[name]).output[0] not in nodes:
                nodes[maker.output[0]] = maker
                waiting += maker.input
        ordered = [node for node in self.model.graph.node if node.output and node.output[0] in nodes]
        weights = [self.constants[name] for name in {n for node in ordered for n in node.input} & self.constants.keys()]
        given = [self._info(name) for name in inputs]
        graph = helper.make_graph(ordered, "layer", given, [self._info(result)], weights)
        model = self.model
        return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        value = self.values[name]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    def compared(self, result: str) -> Layer:
        """Compile a layer, and run it on onnxruntime's codes."""
        layer = self.layer(result)
        exe = ky.compile(layer)
        ours = next(iter(exe.run({each.name: self.values[each.name] for each in layer.graph.input}).values())).numpy()
        apart = np.abs(ours.astype(np.int64) - self.values[result])
        off, far = (float((apart > limit).mean()) for limit in (0, QUANTUM_OF_CODES))
        ops = "+".join(node.op_type for node in layer.graph.node if not node.op_type.endswith("eLinear"))
        return Layer(result, ops[:60], apart.size, off, far, int(apart.max(initial=0)))

    def after_a_flip(self) -> float:
        """Move some codes behind the second layer by one; return the share of results within a quantum of before."""
        name, graph = self.codes[1], onnx.GraphProto()
        graph.CopyFrom(self.model.graph)
        codes = self.values[name].copy()
        some = codes.reshape(-1)[:: FLIPPED_OF + 1]  # not all of one column
        some += np.where(some < np.iinfo(codes.dtype).max, 1, -1).astype(codes.dtype)
        for node in graph.node:
            for place, operand in enumerate(node.input):
                node.input[place] = "flipped" if operand == name else operand
        graph.initializer.append(numpy_helper.from_array(codes, "flipped"))
        model = self.model
        flipped = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        return share_within(run(flipped, self.feeds), run(self.model, self.feeds))


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> list[np.ndarray]:
    """Return results, or the values of these names, as onnxruntime has them without optimisations."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    if names:
        del shown.graph.output[:]
        shown.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, dict(feeds))]


def _stores(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(STORES)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--flip", action="store_true", help="onnxruntime beside itself with one code changed, too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for path in args.files:
        network = Network(path)
        layers = tuple(network.compared(name) for name in network.codes)
        rows.append(Row(path.stem, layers, network.after_a_flip() if args.flip else None))
        print(rows[-1], flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
