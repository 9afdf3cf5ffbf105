"""Every family on a GPU, beside the reference: what the emulator cannot say, the templates themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import DeviceError
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of, module_of
from kernelyard_cuda.driver_api import CudaDriver
from kernelyard_cutlass.backend import CutlassBackend

from .conftest import composites
from .test_tvm_scenarios import conv_nhwc, decoded, finished, transposed, weight

pytestmark = pytest.mark.gpu
F16, N = "float16", symbol("n")


@pytest.fixture(scope="module")
def arch():
    missing = CutlassBackend().facts()["CUTLASS"] if "NVRTC" not in CutlassBackend().facts() else ""
    if missing:
        pytest.skip(missing)
    try:
        driver = ky.cuda(0).open()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.found}")
    assert isinstance(driver, CudaDriver)
    return "sm_{}{}".format(*driver.capability)


def product(b, x, w, bias, residual):
    return finished(b, b.op("matmul", x, w), (bias, residual), "gelu", "add", "relu")


def transposed_product(b, x, w):
    return b.op("matmul", x, transposed(b, w))


def convolution(b, x, w, bias, residual):
    return finished(b, conv_nhwc(b, x, w, padding=(1, 1, 1, 1)), (bias, residual), "silu", "add", "relu")


def int8(b, x, w):
    wide = [b.op("astype", each, dtype="int32") for each in (x, transposed(b, w))]
    return b.op("matmul", *wide)


def attention(causal="none", bias=False):
    return lambda b, *operands: b.op("nn.attention_bias" if bias else "nn.attention", *operands, causal=causal)


def few_bits(bits):
    stored, scales = weight(bits, 512, 256, 4)
    return lambda b, x: b.op("matmul", x, decoded(b, stored, scales, 128))


def qkv(rows, columns, heads, shared, size, wide, dtype=F16):
    return [
        ((2, r, h, s), dtype) for r, h, s in ((rows, heads, size), (columns, shared, size), (columns, shared, wide))
    ]


def norm(name):
    return lambda b, x, *parameters: b.op(name, x, *parameters, axes=(1,))


CASES = {
    "product": (product, [((N, 64), F16), ((64, 128), F16), ((128,), F16), ((N, 128), F16)]),
    "product, odd sizes": (product, [((N, 33), F16), ((33, 17), F16), ((17,), F16), ((N, 17), F16)]),
    "product, float32": (
        product,
        [((N, 36), "float32"), ((36, 20), "float32"), ((20,), "float32"), ((N, 20), "float32")],
    ),
    "product, bfloat16": (
        product,
        [((N, 40), "bfloat16"), ((40, 24), "bfloat16"), ((24,), "bfloat16"), ((N, 24), "bfloat16")],
    ),
    "products": (transposed_product, [((3, N, 32), F16), ((3, 24, 32), F16)]),
    "int8": (int8, [((N, 64), "int8"), ((40, 64), "int8")]),
    "convolution": (convolution, [((2, 9, 8, 16), F16), ((24, 3, 3, 16), F16), ((24,), F16), ((2, 9, 8, 24), F16)]),
    "convolution, three channels": (conv_nhwc, [((2, 9, 8, 3), F16), ((8, 3, 3, 3), F16)]),
    "attention": (attention(), qkv(N, 77, 4, 4, 64, 64)),
    "attention, shared keys": (attention(), qkv(N, 77, 4, 2, 64, 64)),
    "attention, causal": (attention("bottom_right"), qkv(N, 130, 2, 2, 32, 32)),
    "attention, bias": (attention(bias=True), [*qkv(N, 77, 4, 4, 64, 64), ((2, 1, 1, 77), F16)]),
    "attention, wide": (attention(), qkv(N, 70, 2, 2, 128, 256)),
    "attention, float32": (attention("top_left"), qkv(N, 70, 2, 2, 12, 20, "float32")),
    "layer norm": (norm("nn.layer_norm"), [((N, 768), F16), ((768,), F16), ((768,), F16)]),
    "rms norm": (norm("nn.rms_norm"), [((N, 1001), "float32"), ((1001,), "float32")]),
    "4 bits": (few_bits(4), [((N, 512), F16)]),
    "8 bits": (few_bits(8), [((N, 512), F16)]),
}


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_family_on_a_gpu(name, tune, arch):
    build, inputs = CASES[name]
    module = module_of(build, *inputs)
    target = ky.Target("cuda", arch=arch)
    exe = ky.compile(module, target=target, backends=["cutlass"], options={"cutlass": {"tune": tune}}, strict=True)
    assert len(composites(exe)) == 1
    machine = ky.VirtualMachine(exe, ky.cuda(0))
    for size in (1, 5, 100):
        feeds = feeds_of(module, n=size)
        found = np.asarray(machine["main"](*feeds).numpy())
        # Products of float32 are those of tensor cores.
        assert_allclose(found, evaluate(module, feeds)[0], F16 if found.dtype == np.float32 else None)
