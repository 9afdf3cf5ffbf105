"""Merged regions: several convolutions in one function, which runs them in order on the device's stream."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.ops.samples import floats
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import FuseOpsByPattern, MergeCompositeFunctions, RunCodegen, get_pipeline
from kernelyard_cudnn.backend import CudnnBackend

from .conftest import H200


def network(batch: Any) -> IRModule:
    """Three convolutions in a row; the middle one is a result as well."""
    b = FunctionBuilder()
    x = b.input("x", (batch, 4, 16, 16))
    first = b.op("nn.conv2d", x, floats(8, 4, 3, 3, low=-0.2, high=0.2), padding=(1, 1, 1, 1))
    middle = b.op("nn.conv2d", first, floats(8, 8, 1, 1, low=-0.2, high=0.2, seed=1))
    last = b.op("nn.conv2d", middle, floats(4, 8, 1, 1, low=-0.2, high=0.2, seed=2))
    return IRModule({"main": b.function(middle, last)})


def merged(module: IRModule) -> IRModule:
    fused = FuseOpsByPattern(CudnnBackend().patterns(H200))(get_pipeline("simplify")(module))
    placed = verify(MergeCompositeFunctions()(fused))
    regions = [f for f in placed.graph_functions().values() if "Codegen" in f.attrs]
    assert [len(region.bindings) for region in regions] == [3], "one region of three composites"
    return verify(RunCodegen(strict=True)(placed))


def test_one_function_runs_three_convolutions(machine: Any) -> None:
    exe = ky.compile(merged(network(dims.symbol("n"))), target=H200, backends=[])
    (module,) = exe.modules
    assert (module.kind, len(module.symbols()), len(exe.programs["main"].steps)) == ("cudnn", 1, 1)
    main = machine(exe)
    for batch in (1, 5, 1):  # 5 images are too many to be copied: the steps are told that arguments have moved
        for seed in (0, 1):
            x = floats(batch, 4, 16, 16, seed=seed)
            for found, expected in zip(main(x), evaluate(network(batch), [x]), strict=True):
                assert np.any(expected)
                assert_allclose(found, expected)
