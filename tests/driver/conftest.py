"""Small models, and plugins that live in this process only."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins import hookimpl
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.plugins.frontend import Frontend
from kernelyard.plugins.hookspecs import HOOK_OF_PART
from kernelyard.plugins.manager import get_manager
from kernelyard.plugins.manifest import Manifest

Install = Callable[..., None]
PARTS = {"backend": Backend, "code_generator": CodeGenerator, "frontend": Frontend}


@pytest.fixture
def install() -> Iterator[Install]:
    """install(part, **manifest): a backend, code generator or frontend becomes a plugin of this process."""
    names: list[str] = []

    def add(part: Any, **facts: Any) -> None:
        kind = next(kind for kind, class_ in PARTS.items() if isinstance(part, class_))
        plugin = types.ModuleType(f"{part.name}_plugin")
        setattr(plugin, HOOK_OF_PART[kind], hookimpl(lambda: part))
        facts = {"api": ">=1.0,<2", "provides": (kind,), "targets": ("cpu",), **facts}
        get_manager().register(plugin, Manifest(name=part.name, **facts), f"kernelyard-{part.name}", "9.9")
        names.append(part.name)

    yield add
    for name in names:
        get_manager().unregister(name)


@pytest.fixture
def mlp() -> IRModule:
    """x (n, 4) -> softmax(relu(x @ w + b) @ v): two layers with a reshape between."""
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 4))
    random = np.random.default_rng(0)
    hidden = b.op("nn.relu", b.op("add", b.op("matmul", x, _weights(random, 4, 6)), _weights(random, 6)))
    pairs = b.op("reshape", hidden, shape=(dims.symbol("n") * 2, 3))
    return IRModule({"main": b.function(b.op("nn.softmax", b.op("matmul", pairs, _weights(random, 3, 5)), axis=1))})


def _weights(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@pytest.fixture
def onnx_model() -> onnx.ModelProto:
    """x (batch, 3) -> y = relu(x) and z = -x, with metadata."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], "first"), helper.make_node("Neg", ["x"], ["z"], "second")]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xyz"}
    graph = helper.make_graph(nodes, "g", [values["x"]], [values["y"], values["z"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"author": "somebody", "labels": "a\nb"})
    return model
