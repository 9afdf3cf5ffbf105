"""Artifacts that the tests export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployed_model import WEIGHT

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tanh(x @ w) for any number n of rows, as kernels of the code generator."""
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (dims.symbol("n"), 4)), WEIGHT)
    module = IRModule({"main": b.function(b.op("tanh", product))}, {"metadata": {"model_author": "B. Author"}})
    path = tmp_path_factory.mktemp("artifact") / "scorer.kyar"
    exe = ky.compile(module, backends=[])
    assert [each.kind for each in exe.modules] == ["native-cpu"]
    exe.save(path)
    return path


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Path]:
    """`compiled(build, name="model")`: the artifact of a function that is built with a FunctionBuilder."""

    def compile_(build: Callable[[FunctionBuilder], Any], name: str = "model") -> Path:
        b = FunctionBuilder()
        path = tmp_path / f"{name}.kyar"
        ky.compile(IRModule({"main": b.function(build(b))}), backends=[]).save(path)
        return path

    return compile_
