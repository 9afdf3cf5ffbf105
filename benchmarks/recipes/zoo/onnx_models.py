"""Write recurrent networks as ONNX models by hand, in the form of exporters other than PyTorch's.

python -m recipes.zoo.onnx_models FOLDER NAME ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from recipes.graph import Graph
from recipes.zoo.catalogue import split

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WIDTH, UNITS = 64, 128


def recurrent(kind: str, steps: int, directions: int = 1, peepholes: bool = False) -> onnx.ModelProto:
    """Return one layer with initial states, over steps of a batch of one."""
    graph, gates = Graph(), GATES[kind]
    weights = [graph.weight(gates * UNITS * directions, size).reshape(directions, -1, size) for size in (WIDTH, UNITS)]
    bias = np.stack([graph.vector(2 * gates * UNITS) for _ in range(directions)])
    states = [np.zeros((directions, 1, UNITS), np.float32)] * (2 if kind == "LSTM" else 1)
    holes = [np.stack([graph.vector(3 * UNITS) for _ in range(directions)])] if peepholes else []
    attributes = {"hidden_size": UNITS, "direction": "bidirectional" if directions == 2 else "forward"}
    name = graph(kind, "x", *weights, bias, "", *states, *holes, **attributes)
    return graph.model({"x": ("float32", [steps, 1, WIDTH])}, {"y": (name, "float32", [steps, directions, 1, UNITS])})


def scan(steps: int) -> onnx.ModelProto:
    """Return a minimal gated unit as a Scan, whose body another exporter would have traced."""
    graph, body = Graph(), Graph()
    gate = body(
        "Sigmoid",
        body(
            "Add", body("MatMul", "row", body.weight(WIDTH, UNITS)), body("MatMul", "state", body.weight(UNITS, UNITS))
        ),
    )
    kept = body("Mul", gate, "state")
    new = body(
        "Tanh",
        body("Add", body("MatMul", "row", body.weight(WIDTH, UNITS)), body("MatMul", kept, body.weight(UNITS, UNITS))),
    )
    mixed = body("Add", kept, body("Mul", body("Sub", 1.0, gate), new))
    wanted = {"state": [1, UNITS], "row": [1, WIDTH], "next": [1, UNITS], "shown": [1, UNITS]}
    infos = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in wanted.items()}
    ends = [helper.make_node("Identity", [mixed], [name]) for name in ("next", "shown")]
    inner = helper.make_graph(
        [*body.nodes, *ends], "step", [infos["state"], infos["row"]], [infos["next"], infos["shown"]], body.initializers
    )
    start = graph.constant(np.zeros((1, UNITS), np.float32))
    graph.nodes.append(helper.make_node("Scan", [start, "x"], ["last", "rows"], "scan", body=inner, num_scan_inputs=1))
    return graph.model({"x": ("float32", [steps, 1, WIDTH])}, {"y": ("rows", "float32", [steps, 1, UNITS])})


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "lstm_20": lambda: recurrent("LSTM", 20),
    "lstm_100": lambda: recurrent("LSTM", 100),
    "lstm_bidirectional_100": lambda: recurrent("LSTM", 100, 2),
    "lstm_peephole_50": lambda: recurrent("LSTM", 50, peepholes=True),
    "gru_20": lambda: recurrent("GRU", 20),
    "gru_100": lambda: recurrent("GRU", 100),
    "rnn_100": lambda: recurrent("RNN", 100),
    "scan_50": lambda: scan(50),
}


def main(folder: Path, names: list[str]) -> None:
    """Write NAME.onnx and NAME.npz (feeds) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        model = NETWORKS[split(name)[1]]()
        onnx.save(model, folder / f"{name}.onnx")
        shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
        np.savez(folder / f"{name}.npz", x=np.random.default_rng(1).standard_normal(shape).astype(np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
