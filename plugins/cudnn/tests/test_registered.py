"""Rules and patterns that a script registers for cuDNN, up to the runtime module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.patterns import (
    accept_all,
    is_op,
    register_op_rule,
    register_patterns,
    unregister_op_rules,
    unregister_patterns,
    wildcard,
)
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import RunCodegen
from kernelyard_cudnn.backend import CudnnBackend

from .conftest import H200

X = floats(1, 4, 8, 8)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister_op_rules("cudnn")
    unregister_patterns("cudnn")


def network() -> IRModule:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("nn.conv2d", b.input("x", X.shape), floats(8, 4, 3, 3)))
    return IRModule({"main": b.function(b.op("nn.conv2d", y, floats(4, 8, 1, 1, low=-0.1, high=0.1, seed=1)))})


def register_rules() -> None:
    register_op_rule("nn.conv2d", "cudnn", accept_all)


def register_pattern() -> None:
    register_patterns([("cudnn.mine", is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard())))])


@pytest.mark.parametrize(
    ("registered", "taken"),
    [
        ([register_rules], ["cudnn.rule.nn.conv2d", "cudnn.rule.nn.conv2d"]),
        ([register_pattern], ["cudnn.mine"]),
        ([register_rules, register_pattern], ["cudnn.mine", "cudnn.rule.nn.conv2d"]),
    ],
)
def test_registered_for_cudnn(registered: Any, taken: list[str], monkeypatch: pytest.MonkeyPatch, machine: Any) -> None:
    monkeypatch.setattr(CudnnBackend, "patterns", lambda self, target: ())
    for register in registered:
        register()
    placed = ky.partition_for_cudnn(network(), target=H200)
    composites = [f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert composites == taken
    (module,) = RunCodegen(strict=True)(placed).attrs["external_modules"]
    assert len(module.symbols()) == len(taken)
    exe = ky.compile(network(), target=H200, backends=["cudnn"], strict=True)
    assert_allclose(machine(exe)(X), evaluate(network(), [X])[0])
