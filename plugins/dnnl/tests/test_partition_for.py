"""The stages put together by a script: parameters, one call that partitions, the codegen that is installed."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import RunCodegen


def network() -> IRModule:
    """A convolution with bias, batch norm and relu, whose parameters are arguments."""
    b = FunctionBuilder()
    x, weight, bias = (
        b.input("x", (dims.symbol("n"), 3, 8, 8)),
        b.input("weight", (4, 3, 3, 3)),
        b.input("bias", (4, 1, 1)),
    )
    statistics = [b.input(name, (4,)) for name in ("gamma", "beta", "mean", "variance")]
    y = b.op("add", b.op("nn.conv2d", x, weight, padding=(1, 1, 1, 1)), bias)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("nn.batch_norm", y, *statistics, epsilon=1e-3)))})


PARAMS = {
    "weight": floats(4, 3, 3, 3),
    "bias": floats(4, 1, 1, seed=1),
    **{name: floats(4, low=0.5, high=2, seed=i) for i, name in enumerate(("gamma", "beta", "mean", "variance"))},
}


@pytest.mark.parametrize("bind_constants", [True, False])
def test_one_call_makes_one_group(bind_constants):
    placed = ky.partition_for_dnnl(network(), PARAMS, bind_constants=bind_constants)
    composites = [f for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert [f.attrs["Composite"] for f in composites] == ["dnnl.conv2d"]
    assert len(placed.entry_functions()["main"].bindings) == 1
    exe = ky.compile(RunCodegen()(placed), backends=[])
    assert {module.kind for module in exe.modules} == {"dnnl"}
    x = floats(2, 3, 8, 8, seed=5)
    assert_allclose(exe(x), evaluate(network(), [x, *PARAMS.values()])[0])
    assert np.any(exe(x).numpy())
