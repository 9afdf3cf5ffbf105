"""Merged regions: several matmuls in one function, which runs them in order on the device's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import ArtifactCorruptedError
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.ops.samples import floats
from kernelyard.runtime.api import read_json, write_json
from kernelyard.target import Target
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import FuseOpsByPattern, MergeCompositeFunctions, RunCodegen, get_pipeline
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.runtime import CublasRuntime

from .conftest import runtime_of


def chain(rows: Any) -> IRModule:
    """Three matmuls in a row, of which the second has two readers, and is a result as well."""
    b = FunctionBuilder()
    y = b.op("add", b.op("matmul", b.input("x", (rows, 64)), floats(64, 64, low=-0.1, high=0.1)), floats(64, seed=1))
    middle = b.op("matmul", b.op("nn.relu", y), floats(64, 64, low=-0.1, high=0.1, seed=2))
    last = b.op("matmul", middle, b.op("permute_dims", middle, axes=(1, 0)))
    return IRModule({"main": b.function(middle, last)})


def merged(module: IRModule) -> IRModule:
    fused = FuseOpsByPattern(CublasBackend().patterns(Target("cuda")))(get_pipeline("simplify")(module))
    placed = verify(MergeCompositeFunctions()(fused))
    regions = [f for f in placed.graph_functions().values() if "Codegen" in f.attrs]
    assert [len(region.bindings) for region in regions] == [3], "one region of three composites"
    return verify(RunCodegen(strict=True)(placed))


def test_one_function_runs_three_matmuls(products):
    exe = ky.compile(merged(chain(dims.symbol("n"))), target="cuda", backends=[])
    runtime = runtime_of(exe)
    assert len(runtime.symbols()) == 1
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    for rows in (3, 100, 3):  # 100 rows are too many to be copied: the steps are told that arguments have moved
        for seed in (0, 1):
            x = floats(rows, 64, seed=seed)
            for found, expected in zip(machine["main"](x), evaluate(chain(rows), [x]), strict=True):
                assert_allclose(found, expected)


def test_each_kernel_is_one_call_of_the_library(products):
    exe = ky.compile(merged(chain(5)), target="cuda", backends=[])
    main = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"]
    before = products.api.calls["matmul"]
    main(floats(5, 64))
    assert products.api.calls["matmul"] == before + 3
    assert runtime_of(exe).is_capturable, "nothing waits or allocates between them"


def test_a_merged_region_is_saved_and_loaded(products, tmp_path):
    exe = ky.compile(merged(chain(4)), target="cuda", backends=[])
    exe.save(tmp_path / "merged.kyar")
    machine = ky.VirtualMachine(ky.load(tmp_path / "merged.kyar"), ky.cuda(products.emulator.index))
    x = floats(4, 64)
    assert_allclose(machine["main"](x)[1], evaluate(chain(4), [x])[1])
    assert np.any(np.asarray(machine["main"](x)[1].numpy()))


@pytest.mark.parametrize("outputs", [[[0, 0]], [[4, 0], [4, 0]]])
def test_results_that_no_kernel_gives_are_refused(outputs):
    (module,) = merged(chain(4)).attrs["external_modules"]
    damaged = read_json(module.save_to_bytes(), "cublas")
    damaged["graphs"][0]["outputs"] = outputs
    with pytest.raises(ArtifactCorruptedError):
        CublasRuntime.load_from_bytes(write_json(damaged), module.constants())
