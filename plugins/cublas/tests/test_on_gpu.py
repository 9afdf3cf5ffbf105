"""On a GPU: what the emulation promises of the library is what it does. `make gpu-test` runs these."""

from __future__ import annotations

import json
import warnings

import ml_dtypes
import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dtypes
from kernelyard.dims import symbol
from kernelyard.errors import KernelyardError, PerformanceWarning
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of, module_of, values
from kernelyard_cublas.runtime import api_of
from kernelyard_cublas.type_table import FP8, FP8_CAPABILITY
from kernelyard_cuda.driver_api import CudaDriver

from .conftest import compiled, region_of, runtime_of
from .test_tvm_scenarios import INTEGERS, OFFLOADED, SIZES, case, pattern, scaled_by_two, transposed

pytestmark = pytest.mark.gpu
A, N = symbol("a"), symbol("n")
# The library's tanh is the hardware's, with 11 bits.
ROUGH = {"float32": "float16"}
# Tensor cores of Hopper keep 14 bits of what they sum up of float8, whatever the result's type: they align the products
# of a step to the largest and truncate them (DeepSeek-V3 Technical Report, section 3.5.2; found on an H200: 1e-4).
FLOAT8_SUM = 2.0**-12  # of the sum of the products' magnitudes


@pytest.fixture(scope="module")
def gpu():
    try:
        driver = ky.cuda(0).open()
        assert isinstance(driver, CudaDriver)
        api_of(driver)
    except KernelyardError as error:
        pytest.skip(f"{error.message}: {error.found}; {error.hint}")
    return driver


def right(exe, module, rough=False, **sizes):
    """What the GPU gives is what the reference gives: one step at a time, and captured."""
    feeds = feeds_of(module, **sizes)
    wanted = evaluate(module, feeds)[0]
    dtype = wanted.dtype.name
    machine = ky.VirtualMachine(exe, ky.cuda(0))
    for _ in range(3):
        assert_allclose(machine["main"](*feeds).numpy(), wanted, ROUGH.get(dtype) if rough else None)


def offloaded(name, module, **options):
    exe = compiled(module, **options)
    assert region_of(exe).pattern == f"cublas.{name}", str(exe.report)
    return exe


def taken(name, build, *inputs, rough=False, options=None, **sizes):
    module = module_of(build, *inputs)
    exe = offloaded(name, module, **(options or {}))
    right(exe, module, rough, **sizes)
    return exe


def right_of_float8(exe, module, dtype, **sizes):
    """Hold what the GPU gives to within a step of the result's dtype, and what tensor cores drop of a sum, of the exact one."""
    feeds = feeds_of(module, **sizes)
    x, w, *scales = (each.astype(np.float64) for each in feeds)
    scale = np.prod([each.item() for each in scales])
    exact, magnitudes = scale * (x @ w.T), abs(scale) * (abs(x) @ abs(w).T)
    limits = ml_dtypes.finfo(dtypes.to_numpy(dtype))
    step = np.maximum(float(limits.eps) * abs(exact), float(limits.smallest_subnormal))
    machine = ky.VirtualMachine(exe, ky.cuda(0))
    for _ in range(3):
        found = machine["main"](*feeds).numpy().astype(np.float64)
        assert (abs(found - exact) <= FLOAT8_SUM * magnitudes + step).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize(("left", "right_", "is_transposed", "epilogue"), OFFLOADED, ids=str)
def test_products_and_epilogues(left, right_, is_transposed, epilogue, dtype, gpu):
    build, *inputs = case(left, right_, is_transposed, epilogue, dtype, gelu="nn.gelu_tanh")
    taken(pattern(is_transposed, epilogue), build, *inputs, rough=epilogue == "gelu", **SIZES)


@pytest.mark.parametrize(("left", "right_", "is_transposed"), INTEGERS, ids=str)
def test_products_of_integers(left, right_, is_transposed, gpu):
    build, *inputs = case(left, right_, is_transposed, "", "int8", cast="int32")
    taken(pattern(is_transposed, ""), build, *inputs, **SIZES)


def test_integers_of_any_number_of_rows(gpu):
    """Generated kernels run those that the library has no algorithm for."""

    def build(b, x):
        weight = values((64, 48), "int8", 1)
        return b.op("matmul", b.op("astype", x, dtype="int32"), b.op("astype", weight, dtype="int32"))

    module = module_of(build, ((N, 64), "int8"))
    exe = compiled(module, "sm_{}{}".format(*gpu.capability))
    assert region_of(exe).fallback
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        for rows in (1, 3, 4, 16, 17, 18, 33, 256):
            right(exe, module, n=rows)


def test_integers_restored_by_a_scale(gpu):
    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        return b.op("dequantize", b.op("matmul", x, transposed(b, w)), np.float32(0.125), np.int32(0))

    taken("matmul_transposed_dequantize", build, ((32, 32), "int8"), ((16, 32), "int8"))


@pytest.mark.parametrize("result", ["float32", "float16", "bfloat16", FP8])
def test_products_of_float8(result, gpu):
    if gpu.capability < FP8_CAPABILITY:
        pytest.skip("this GPU has no float8 matmul")
    build, *inputs = case((16, 32), (32, 16), True, "", FP8, cast=None if result == FP8 else result)
    module = module_of(build, *inputs)
    right_of_float8(offloaded("matmul_transposed", module), module, result)


@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32"])
def test_scales_of_float8(result, gpu):
    if gpu.capability < FP8_CAPABILITY:
        pytest.skip("this GPU has no float8 matmul")
    build, *inputs = scaled_by_two(result)
    module = module_of(build, *inputs)
    right_of_float8(offloaded("matmul_transposed_multiply", module), module, result, a=16)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_residuals(dtype, gpu):
    def build(b, x, w, y):
        return b.op("add", b.op("matmul", x, w), y)

    for residual in ((3, 5, 4, 6), (4, 6)):
        taken("matmul_residual", build, ((3, 5, 4, 8), dtype), ((3, 5, 8, 6), dtype), (residual, dtype))


def test_operands_stored_transposed(gpu):
    def build(b, x, w):
        return b.op("matmul", transposed(b, x), transposed(b, w))

    taken("matmul_transposed", build, ((A, 8, 4), "float16"), ((A, 6, 8), "float16"), a=3)


def test_tf32_rounds_operands(gpu):
    weight = np.ones((256, 256), np.float32)
    module = module_of(lambda b, x: b.op("matmul", x, weight), ((256, 256), "float32"))
    x = values((256, 256), "float32")
    errors = []
    for tf32 in (False, True):
        found = ky.VirtualMachine(compiled(module, tf32=tf32), ky.cuda(0))["main"](x).numpy()
        errors.append(np.abs(found - x.astype(np.float64) @ weight).max())
    assert errors[0] < 1e-3 < errors[1]


def layers(b, x):
    for seed in range(3):
        x = b.op("nn.relu", b.op("matmul", x, values((64, 64), "float16", seed)))
    return x


def test_measured_algorithms_are_saved_and_used(gpu, tmp_path):
    module = module_of(layers, ((N, 64), "float16"))
    exe = compiled(module, tune=True)
    right(exe, module, n=32)
    exe.save(tmp_path / "layers.kyar")
    again = ky.load(tmp_path / "layers.kyar")
    (entry,) = json.loads(runtime_of(again).save_to_bytes())["algorithms"]
    assert entry["tuned"]
    assert entry["device"] == "sm_{}{}".format(*gpu.capability)
    assert entry["library"] == api_of(gpu).version
    right(again, module, n=32)


def test_many_sizes(gpu):
    module = module_of(layers, ((N, 64), "float16"))
    machine = ky.VirtualMachine(compiled(module), ky.cuda(0))
    for rows in (1, 7, 128, 1000, 7):
        feeds = feeds_of(module, n=rows)
        assert_allclose(machine["main"](*feeds).numpy(), evaluate(module, feeds)[0])
