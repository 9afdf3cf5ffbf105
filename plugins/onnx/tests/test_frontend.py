"""The frontend as the core sees it: the plugin, what it accepts, and real networks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from kernelyard.dims import symbol
from kernelyard.ir.verify import verify
from kernelyard.plugins.interfaces.manifest import read_manifest
from kernelyard_onnx import plugin, registry
from kernelyard_onnx.frontend import ONNXFrontend
from kernelyard_onnx.importer import import_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def model() -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_the_manifest_and_the_hook_agree() -> None:
    manifest = read_manifest("kernelyard_onnx.plugin")
    assert manifest.name == "onnx"
    assert manifest.provides == ("frontend",)
    assert manifest.is_compatible
    frontend = plugin.kernelyard_frontend()
    assert isinstance(frontend, ONNXFrontend)
    assert frontend.name == "onnx"


def test_the_hook_loads_neither_onnx_nor_numpy() -> None:
    code = "import sys, kernelyard_onnx.plugin; assert not {'onnx', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("candidate", "accepted"),
    [
        ("a/b/model.onnx", True),
        (Path("model.ONNX"), True),
        (b"bytes", True),
        (bytearray(b"x"), True),
        (model(), True),
        ("model.pt2", False),
        (3, False),
        (None, False),
    ],
)
def test_accepts(candidate, accepted) -> None:
    assert ONNXFrontend().accepts(candidate) is accepted


def test_paths_bytes_and_protos_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    forms = (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), model())
    texts = {str(ONNXFrontend().import_model(form, {})) for form in forms}
    assert len(texts) == 1


def test_importing_twice_gives_the_same_text() -> None:
    path = LIGHT / "light_shufflenet.onnx"
    assert str(ONNXFrontend().import_model(path, {})) == str(ONNXFrontend().import_model(path, {}))


def test_the_model_is_not_changed() -> None:
    proto = model()
    before = proto.SerializeToString(deterministic=True)
    ONNXFrontend().import_model(proto, {"shapes": {"x": (2, 3)}})
    assert proto.SerializeToString(deterministic=True) == before


NETWORKS = sorted(path.name for path in LIGHT.glob("*.onnx"))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_onnx_ships(name: str) -> None:
    """Real topologies with constant weights; the batch is made symbolic where nothing but a fixed Reshape forbids it."""
    module = ONNXFrontend().import_model(LIGHT / name, {})
    verify(module)
    declared = onnx.load(LIGHT / name).graph.output[0].type.tensor_type.shape.dim
    assert module["main"].result_type.shape == tuple(dim.dim_value for dim in declared)


@pytest.mark.parametrize("name", ["light_squeezenet.onnx", "light_shufflenet.onnx"])
def test_networks_that_onnx_ships_give_the_same_numbers(name: str, agree) -> None:
    """With small random weights in place of the constants, so that something depends on the input."""
    proto, rng = onnx.load(LIGHT / name), np.random.default_rng(5)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = onnx.numpy_helper.to_array(weights[node.input[0]])
        array = (
            rng.uniform(0.01, 1, shape) if len(shape) == 1 else rng.standard_normal(shape) * np.prod(shape[1:]) ** -0.5
        )
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), node.output[0]))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    weights_and_input = {value.name: value for value in proto.graph.input}
    (name_of_input,) = set(weights_and_input) - {tensor.name for tensor in proto.graph.initializer}
    shape = [dim.dim_value for dim in weights_and_input[name_of_input].type.tensor_type.shape.dim]
    agree(proto, {name_of_input: rng.standard_normal(shape, dtype=np.float32)}, rtol=1e-3, atol=1e-5)


def test_a_thousand_nodes_are_read_quickly() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["v0"], pads=[1, 1, 1, 1])]
    for i in range(1000):
        nodes.append(helper.make_node(("Relu", "Sigmoid", "Neg")[i % 3], [f"v{i}"], [f"v{i + 1}"]))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])
    weight = onnx.numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="v1000")], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    start = time.perf_counter()
    module = import_model(proto, {}, None)
    assert time.perf_counter() - start < 2
    assert len(module["main"].bindings) == 1001
    assert module["main"].result_type.shape == (symbol("n"), 3, symbol("h"), symbol("w"))


def test_the_readme_lists_every_operator() -> None:
    """The table in README.md is the registry: whoever adds a converter adds it there."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    listed = set(text.split("## Operators")[1].split("##")[0].replace("`", " ").replace(",", " ").split())
    assert set(registry.operators()) | set(registry.operators("com.microsoft")) <= listed


def test_a_family_has_all_converters_of_its_operators() -> None:
    """Families are imported until one has an operator: a later one must not have more of the operator's versions."""
    code = """
from importlib import import_module
from kernelyard_onnx import converters, registry
found = {}
for module in tuple(converters.FAMILIES.waiting):
    import_module(module)
    for key, entries in registry._CONVERTERS.items():
        assert found.setdefault(key, len(entries)) == len(entries), (module, key)
assert len(found) > 200
"""
    subprocess.run([sys.executable, "-c", code], check=True)
