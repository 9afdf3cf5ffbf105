"""Every template compiles, for GPUs of two generations; what its cubin says of a block is what the tile says."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.runtime.artifact import elf
from kernelyard.testing.offload_bench import module_of
from kernelyard_cutlass import compiler
from kernelyard_cutlass.epilogue import ACTIVATIONS, COMBINATIONS, Epilogue
from kernelyard_cutlass.kernels import (
    KINDS,
    AttentionKernel,
    Conv2dKernel,
    DecodeRowsKernel,
    DequantizeKernel,
    GemmKernel,
    NormKernel,
    PadKernel,
    Tile,
    TransposeKernel,
    entry_of,
)
from kernelyard_cutlass.runtime import load

from .conftest import NEEDS_TOOLCHAIN, compiled, runtime_of

pytestmark = NEEDS_TOOLCHAIN
ARCHS = ("sm_80", "sm_90")
WIDE, SMALL = Tile(128, 128, 32, 64, 64, 4), Tile(64, 64, 32, 32, 32, 5)
PLAIN = Epilogue()
RESIDUAL = Epilogue("gelu", "add", "relu")
BYTES = Tile(64, 64, 64, 32, 32, 8)
SPLIT = Tile(64, 64, 16, 32, 32, 3)


def gemm(dtype="float16", math="float16", output="float16", align=(8, 8, 8), tile=SMALL, epilogue=PLAIN, column=False):
    return GemmKernel(dtype, output, math, *align, tile, epilogue, column)


def conv(dtype="float16", math="float16", align=(8, 8, 8), tile=SMALL, epilogue=PLAIN):
    return Conv2dKernel(dtype, dtype, math, *align, tile, epilogue, "kOptimized")


KERNELS = {
    "gemm": gemm(tile=WIDE),
    "gemm, column-major, gelu": gemm(column=True, epilogue=Epilogue("gelu")),
    "gemm, residual": gemm(epilogue=RESIDUAL),
    "gemm, odd sizes": gemm(align=(1, 1, 1), tile=Tile(64, 64, 32, 32, 32, 2), epilogue=RESIDUAL),
    "gemm, bfloat16 to float32": gemm("bfloat16", "bfloat16", "float32", (8, 8, 4), epilogue=Epilogue("silu")),
    "gemm, float32 as 3xtf32": gemm("float32", "3xtf32", "float32", (4, 4, 4), SPLIT, RESIDUAL),
    "gemm, float32 as tf32": gemm("float32", "tf32", "float32", (1, 4, 1), Tile(64, 64, 16, 32, 32, 8)),
    "gemm, int8": gemm("int8", "int8", "int32", (16, 16, 4), BYTES, column=True),
    "conv2d, silu": conv(epilogue=Epilogue("silu")),
    "conv2d, residual": conv(tile=WIDE, epilogue=RESIDUAL),
    "conv2d, three channels": conv(align=(1, 1, 8), tile=Tile(64, 64, 32, 32, 32, 2)),
    "conv2d, wide window": replace(conv(), algorithm="kAnalytic"),
    "conv2d, float32": conv("float32", "3xtf32", (4, 4, 4), SPLIT),
    "attention": AttentionKernel("float16", True, False, 64, 64, 64),
    "attention, bias": AttentionKernel("bfloat16", False, True, 32, 128, 128),
    "attention, wide values": AttentionKernel("float16", True, False, 32, 128, 65536),
    "attention, float32": AttentionKernel("float32", True, True, 64, 64, 64),
    "layer norm": NormKernel("float16", False, 8, 256),
    "rms norm": NormKernel("bfloat16", True, 1, 32),
    "decode, 4 bits": DecodeRowsKernel("float16", 4, 128, "float32", 4, Epilogue("gelu")),
    "decode, 8 bits, residual": DecodeRowsKernel("bfloat16", 8, 128, "bfloat16", 4, RESIDUAL),
    "decode, float32": DecodeRowsKernel("float32", 4, 128, "float32", 4, PLAIN),
    "dequantize": DequantizeKernel("float16", 4, 256),
    "transpose": TransposeKernel("float16"),
    "pad": PadKernel("float32"),
}
MOST_SHARED_NBYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10}
# Of what these templates include, conversions and sums of a dtype or a math mode ask for the architecture: for the later
# one, the first kernel of each tells.
FIRST = {
    (kernel.template, kernel.dtype, getattr(kernel, "math", "")): name for name, kernel in reversed(KERNELS.items())
}
COMPILED = [*((name, "sm_80") for name in KERNELS), *((name, "sm_90") for name in FIRST.values())]


def test_every_template_is_here():
    assert {kernel.template for kernel in KERNELS.values()} == set(KINDS)


@pytest.mark.parametrize(("name", "arch"), COMPILED)
def test_a_template_compiles(name, arch):
    kernel = KERNELS[name]
    code = compiler.compile_kernel(kernel, arch)
    data = np.frombuffer(code.cubins[arch], np.uint8)
    assert elf.find_section(data, f".text.{entry_of(kernel)}") is not None
    assert 0 < code.threads <= 1024
    assert code.shared_nbytes <= MOST_SHARED_NBYTES[arch]
    if isinstance(kernel, (GemmKernel, Conv2dKernel)):
        assert code.threads == 32 * kernel.tile.warps
        itemsize = {"float32": 4, "int8": 1}.get(kernel.dtype, 2)
        assert code.shared_nbytes >= kernel.tile.shared_nbytes(itemsize)
    elif isinstance(kernel, AttentionKernel):
        assert code.threads == kernel.queries * kernel.keys // 32


@pytest.mark.parametrize(("activation", "combine"), list(zip(ACTIVATIONS, cycle(COMBINATIONS), strict=False)))
def test_every_functor_compiles(activation, combine):
    epilogue = Epilogue(activation, combine, activation)
    code = compiler.compile_kernel(DecodeRowsKernel("float16", 8, 128, "float16", 4, epilogue), "sm_90")
    assert code.threads == 128


def test_a_program_has_code_for_each_architecture():
    def build(b, x, w):
        return b.op("nn.relu", b.op("matmul", x, w))

    module = module_of(build, ((64, 64), "float16"), ((64, 64), "float16"))
    exe = compiled(module, arch=",".join(ARCHS))
    runtime = runtime_of(exe)
    assert all(set(code.cubins) == set(ARCHS) for code in runtime.codes.values())
    assert runtime.needs == "a GPU of sm_80, sm_90, or the emulator"
    again = load(runtime.save_to_bytes(), runtime.constants())
    assert again.codes == runtime.codes
    with pytest.raises(KernelyardError):
        ky.VirtualMachine(exe, ky.cuda(0))["main"](np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16))


def test_what_the_compiler_says_is_the_error():
    broken = GemmKernel("float16", "float16", "float16", 8, 8, 8, Tile(64, 64, 32, 48, 32, 3), PLAIN, False)
    with pytest.raises(KernelyardError, match="the CUDA compiler failed") as caught:
        compiler.compile_kernel(broken, "sm_80")
    assert "error" in str(caught.value.found)
