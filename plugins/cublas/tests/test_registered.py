"""Rules and patterns that a script registers for cuBLAS, up to the runtime module and on the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
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
from kernelyard_cublas.backend import CublasBackend

X = floats(4, 8)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister_op_rules("cublas")
    unregister_patterns("cublas")


def network() -> IRModule:
    b = FunctionBuilder()
    y = b.op("add", b.op("matmul", b.input("x", X.shape), floats(8, 6)), floats(6, seed=1))
    return IRModule({"main": b.function(b.op("matmul", b.op("nn.relu", y), floats(6, 2, seed=2)))})


def matmul_bias_relu():
    product = is_op("matmul")(wildcard(), wildcard())
    return is_op("nn.relu")(is_op("add")(product, wildcard()))


REGISTER = {
    "rules": lambda: register_op_rule("matmul", "cublas", accept_all),
    "patterns": lambda: register_patterns([("cublas.mine", matmul_bias_relu())]),
    "both": lambda: (REGISTER["rules"](), REGISTER["patterns"]()),
}
TAKEN = {
    "rules": ["cublas.rule.matmul", "cublas.rule.matmul"],
    "patterns": ["cublas.mine"],
    "both": ["cublas.mine", "cublas.rule.matmul"],
}


@pytest.mark.parametrize("name", REGISTER)
def test_registered_for_cublas(name, monkeypatch, products):
    monkeypatch.setattr(CublasBackend, "patterns", lambda self, target: ())
    REGISTER[name]()
    placed = ky.partition_for_cublas(network())
    composites = [f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert composites == TAKEN[name]
    generated = RunCodegen(strict=True)(placed)
    (module,) = generated.attrs["external_modules"]
    assert len(module.symbols()) == len(composites)
    exe = ky.compile(network(), target="cuda", backends=["cublas"], strict=True)
    found = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](X)
    assert_allclose(found, evaluate(network(), [X])[0])
    assert np.any(np.asarray(found.numpy()))


def test_a_script_asks_for_what_cublas_has_not():
    softmax = is_op("nn.softmax")(is_op("matmul")(wildcard(), wildcard()))
    register_patterns([("cublas.matmul_softmax", softmax)])
    b = FunctionBuilder()
    y = b.op("nn.softmax", b.op("matmul", b.input("x", X.shape), floats(8, 6)), axis=1)
    exe = ky.compile(IRModule({"main": b.function(y)}), target="cuda", backends=["cublas"])
    (violation,) = exe.report.violations
    assert "no kernel for a composite" in violation.message
