"""An installed vendor runtime ("acme", found through real distribution metadata) and executables that use it."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.runtime.execute.executable import Executable, Program, Register, Step, TensorSpec
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode

ACME = Path(__file__).parent / "acme"
N = dims.symbol("n")


def digest_of(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype.name}{array.shape}".encode() + array.tobytes()).hexdigest()


@pytest.fixture
def acme_path() -> Path:
    return ACME


@pytest.fixture
def acme(monkeypatch):
    """The vendor's runtime module, installed."""
    monkeypatch.syspath_prepend(str(ACME))
    return importlib.import_module("acme_runtime")


def linear_graph(weight: np.ndarray, symbol: str = "acme_0", factor: float = 2.0) -> JSONGraph:
    """y = (x @ weight) * factor for x of shape (n, k)."""
    k, m = weight.shape
    x, y = TensorSpec((N, k), "float32", "x"), TensorSpec((N, m), "float32")
    return JSONGraph(
        symbol,
        (x,),
        (
            JSONNode("input", (x,), index=0),
            JSONNode("constant", (TensorSpec((k, m), "float32"),), digest=digest_of(weight)),
            JSONNode("kernel", (y,), "matmul", (("a", (0, 0)), ("b", (1, 0)))),
            JSONNode("kernel", (y,), "scale", (("x", (2, 0)),), {"factor": factor}),
        ),
        ((3, 0),),
    )


@pytest.fixture
def weight() -> np.ndarray:
    return np.arange(12, dtype=np.float32).reshape(4, 3) / 8


@pytest.fixture
def make_executable(acme, weight):
    """Executable of `y = (x @ w) * 2 + b; z = y.reshape(-1)`, x of shape (n, 4)."""

    def make(weight: np.ndarray = weight, bias: np.ndarray | None = None, threads: int | None = None) -> Executable:
        k, m = weight.shape
        bias = np.ones(m, np.float32) if bias is None else bias
        x, y = TensorSpec((N, k), "float32", "x"), TensorSpec((N, m), "float32", "y")
        linear = linear_graph(weight)
        add = JSONGraph(
            "acme_1",
            (TensorSpec((N, m), "float32", "a"), TensorSpec((m,), "float32", "b")),
            (
                JSONNode("input", (TensorSpec((N, m), "float32", "a"),), index=0),
                JSONNode("input", (TensorSpec((m,), "float32", "b"),), index=1),
                JSONNode("kernel", (TensorSpec((N, m), "float32"),), "add", (("a", (0, 0)), ("b", (1, 0)))),
            ),
            ((2, 0),),
        )
        constants = {digest_of(weight): weight, digest_of(bias): bias}
        program = Program(
            name="main",
            symbols=("n",),
            inputs=(x,),
            outputs=(y, TensorSpec((N * m,), "float32", "z")),
            registers=(
                Register((N, k), "float32", "input", index=0),
                Register((m,), "float32", "constant", digest=digest_of(bias)),
                Register((N, m), "float32", "buffer"),
                Register((N, m), "float32", "buffer"),
                Register((N * m,), "float32", "alias", source=3),
            ),
            steps=(Step(0, "acme_0", (0,), (2,), "linear"), Step(0, "acme_1", (2, 1), (3,), "bias")),
            results=(3, 4),
        )
        module = acme.AcmeRuntime([linear, add], constants)
        metadata = {"author": "Ada", "labels": "ä,ö"}
        return Executable({"main": program}, [module], constants, metadata, {"regions": []}, threads=threads)

    return make


@pytest.fixture
def executable(make_executable) -> Executable:
    return make_executable()
