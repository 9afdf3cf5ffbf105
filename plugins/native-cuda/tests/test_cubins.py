"""What the emulator runs compiles for GPUs: ptxas checks the inline PTX of every kind of kernel.

PTX of an architecture is that of later ones, too: what is written alike for both is compiled for the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import TensorType
from kernelyard.runtime.artifact import elf
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.generator import NativeCudaGenerator, compiler_is_here
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import matmul

from .test_conv_and_attention import CONVOLUTIONS, attention
from .test_products import ORDERS, SUMS, B, K, M, N, epilogue, product
from .test_rules import fused, lower

FIRST, LATER = "sm_80", "sm_90"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not compiler_is_here(), reason="neither nvcc nor NVRTC is installed"),
    pytest.mark.parametrize("arch", [FIRST, LATER]),
    pytest.mark.usefixtures("cubins_compiled_quickly"),
]


def generate(functions: dict[str, PrimFunc], arch: str, options: dict[str, bool]) -> NativeCudaModule:
    module = NativeCudaGenerator().generate(functions, Target("cuda", arch=arch), options)
    assert isinstance(module, NativeCudaModule)
    return module


def write(functions: dict[str, PrimFunc], arch: str, options: dict[str, bool]) -> str:
    """The text of the functions, which is not compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "find_kernel_compiler", lambda: None)
        return generate(functions, arch, options).image.source


def check_cubin(functions: dict[str, PrimFunc], arch: str, **options: bool) -> str:
    """The text of the functions; every kernel that is not written as for the first architecture is in the cubin."""
    new = {
        name: function
        for name, function in functions.items()
        if arch == FIRST or write({name: function}, arch, options) != write({name: function}, FIRST, options)
    }
    if new:
        module = generate(new, arch, options)
        image = np.frombuffer(module.image.cubins[arch], np.uint8)
        assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
    return write(functions, arch, options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32"])
def test_every_tile(monkeypatch, arch, dtype):
    shapes: list[Any] = list(matmul.TENSOR_SHAPES)
    by_rows = {16 * (40 + number): shape for number, shape in enumerate(shapes)}
    monkeypatch.setattr(matmul, "_choose", lambda it, shapes, machine: by_rows[it.a.extent])
    functions = {
        f"tile_{shape.rows}x{shape.columns}": product("mk", "kn", dtype, {"m": rows, "n": 512, "k": 512})
        for rows, shape in by_rows.items()
    }
    assert check_cubin(functions, arch, tf32=True, wgmma=False).count("// matmul: tensor cores") == len(shapes)


def test_products_of_any_size_in_every_order(arch):
    sizes = {"m": M, "n": N, "k": K, "b": B}
    functions = {
        f"{a}_{b}_{dtype}": product(a, b, dtype, sizes, "bmn" if "b" in a else "mn")
        for a, b in ORDERS
        for dtype in SUMS
    }
    check_cubin(functions, arch)


def test_vectors_and_split_sums(arch):
    functions = {
        f"{rows}_{order[1]}_{dtype}_{k}": product(order[0], order[1], dtype, {"m": rows, "n": 256, "k": k})
        for rows in (1, 5)
        for order in (("mk", "kn"), ("mk", "nk"))
        for dtype in ("float16", "float32", "int8")
        for k in (100, 4096)
    }
    check_cubin(functions, arch)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [16, 40, 64, 128])
def test_attention(arch, dtype, size):
    n = dims.symbol("n")
    functions = {
        causal: attention((2, n, 8, size), (2, n + 7, 2, size), (2, n + 7, 2, size), dtype, causal)
        for causal in ("none", "bottom_right")
    }
    rule = "wgmma_attention" if arch == LATER else "attention"
    assert check_cubin(functions, arch).count(f"// {rule}:") == 2
    assert write(functions, LATER, {"wgmma": False}) == write(functions, FIRST, {})


def test_convolutions_and_epilogues(arch):
    functions: dict[str, PrimFunc] = {"epilogue": fused(epilogue("nn.gelu"))}
    for name, (x, w, attributes, _) in CONVOLUTIONS.items():
        for dtype in ("float16", "bfloat16", "float32"):
            given = {"strides": (1, 1), "padding": (0, 0, 0, 0), **attributes}
            functions[f"{name}_{dtype}"] = lower("nn.conv2d", TensorType(x, dtype), TensorType(w, dtype), **given)
    check_cubin(functions, arch)
