"""Scales that are not the ratios of the sizes: oneDNN knows no others, so these stay with the generated kernels."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate

MODES = {
    "linear": {"method": "linear", "coordinate_transformation_mode": "half_pixel"},
    "nearest": {"method": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
}


def resized(mode: str, size: dims.Dim, sizes: tuple[dims.Dim, ...], scales: tuple[float, ...]) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (1, 2, size, size))
    return IRModule({"main": b.function(b.op("image.resize", x, sizes=sizes, scales=scales, **MODES[mode]))})


@pytest.mark.parametrize(("mode", "size", "out", "scale"), [("linear", 11, 6, 0.6), ("nearest", 3, 6, 2.3)])
def test_other_scales_are_declined_and_right(mode: str, size: int, out: int, scale: float) -> None:
    module = resized(mode, size, (out, out), (scale, scale))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "attribute", "dnnl.resample")
    x = np.random.default_rng(0).standard_normal((1, 2, size, size)).astype(np.float32)
    assert_allclose(exe(x), evaluate(module, [x])[0])


@pytest.mark.parametrize(("mode", "size", "out", "scale"), [("linear", 10, 6, 0.6), ("nearest", 3, 6, 2.0)])
def test_ratios_of_the_sizes_are_taken(mode: str, size: int, out: int, scale: float) -> None:
    module = resized(mode, size, (out, out), (scale, scale))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.resample")
    x = np.random.default_rng(0).standard_normal((1, 2, size, size)).astype(np.float32)
    assert_allclose(exe(x), evaluate(module, [x])[0])


def test_symbolic_sizes_with_whole_scales_are_taken() -> None:
    n = dims.symbol("n")
    module = resized("nearest", n, (2 * n, 2 * n), (2.0, 2.0))
    assert_offloaded(ky.explain(module, backends=["dnnl"]), "dnnl", "dnnl.resample")
