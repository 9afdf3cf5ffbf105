"""Budgets of machine code: instructions for each element, 16-byte stores, no local memory, loops of tensor cores.

Compiled by NVRTC for sm_90, and disassembled. A budget is some percent more than was counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kernelyard.dims import symbol
from kernelyard.ir import TensorType
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_native_cuda.generator import NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import wgmma

from .disassembly import Code, disassembled, find_disassembler
from .test_conv_and_attention import attention, channels_last_convolution
from .test_products import product
from .test_rules import lower

ARCH = "sm_90"
N = symbol("n")
LOCAL_MEMORY = ("LDL", "STL")

pytestmark = pytest.mark.cuda_libs


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    if find_disassembler() is None or cuda_compiler.find_kernel_compiler() is None:
        pytest.skip("nvdisasm, or NVRTC and nvcc, are not installed")


def rows(op: str, size: int, dtype: str, scales: int = 0) -> PrimFunc:
    types = [TensorType((N, size), dtype), *[TensorType((size,), dtype)] * scales]
    return lower(op, *types, **({"axes": (1,)} if scales else {"axis": 1}))


def elements(op: str, dtype: str, operands: int, *shape: object) -> PrimFunc:
    return lower(op, *[TensorType(shape or (N, 1024), dtype)] * operands)


def heads(dtype: str, causal: str) -> PrimFunc:
    return attention(*[(2, N, 8, 128)] * 3, dtype, causal)


class Budget(NamedTuple):
    """make: a function of one kernel. each: elements of a thread. most: instructions for each of them. stores: of 16
    bytes, at least."""

    make: Callable[[], PrimFunc]
    each: int
    most: float
    stores: int


BUDGETS = {
    "add float16": Budget(lambda: elements("add", "float16", 2), 8, 10.5, 1),
    "add bfloat16": Budget(lambda: elements("add", "bfloat16", 2), 8, 11, 1),
    "add float32": Budget(lambda: elements("add", "float32", 2), 4, 10, 1),
    "add float16 of any size": Budget(lambda: elements("add", "float16", 2, N), 8, 25, 1),
    "gelu float16": Budget(lambda: elements("nn.gelu", "float16", 1), 8, 24, 1),
    "gelu bfloat16": Budget(lambda: elements("nn.gelu", "bfloat16", 1), 8, 24, 1),
    "gelu by tanh float16": Budget(lambda: elements("nn.gelu_tanh", "float16", 1), 8, 25, 1),
    "tanh float16": Budget(lambda: elements("tanh", "float16", 1), 8, 17, 1),
    "silu float16": Budget(lambda: elements("nn.silu", "float16", 1), 8, 13, 1),
    "layer norm float16": Budget(lambda: rows("nn.layer_norm", 1024, "float16", 2), 32, 17, 4),
    "layer norm bfloat16": Budget(lambda: rows("nn.layer_norm", 1024, "bfloat16", 2), 32, 17, 4),
    "softmax float16": Budget(lambda: rows("nn.softmax", 2048, "float16"), 32, 15, 4),
    "softmax bfloat16": Budget(lambda: rows("nn.softmax", 2048, "bfloat16"), 32, 15, 4),
    "softmax float32": Budget(lambda: rows("nn.softmax", 2048, "float32"), 16, 31, 4),
}


def code_of(function: PrimFunc, folder: Path, **options: bool) -> Code:
    """The code of a function's only kernel."""
    module = NativeCudaGenerator().generate({"f": function}, Target("cuda", arch=ARCH), options)
    assert isinstance(module, NativeCudaModule)
    (kernel,) = module.image.kernels
    return disassembled(module.image.cubins[ARCH], (kernel,), folder)[kernel]


@pytest.mark.parametrize("name", BUDGETS)
def test_instructions_for_each_element(tmp_path, name):
    budget = BUDGETS[name]
    code = code_of(budget.make(), tmp_path)
    assert code.count(*LOCAL_MEMORY) == 0
    assert code.count("STG.E.128") >= budget.stores
    assert code.count("LDG.E.128") >= budget.stores
    assert not code.loops
    assert code.length / budget.each <= budget.most


@pytest.mark.parametrize(("op", "least"), [("nn.softmax", 4), ("sum", 4), ("argmax", 2)])
def test_long_rows_have_loads_in_flight(tmp_path, op, least):
    function = lower(op, TensorType((128, 50257), "float16"), **({"axes": (1,)} if op == "sum" else {"axis": 1}))
    code = code_of(function, tmp_path)
    assert code.count(*LOCAL_MEMORY) == 0
    names = [code.instructions[place].name for place in code.loop_with("LDG.E.128")]
    first_use = next(number for number, name in enumerate(names) if name.startswith("HADD2.F32"))
    assert sum(name.startswith("LDG.E.128") for name in names[:first_use]) >= least


@pytest.mark.parametrize("vectors", [1, 8])
def test_rows_of_results_are_loaded_before_the_first_is_used(tmp_path, vectors):
    code = code_of(product("mk", "kn", "float32", {"m": vectors, "n": 11008, "k": 4096}), tmp_path)
    assert code.count(*LOCAL_MEMORY) == 0
    names = [code.instructions[place].name for place in code.loop_with("LDG.E.128")]
    loads = [number for number, name in enumerate(names) if name.startswith("LDG.E.128")]
    assert len(loads) >= 4
    assert not any(name.startswith("FFMA") for name in names[: loads[3]])


# The tensor cores' instructions of the loop, and how many others there may be for each of them: in all of it, and on the
# shortest way through it, on which nothing is left to copy and no score is masked.
LOOPS = {
    "matmul float16": (lambda: product("mk", "kn", "float16", {"m": 4096, "n": 4096, "k": 4096}), 128, 3.2, 2.2),
    "matmul bfloat16": (lambda: product("mk", "kn", "bfloat16", {"m": 4096, "n": 4096, "k": 4096}), 128, 3.2, 2.2),
    "convolution float16": (lambda: channels_last_convolution("of 256 channels", "float16"), 128, 3.2, 2.2),
    "convolution bfloat16": (lambda: channels_last_convolution("of 256 channels", "bfloat16"), 128, 3.2, 2.2),
    "convolution of 64 channels": (lambda: channels_last_convolution("of 64 channels", "float16"), 64, 3.8, 2.2),
    "strided convolution": (lambda: channels_last_convolution("of 128 channels, strided", "float16"), 128, 3.3, 2.2),
    "convolution of one element": (
        lambda: channels_last_convolution("of 1024 channels, of one element", "float16"),
        128,
        3.2,
        2.2,
    ),
    "attention float16": (lambda: heads("float16", "none"), 128, 8.0, 5.6),
    "attention bfloat16": (lambda: heads("bfloat16", "none"), 128, 8.0, 5.6),
    "causal attention float16": (lambda: heads("float16", "bottom_right"), 128, 9.4, 5.6),
    "causal attention bfloat16": (lambda: heads("bfloat16", "bottom_right"), 128, 9.4, 5.6),
}


@pytest.mark.parametrize("name", LOOPS)
def test_instructions_of_a_loop_for_each_of_tensor_cores(tmp_path, name):
    make, products, most, most_on_shortest_way = LOOPS[name]
    code = code_of(make(), tmp_path, wgmma=False)
    assert code.count(*LOCAL_MEMORY) == 0
    loop = code.loop_with("HMMA")
    assert code.count("HMMA", inside=loop) == products
    assert len(loop) / products <= most
    assert code.shortest(loop) / products <= most_on_shortest_way


@pytest.mark.parametrize("order", [("mk", "nk"), ("mk", "kn"), ("km", "kn")])
@pytest.mark.parametrize("shape", wgmma.SHAPES, ids=lambda shape: f"{shape.rows}x{shape.columns}")
def test_loops_of_warp_groups(tmp_path, monkeypatch, shape, order):
    """An instruction of tensor cores has 64 rows and 16 elements of the sum; a step is 64, two of which may be unrolled."""
    monkeypatch.setattr(wgmma, "choose", lambda it, machine: shape)
    function = product(*order, "float16", {"m": 4096, "n": 4096, "k": 4096})
    code = code_of(function, tmp_path, wgmma=True)
    assert code.count(*LOCAL_MEMORY) == 0
    assert code.count("USETMAXREG") == 2
    assert code.registers * shape.threads * shape.blocks <= 1 << 16
    loop = code.loop_with("HGMMA")
    products = code.count("HGMMA", inside=loop)
    assert products % (4 * shape.rows // (64 * shape.consumers)) == 0
    assert products > 0
    assert len(loop) / products <= 20
    assert code.count("LDS", "STS", "LDG", "BAR", inside=loop) == 0
    assert code.count("STG.E.128") == code.count("STG") > 0


@pytest.mark.parametrize("name", ["of 64 channels", "of 128 channels, strided"])
def test_convolutions_copy_and_store_sixteen_bytes(tmp_path, name):
    code = code_of(channels_last_convolution(name, "float16"), tmp_path, wgmma=False)
    assert code.count("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.E.BYPASS.128") == code.count("LDGSTS") > 0
    assert code.count("STG.E.128") == code.count("STG") > 0
    assert code.count("LDG.") == 0


@pytest.mark.parametrize("name", ["of 64 channels", "of 256 channels"])
def test_loops_of_convolutions_by_warp_groups(tmp_path, name):
    code = code_of(channels_last_convolution(name, "float16"), tmp_path, wgmma_convolutions=True)
    assert code.count(*LOCAL_MEMORY) == 0
    loop = code.loop_with("HGMMA")
    assert len(loop) / code.count("HGMMA", inside=loop) <= 20
    assert code.count("LDS", "STS", "LDG", "BAR", inside=loop) == 0
    assert code.count("STG.E.128") == code.count("STG") > 0


def test_epilogues_of_products_store_sixteen_bytes(tmp_path):
    code = code_of(product("mk", "kn", "float16", {"m": 4096, "n": 4096, "k": 4096}), tmp_path, wgmma=False)
    assert code.count("STG.E.128") == code.count("STG") > 0
