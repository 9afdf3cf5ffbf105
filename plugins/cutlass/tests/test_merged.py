"""Merged regions: several matmuls in one function, which runs them in order on the device's stream."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.ops.samples import floats
from kernelyard.target import Target
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import FuseOpsByPattern, MergeCompositeFunctions, RunCodegen, get_pipeline
from kernelyard_cutlass.backend import CutlassBackend
from kernelyard_cutlass.launches import SIGNATURES

from .conftest import runtime_of
from .test_runtime import Recorded, bound, with_code


def chain(rows: Any) -> IRModule:
    """Three matmuls in a row; the middle one is a result as well."""
    b = FunctionBuilder()
    x = b.input("x", (rows, 64))
    first = b.op("nn.relu", b.op("matmul", x, floats(64, 64, low=-0.1, high=0.1)))
    middle = b.op("matmul", first, floats(64, 64, low=-0.1, high=0.1, seed=2))
    last = b.op("nn.relu", b.op("matmul", middle, floats(64, 32, low=-0.1, high=0.1, seed=3)))
    return IRModule({"main": b.function(middle, last)})


def merged(module: IRModule) -> IRModule:
    fused = FuseOpsByPattern(CutlassBackend().patterns(Target("cuda")))(get_pipeline("simplify")(module))
    placed = verify(MergeCompositeFunctions()(fused))
    regions = [f for f in placed.graph_functions().values() if "Codegen" in f.attrs]
    assert [len(region.bindings) for region in regions] == [3], "one region of three composites"
    return verify(RunCodegen(strict=True)(placed))


def test_one_function_runs_three_matmuls(programs) -> None:
    exe = ky.compile(merged(chain(dims.symbol("n"))), target="cuda", backends=[])
    assert len(runtime_of(exe).symbols()) == 1
    main = ky.VirtualMachine(exe, programs.device)["main"]
    for rows in (3, 100, 3):  # 100 rows are too many to be copied: the steps are told that arguments have moved
        for seed in (0, 1):
            x = floats(rows, 64, seed=seed)
            for found, expected in zip(main(x), evaluate(chain(rows), [x]), strict=True):
                assert np.any(expected)
                assert_allclose(found, expected)


def test_kernels_are_launched_in_order_and_hand_on_what_they_give() -> None:
    module = with_code(runtime_of(ky.compile(merged(chain(dims.symbol("n"))), target="cuda", backends=[])))
    driver = Recorded()
    call, args = bound(module, driver, {}, {"n": 5})
    _, middle, last = (arg.address for _, arg in args)

    def launched() -> list[dict[str, int]]:
        driver.calls.clear()
        for step in call.steps:
            step()
        found = [each[3] for each in driver.calls]
        return [{n: a.value for n, a in zip(SIGNATURES["gemm"], each, strict=True)} for each in found]

    one, two, three = launched()
    assert one["d"] == two["a"]
    assert (two["d"], three["a"], three["d"]) == (middle, middle, last)
    assert len({one["d"], middle, last}) == 3
    call.rebind[1](4096)
    one, two, three = launched()
    assert (two["d"], three["a"], three["d"]) == (4096, 4096, last)
