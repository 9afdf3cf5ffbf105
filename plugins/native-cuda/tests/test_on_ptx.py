"""Execute the PTX of generated kernels by the interpreter; it gives what the reference gives.

The emulator runs the same text as C++; here the compiler for GPUs, the inline PTX and its constraints are tested as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from ptx import driver as ptx_driver
from ptx.driver import PtxDriver, ptx_of

from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard_cuda import nvrtc
from kernelyard_native_cuda.runtime import NativeCudaModule

from .conftest import check_kernel, generate, run_on
from .test_conv_and_attention import CHANNELS_LAST, attention, channels_last_convolution, numbers
from .test_products import product
from .test_rules import N, lower, whole

pytestmark = [pytest.mark.slow, pytest.mark.skipif(nvrtc.find() is None, reason="NVRTC is not installed")]


class Case(NamedTuple):
    """Describe a kernel and what it is given.

    make: the function. shapes, dtype: of its inputs. has: an instruction that its PTX must have. n: the symbol.
    whole: inputs are whole numbers, whose sums are exact in any order.
    """

    make: Callable[[], PrimFunc]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    has: str
    n: int = 3
    whole: bool = False


def of_rows(op: str, size: int, dtype: str, has: str, operands: int = 1, **attributes: Any) -> Case:
    """An operator of rows, whose operands from the second on are one row."""
    types = [TensorType((N, size), dtype), *[TensorType((size,), dtype)] * (operands - 1)]
    return Case(lambda: lower(op, *types, **attributes), ((3, size), *[(size,)] * (operands - 1)), dtype, has)


def of_matrices(order: str, dtype: str, has: str) -> Case:
    """A matrix product at sizes that fit no tile: the right operand's axes in some order."""
    sizes = {"m": 40, "n": 24, "k": 72}
    shapes = ((40, 72), tuple(sizes[letter] for letter in order))
    return Case(lambda: product("mk", order, dtype, sizes), shapes, dtype, has, whole=True)


HEADS = ((1, 20, 4, 64), (1, 27, 2, 64), (1, 27, 2, 64))
ATTENTION_TYPES = ((1, N, 4, 64), (1, N + 7, 2, 64), (1, N + 7, 2, 64))
CASES = {
    "add_float16": of_rows("add", 1024, "float16", r"ld\.global\.nc\.v4", 2),
    "gelu_bfloat16": of_rows("nn.gelu", 100, "bfloat16", r"ex2\.approx"),
    "softmax_float16": of_rows("nn.softmax", 200, "float16", r"shfl\.sync\.bfly", axis=1),
    "layer_norm_float32": of_rows("nn.layer_norm", 200, "float32", r"shfl\.sync\.bfly", 3, axes=(1,)),
    "sum_float32": of_rows("sum", 700, "float32", r"add\.f32", axes=(1,)),
    "argmax_float16": of_rows("argmax", 300, "float16", r"setp", axis=1),
    "cumsum_float32": of_rows("cumsum", 130, "float32", r"bar\.sync|shfl\.sync", axis=1)._replace(whole=True),
    "matmul_float16": of_matrices("kn", "float16", r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16"),
    "matmul_bfloat16": of_matrices("nk", "bfloat16", r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16"),
    "matmul_int8": of_matrices("nk", "int8", r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8"),
    "matmul_float32": of_matrices("kn", "float32", r"fma\.rn\.f32"),
    "attention": Case(
        lambda: attention(*ATTENTION_TYPES, "float16", "bottom_right"), HEADS, "float16", r"ldmatrix.*\.trans", 20
    ),
}


@pytest.fixture(scope="module")
def module() -> NativeCudaModule:
    """All of them as one program, which is compiled once."""
    return generate({name: case.make() for name, case in CASES.items()})


@pytest.fixture(scope="module")
def driver() -> PtxDriver:
    return PtxDriver()


@pytest.fixture(scope="module")
def entries(module, driver) -> dict[str, str]:
    """The PTX of each kernel."""
    parts = ptx_of(module.image.source, driver.arch).split(".visible .entry ")[1:]
    return {part.split("(", 1)[0]: part for part in parts}


def inputs_of(case: Case) -> list[np.ndarray]:
    if case.whole:
        return [whole(*shape, dtype=case.dtype) for shape in case.shapes]
    return numbers(case.dtype, *case.shapes)


@pytest.mark.parametrize("name", CASES)
def test_kernels(module, driver, entries, name):
    case = CASES[name]
    kernels = [launch.kernel for launch in module.function(name).launches]
    assert any(re.search(case.has, entries[kernel]) for kernel in kernels)
    check_kernel(driver, module, name, case.make(), inputs_of(case), {"n": case.n})


@pytest.mark.parametrize("name", ["padded", "of one element"])
def test_convolutions(driver, name):
    x, w, *_ = CHANNELS_LAST[name]
    function = channels_last_convolution(name, "float16")
    filters = whole(*w, dtype="float16").transpose(0, 2, 3, 1)
    check_kernel(driver, generate({"f": function}), "f", function, [whole(*x, dtype="float16"), filters])


@pytest.fixture
def without(monkeypatch) -> Callable[[str], None]:
    """`without(pattern)`: the interpreter gets PTX whose instructions of that pattern are gone."""

    def remove(pattern: str) -> None:
        def changed(source: str, arch: str) -> str:
            text, count = re.subn(rf"^\s*{pattern}[^;]*;", "", ptx_of(source, arch), flags=re.MULTILINE)
            assert count
            return text

        monkeypatch.setattr(ptx_driver, "ptx_of", changed)

    return remove


def test_a_product_that_does_not_wait_for_its_copies_is_wrong(module, without):
    """Copies that nobody has waited for have not arrived: the sum is that of unwritten memory."""
    without(r"cp\.async\.wait")
    again = NativeCudaModule.load_from_bytes(module.save_to_bytes(), {})  # its code is loaded anew
    (found,) = run_on(PtxDriver(), again, "matmul_float16", inputs_of(CASES["matmul_float16"]))
    assert np.isnan(found).all()
