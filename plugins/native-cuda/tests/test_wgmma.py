"""Products by warp groups of sm_90a: every tile, order of memory and size gives exactly what it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelyard import dtypes
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError
from kernelyard.ir import Expr, FunctionBuilder
from kernelyard.plugins.codegen_api import Declined
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.artifact import elf
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_cuda.compiler import find_kernel_compiler
from kernelyard_cuda.function_info import FunctionInfo, LaunchInfo, TensorMapInfo, read_function_info
from kernelyard_native_cuda import generator, runtime
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import wgmma
from kernelyard_native_cuda.schedule.machine import machine_of
from kernelyard_native_cuda.schedule.rules import schedule, stages_of

from .conftest import assert_close, run_on
from .test_products import check_equal, inputs_of, product
from .test_rules import fused, random

M, B = symbol("m"), symbol("b")
HOPPER = machine_of(["sm_90"], allows_wgmma=True)


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch) -> None:
    """The emulator takes text alone."""
    monkeypatch.setattr(generator, "find_kernel_compiler", lambda: None)


def generate(functions: dict[str, PrimFunc], arch: str = "sm_90") -> NativeCudaModule:
    module = NativeCudaGenerator().generate(functions, Target("cuda", arch=arch), {})
    assert isinstance(module, NativeCudaModule)
    return module


def by_warp_groups(functions: dict[str, PrimFunc]) -> NativeCudaModule:
    """The functions compiled, a kernel by warp groups in each."""
    module = generate(functions)
    assert module.image.source.count("// wgmma: warp groups") == len(functions)
    return module


def multiprocessors(monkeypatch, many: int) -> None:
    """Have as many multiprocessors in every machine: blocks make several tiles each."""
    monkeypatch.setattr(generator, "machine_of", lambda *given: replace(machine_of(*given), multiprocessors=many))


# --- results ----------------------------------------------------------------------------------------------------------
LAYOUTS = [("mk", "nk"), ("mk", "kn"), ("km", "kn"), ("km", "nk")]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_tile(emulator, monkeypatch, dtype):
    """At sizes a little above a tile and below one, and each layout of both operands."""
    by_size: dict[Any, wgmma.GroupShape] = {}
    functions: dict[str, PrimFunc] = {}
    cases: dict[str, tuple[tuple[str, str], dict[str, int]]] = {}
    for number, shape in enumerate(wgmma.SHAPES):
        for above in (8, -8):
            sizes = {"m": shape.rows + above, "n": shape.columns + 2 * above, "k": 72 + 8 * number}
            letters = LAYOUTS[(number + (above > 0) * 2) % 4]
            name = f"tile_{shape.rows}x{shape.columns}_{above > 0}"
            by_size[sizes["m"], sizes["n"]] = shape
            functions[name], cases[name] = product(*letters, dtype, sizes), (letters, sizes)
    monkeypatch.setattr(wgmma, "LEAST", 40)
    monkeypatch.setattr(wgmma, "choose", lambda it, machine: by_size[it.a.extent, it.b.extent])
    module = by_warp_groups(functions)
    for name, function in functions.items():
        letters, sizes = cases[name]
        check_equal(emulator, module, name, function, inputs_of(letters, dtype, sizes))


@pytest.mark.parametrize(
    ("letters", "number"), [(letters, number) for number, letters in zip((2, 5, 4, 3), LAYOUTS, strict=True)]
)
def test_every_layout_with_several_tiles_for_each_block(emulator, monkeypatch, letters, number):
    multiprocessors(monkeypatch, 1)
    monkeypatch.setattr(wgmma, "choose", lambda it, machine: wgmma.SHAPES[number])
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True, order=1))
    sizes = {"m": 136, "n": 72, "k": 456}  # more steps than stages
    function = product(*letters, "float16", sizes)
    check_equal(emulator, by_warp_groups({"f": function}), "f", function, inputs_of(letters, "float16", sizes))


@pytest.fixture(scope="module")
def symbolic(emulator) -> tuple[PrimFunc, NativeCudaModule]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "find_kernel_compiler", lambda: None)
        multiprocessors(patch, 2)
        function = product("bmk", "kn", "float16", {"m": M, "n": 72, "k": 72, "b": B}, "bmn")
        return function, by_warp_groups({"f": function})


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(0, 150), batches=st.integers(0, 3), order=st.integers(0, 3))
def test_any_number_of_rows_and_batches(emulator, symbolic, rows, batches, order):
    function, module = symbolic
    inputs = inputs_of(("bmk", "kn"), "float16", {"m": rows, "n": 72, "k": 72, "b": batches})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "checks", Checks(order=order))
        check_equal(emulator, module, "f", function, inputs, {"m": rows, "b": batches})


def test_batches_of_both_operands(emulator):
    sizes = {"m": 72, "n": 80, "k": 88, "b": 3}
    functions = {f"{a}_{b}": product(a, b, "bfloat16", sizes, "bmn") for a, b in (("bmk", "bkn"), ("mbk", "bnk"))}
    module = by_warp_groups(functions)
    for name, function in functions.items():
        check_equal(emulator, module, name, function, inputs_of(name.split("_"), "bfloat16", sizes))


def linear(activation: str, dtype: str) -> PrimFunc:
    """A product with bias, activation, a scale for each column, and a residual."""

    def build(builder: FunctionBuilder) -> Expr:
        x, w = builder.input("x", (136, 96), dtype), builder.input("w", (96, 72), dtype)
        bias, scale = (builder.input(name, (72,), dtype) for name in ("bias", "scale"))
        y = builder.op(activation, builder.op("add", builder.op("matmul", x, w), bias))
        return builder.op("add", builder.op("multiply", y, scale), builder.input("residual", (136, 72), dtype))

    return fused(build)


@pytest.mark.parametrize("activation", ["nn.relu", "nn.gelu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_epilogues(emulator, activation, dtype):
    function = linear(activation, dtype)
    module = by_warp_groups({"f": function})
    inputs = [(random(*buffer.shape) / 4).astype(dtypes.to_numpy(dtype)) for buffer in function.inputs]
    (found,) = run_on(emulator, module, "f", inputs)
    (wanted,) = evaluate(function, inputs)
    assert_close(found, wanted, dtype)


# --- choices ----------------------------------------------------------------------------------------------------------
def reason(function: PrimFunc, arch: str = "sm_90") -> str:
    made = wgmma.wgmma(stages_of(function), "k", machine_of(arch.split(","), allows_wgmma=True))
    return made.reason if isinstance(made, Declined) else f"taken: {made.reason}"


SQUARE = {"m": 256, "n": 256, "k": 256}
REASONS = {
    "the target is not sm_90 alone": (product("mk", "kn", "float16", SQUARE), "sm_80,sm_90"),
    "the operands are not both float16, or bfloat16": (product("mk", "kn", "float32", SQUARE), "sm_90"),
    "the sum is not known to have 64 elements": (product("mk", "nk", "float16", {**SQUARE, "k": 8 * M}), "sm_90"),
    "there are fewer than 64 rows or columns": (product("mk", "nk", "float16", {**SQUARE, "m": 48}), "sm_90"),
    "rows are not known to be a multiple of 16 bytes apart": (
        product("mk", "nk", "float16", {**SQUARE, "k": 100}),
        "sm_90",
    ),
}


@pytest.mark.parametrize("words", REASONS)
def test_what_is_left_to_mma_says_why(words):
    function, arch = REASONS[words]
    assert words in reason(function, arch)
    assert any(
        rule == "matmul"
        for rule, _ in schedule(function, "k", machine_of(arch.split(","), allows_wgmma=True)).choices[-1][-1:]
    )


@pytest.mark.parametrize(("options", "is_by_warp_groups"), [({}, True), ({"wgmma": False}, False)])
def test_products_of_sm_90_are_by_warp_groups_unless_the_option_says_otherwise(options, is_by_warp_groups):
    function = product("mk", "kn", "float16", SQUARE)
    made = NativeCudaGenerator().generate({"f": function}, Target("cuda", arch="sm_90"), options)
    assert isinstance(made, NativeCudaModule)
    assert ("warp groups" in made.image.source) == is_by_warp_groups


def test_large_products_have_large_tiles():
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    found = reason(product("mk", "kn", "float16", sizes), "sm_90a")
    assert found == "taken: warp groups on float16, tiles of 128x256, 4 stages by TMA"


def test_every_tile_has_room():
    for shape in wgmma.SHAPES:
        give, take = shape.registers
        # Registers that are taken are waited for until they are given: those that a block starts with must do. ptxas gives
        # each thread as many as the launch bounds allow, in eights.
        at_start = (1 << 16) // (shape.threads * shape.blocks) // 8 * 8
        assert wgmma.GROUP * (give + take * shape.consumers) <= at_start * shape.threads
        nbytes = shape.shared_nbytes(shape.stages(HOPPER))
        assert nbytes <= (HOPPER.shared_for_half if shape.blocks == 2 else HOPPER.shared_for_block)
        assert shape.stages(HOPPER) >= 3


@pytest.mark.slow
@pytest.mark.skipif(find_kernel_compiler() is None, reason="neither nvcc nor NVRTC is installed")
def test_every_tile_compiles_for_sm_90a(monkeypatch):
    by_rows = {16 * (40 + number): shape for number, shape in enumerate(wgmma.SHAPES)}
    monkeypatch.setattr(wgmma, "choose", lambda it, machine: by_rows[it.a.extent])
    monkeypatch.setattr(generator, "find_kernel_compiler", find_kernel_compiler)
    functions = {
        f"of_{rows}_rows": product(*LAYOUTS[number % 4], "bfloat16", {"m": rows, "n": 512, "k": 512})
        for number, rows in enumerate(by_rows)
    }
    module = by_warp_groups(functions)
    image = np.frombuffer(module.image.cubins["sm_90"], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []


# --- artifacts --------------------------------------------------------------------------------------------------------
def test_artifacts_have_the_maps(emulator):
    sizes = {"m": 72, "n": 64, "k": 64}
    function = product("mk", "nk", "float16", {**sizes, "m": M})
    module = by_warp_groups({"f": function})
    again = runtime.load(module.save_to_bytes(), {})
    launch = again.function("f").launches[-1]
    assert [(each.dtype, each.sizes, each.box) for each in launch.maps] == [
        ("float16", (64, M), (64, 64)),
        ("float16", (64, 64), (64, 64)),
    ]
    check_equal(emulator, again, "f", function, inputs_of(("mk", "nk"), "float16", sizes), {"m": 72})


@pytest.mark.parametrize(
    "wrong",
    [
        {"box": [64, 0]},
        {"box": [64, 257]},
        {"box": [64]},
        {"tensor": 7},
        {"dtype": "float8"},
        {"sizes": [64, "m * * 2"]},
    ],
)
def test_damaged_maps_are_refused(wrong):
    map_ = TensorMapInfo(0, "float16", (64, 64), (128,), (64, 64))
    launch = LaunchInfo("k", (1, 1, 1), 256, 0, (0,), (), maps=(map_,))
    data = FunctionInfo("f", (TensorSpec((64, 64), "float16", "x"),), 0, (), (launch,)).to_json()
    assert read_function_info(data, "f").launches == (launch,)
    data["launches"][0]["maps"][0].update(wrong)
    with pytest.raises(ArtifactCorruptedError):
        read_function_info(data, "f")
