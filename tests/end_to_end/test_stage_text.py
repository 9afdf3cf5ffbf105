"""Every stage of a compile can be printed, parsed back and resumed, attached RuntimeModules included."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, parse_module, to_text, verify
from kernelyard.ops.samples import floats
from kernelyard.transform.pass_infra.instruments import VerifyEach
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, PassContext

N = dims.symbol("n")


def network() -> IRModule:
    """Something for every kind of stage: convolutions, a matrix product, a spelled-out gelu, views, loop kernels."""
    b = FunctionBuilder()
    x = b.input("x", (N, 3, 8, 8))
    y = b.op("add", b.op("nn.conv2d", x, floats(16, 3, 3, 3), padding=(1, 1, 1, 1)), floats(1, 16, 1, 1))
    variance = floats(16, low=0.5, high=2)
    y = b.op("nn.batch_norm", y, *(floats(16, seed=seed) for seed in range(3)), variance, epsilon=1e-3)
    y = b.op("nn.relu", y, origin="node 'Relu_1' (Relu)")
    y = b.op("strided_slice", y, axes=(2,), begin=(0,), end=(8,), strides=(2,))
    y = b.op("reshape", y, shape=(N, 512))
    y = b.op("matmul", y, floats(512, 16))
    gate = b.op("add", b.op("erf", b.op("divide", y, 2**0.5)), 1.0)
    y = b.op("multiply", b.op("multiply", y, gate), 0.5)
    y = b.op("cumsum", b.op("sin", y), axis=1)
    return IRModule({"main": b.function(y)}, {"metadata": {"author": "a test"}})


def load_external(kind: str, data: bytes, constants: Mapping[str, np.ndarray]) -> object:
    return next(iter(entry_points(group="kernelyard.runtime", name=kind))).load()(data, constants)


class RoundTrip(Instrument):
    """Prints and parses the module after each pass."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.runtime_kinds: set[str] = set()

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        text = to_text(after)
        again = verify(parse_module(text, load_external=load_external))
        assert to_text(again) == text, pass_.name
        self.stages.append(pass_.name)
        self.runtime_kinds |= {module.kind for module in again.attrs.get("external_modules", ())}


@pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=["own kernels", "a library"])
def test_every_stage_is_printed_and_parsed_back(backends):
    trips = RoundTrip()
    with PassContext(instruments=[VerifyEach(), trips]):
        ky.compile(network(), backends=backends)
    assert {"simplify", "legalize_ops", "fuse_tir"} <= set(trips.stages)
    assert bool(trips.runtime_kinds) == bool(backends)


def test_a_compile_is_resumed_from_text():
    x = floats(2, 3, 8, 8)
    stages: list[str] = []

    class Keep(Instrument):
        def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
            if pass_.name == "simplify":
                stages.append(to_text(after))

    with PassContext(instruments=[Keep()]):
        expected = ky.compile(network())(x).numpy()
    resumed = ky.compile(parse_module(stages[0]))
    np.testing.assert_array_equal(resumed(x).numpy(), expected)
    assert resumed.metadata == {"author": "a test"}
