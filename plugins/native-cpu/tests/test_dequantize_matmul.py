"""Weight-only quantized matmul: one kernel reads the stored integers, and gives what dequantized weights give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.driver.session.precision import get_precision
from kernelyard.errors import BackendUnavailableError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.target import Target
from kernelyard.testing import evaluate
from kernelyard.tir import Buffer, PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Expr, binary, cast, load
from kernelyard.tir.schedule import Declined
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.quantization.fuse_dequantize_matmul import FuseDequantizeMatmul
from kernelyard_native_cpu.codegen.four_bits import four_bits, table_of
from kernelyard_native_cpu.machine import Machine, features_of_level, host_features
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.loops import loops_of
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import make_plan
from kernelyard_native_cpu.schedule.rules.dequantize_matmul import dequantize_matmul

RNG = np.random.default_rng(9)
WIDE = Machine("x86_64", features_of_level("x86-64-v4"))
PRECISIONS = ("int8_weights", "int4_weights")
BITS = {"int8_weights": 8, "int4_weights": 4}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(left: tuple[Dim, ...], k: int, n: int, is_transposed: bool = False) -> IRModule:
    """A product with a constant, a bias and an activation."""
    b = FunctionBuilder()
    x = b.input("x", (*left, k))
    right = b.op("permute_dims", normal(n, k), axes=(1, 0)) if is_transposed else normal(k, n)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("add", b.op("matmul", x, right), normal(n))))})


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("left", "k", "n", "is_transposed"),
    [
        ((), 512, 640, False),
        ((1,), 512, 640, True),
        ((1,), 333, 555, False),
        ((2,), 1003, 70, True),
        ((5,), 512, 640, False),
        ((12,), 333, 555, False),
        ((17,), 512, 640, True),
        ((40,), 1003, 70, False),
        ((2, 3), 333, 555, False),
        ((1, 130), 512, 640, False),
        # A few groups, the last one not whole.
        ((1,), 33, 2000, False),
        ((3,), 200, 640, True),
        ((20,), 250, 270, False),
        ((1,), 2052, 33, False),
    ],
)
def test_one_kernel_reads_what_is_stored(
    left: tuple[int, ...], k: int, n: int, is_transposed: bool, precision: str, tmp_path: Path
) -> None:
    module = layer(left, k, n, is_transposed)
    exe = ky.compile(module, backends=[], precision=precision, strict=True)
    (kernel,) = exe.report.kernels
    assert {"dequantize", "matmul", "add", "relu"} == {op.rpartition(".")[2] for op in kernel.ops}
    # Whole groups and columns, scales, and the bias; in float32 the weights alone would be 4 * k * n bytes.
    filled = (k + 31) * (n + 63) * BITS[precision] / 8 * (1.2 if precision == "int4_weights" else 1.0) + 8 * (n + 63)
    assert sum(constant.nbytes for constant in exe.constants.values()) <= filled
    x = normal(*left, k)
    (expected,) = evaluate(get_precision(precision).apply(get_pipeline("simplify")(module)), [x])
    exe.save(tmp_path / "layer.kyar")
    for each in (exe, ky.load(tmp_path / "layer.kyar")):
        close(each(x).numpy(), expected)
    close(VirtualMachine(exe, threads=2)["main"](x).numpy(), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_machines_without_wide_vectors(mcpu: str, precision: str) -> None:
    module = layer((3,), 300, 300)
    x = normal(3, 300)
    (expected,) = evaluate(get_precision(precision).apply(get_pipeline("simplify")(module)), [x])
    exe = ky.compile(module, Target("cpu", mcpu=mcpu), backends=[], precision=precision)
    if set(features_of_level(mcpu)) <= host_features():
        close(exe(x).numpy(), expected)
    else:  # compiled for another machine
        with pytest.raises(BackendUnavailableError, match="features that this one lacks"):
            exe(x)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_a_size_that_is_known_only_then(precision: str) -> None:
    module = layer((dims.symbol("m"),), 320, 384)
    quantized = get_precision(precision).apply(get_pipeline("simplify")(module))
    exe = ky.compile(module, backends=[], precision=precision)
    for rows in (1, 2, 3, 7, 16, 17, 64, 159, 160, 201):
        x = normal(rows, 320)
        close(exe(x).numpy(), evaluate(quantized, [x])[0])


@pytest.mark.parametrize(
    ("rows", "has_panel", "is_factored"),
    [(1, False, True), (9, False, False), (17, False, False), (100, False, False), (200, True, False)],
)
def test_weights_are_dequantized_on_the_way_or_once_for_all_tiles(
    rows: int, has_panel: bool, is_factored: bool
) -> None:
    module = get_precision("int4_weights").apply(get_pipeline("simplify")(layer((rows,), 512, 640)))
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    assert choose_packings(function, (1, 2), WIDE).keys() == {1, 2}, "scales lie as the weights do"
    (stage, *_) = (stage for group in make_groups(function) for stage in group.stages)
    plan = dequantize_matmul(loops_of(stage, frozenset(), {}, WIDE))
    assert isinstance(plan, Plan)
    assert (plan.panel is not None, plan.factored is not None) == (has_panel, is_factored)
    assert plan.unrolled_axes == (plan.reduce[-1],)


@pytest.mark.parametrize(("rows", "has_panel"), [(1, False), (8, False), (11, False), (12, True), (32, True)])
def test_few_registers_leave_dequantizing_to_a_panel(rows: int, has_panel: bool) -> None:
    plan = plan_of(rows, "int4_weights", Machine("x86_64", features_of_level("x86-64-v3")))
    assert (plan.panel is not None) == has_panel


def plan_of(rows: Dim, precision: str, machine: Machine = WIDE) -> Plan:
    module = get_precision(precision).apply(get_pipeline("simplify")(layer((rows,), 512, 640)))
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    (stage, *_) = (stage for group in make_groups(function) for stage in group.stages)
    plan = dequantize_matmul(loops_of(stage, frozenset(), {}, machine))
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize("precision", ["int4_weights"])
@pytest.mark.parametrize(("level", "heights"), [("x86-64-v4", [8, 4, 2, 1]), ("x86-64-v3", [4, 2, 1])])
def test_the_tile_is_chosen_when_rows_are_known(level: str, heights: list[int], precision: str) -> None:
    plan = plan_of(dims.symbol("m"), precision, Machine("x86_64", features_of_level(level)))
    assert plan.panel is not None
    assert [height for fewer in plan.for_fewer_rows for _, height in fewer.tiles] == heights
    for version in (plan, *plan.for_fewer_rows):
        ((_, height),) = version.tiles
        assert version.least() >= height or height == 1, "no row of a tile is computed twice"


@pytest.mark.parametrize(("rows", "tile"), [(16, 16), (17, 6), (32, 8), (100, 8), (36, 6)])
def test_tiles_that_dequantize_again_are_few_and_even(rows: int, tile: int) -> None:
    assert [height for _, height in plan_of(rows, "int4_weights").tiles] == [tile]


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("high", [16, 256], ids=["4 bits", "8 bits"])
@pytest.mark.parametrize("scale_dtype", ["float16", "float32"])
def test_integers_times_scales_plus_minima(block: int, high: int, scale_dtype: str) -> None:
    b, (k, n) = FunctionBuilder(), (384, 200)
    x = b.input("x", (dims.symbol("m"), k))
    stored = RNG.integers(0, high, (n, k // block, block)).astype(np.uint8)
    scale, least = (RNG.uniform(*each, (n, k // block, 1)).astype(scale_dtype) for each in ((0.5, 1.5), (-9, 0)))
    products = b.op("multiply", b.op("astype", stored, dtype="float32"), scale.astype(np.float32))
    flat = b.op("reshape", b.op("add", products, least.astype(np.float32)), shape=(n, k))
    module = IRModule({"main": b.function(b.op("matmul", x, b.op("permute_dims", flat, axes=(1, 0))))})
    exe = ky.compile(module, backends=[], strict=True)
    (kernel,) = exe.report.kernels
    assert {op.rpartition(".")[2] for op in kernel.ops} == {"dequantize", "matmul"}
    (function,) = (f for f in FuseDequantizeMatmul()(module).functions.values() if isinstance(f, PrimFunc))
    (stage, *_) = (stage for group in make_groups(function) for stage in group.stages)
    plan = make_plan(stage, frozenset(), {}, WIDE)
    shifts = [fewer.factored is not None and fewer.factored.shift is not None for fewer in plan.for_fewer_rows]
    assert shifts == [False, True, True, True], "up to four rows share their sums"
    kept = {constant.dtype.name: constant.nbytes for constant in exe.constants.values()}
    assert kept["int32" if high == 16 else "int8"] <= k * (n + 63) * (0.5 if high == 16 else 1)
    for rows in (1, 2, 5, 40, 170):
        values = normal(rows, k)
        (expected,) = evaluate(module, [values])
        np.testing.assert_allclose(exe(values).numpy(), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("rows", "is_shifted"), [(1, True), (2, True), (3, False)])
def test_zero_points_are_multiplied_by_the_sums_of_few_rows(rows: int, is_shifted: bool) -> None:
    b = FunctionBuilder()
    k, n, group = 128, 70, 32
    stored = RNG.integers(0, 16, (k // group, group, n)).astype(np.uint8)
    zeros = RNG.integers(0, 16, (k // group, 1, n)).astype(np.float32)
    shifted = b.op("subtract", b.op("astype", stored, dtype="float32"), zeros)
    weight = b.op(
        "reshape", b.op("multiply", shifted, RNG.uniform(0.5, 1.5, zeros.shape).astype(np.float32)), shape=(k, n)
    )
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (rows, k)), weight))})
    fused = FuseDequantizeMatmul()(module)
    (function,) = (f for f in fused.functions.values() if isinstance(f, PrimFunc))
    (stage, *_) = (stage for group in make_groups(function) for stage in group.stages if stage.reduce)
    plan = make_plan(stage, frozenset(), {}, WIDE)
    assert plan.factored is not None
    assert (plan.factored.shift is not None) == is_shifted
    x = normal(rows, k)
    close(ky.compile(module, backends=[])(x).numpy(), evaluate(module, [x])[0])


@pytest.mark.parametrize("rows", [1, 20])
def test_groups_and_words_are_walked_where_rows_are_padded(rows: int) -> None:
    module = get_precision("int4_weights").apply(get_pipeline("simplify")(layer((rows,), 200, 640)))
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    (stage, *_) = (stage for group in make_groups(function) for stage in group.stages if stage.reduce)
    plan = dequantize_matmul(loops_of(stage, frozenset(), {}, WIDE))
    assert isinstance(plan, Plan)
    assert [plan.extents[name] for name in plan.reduce] == [7, 4, 8]
    assert plan.unrolled_axes == (plan.reduce[-1],)


def test_a_single_word_of_two_axes_has_no_axis_to_walk() -> None:
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4, 2), "float32"))
    words = b.input("w", TensorType((64,), "int32"))

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        high, low = point
        bits = binary("shr", words[at[0]], cast(high * 8 + low * 4, "int32")) & 15
        return x[high, low] * (cast(bits, "float32") - 8.0)

    function = b.finish((b.reduce("sum", (64,), (4, 2), body, name="matmul"),), {"ops": ("matmul",)})
    (stage,) = (stage for group in make_groups(function) for stage in group.stages)
    declined = dequantize_matmul(loops_of(stage, frozenset(), {}, WIDE))
    assert isinstance(declined, Declined)
    assert "none is left to walk" in declined.reason
    assert isinstance(make_plan(stage, frozenset(), {}, WIDE), Plan)


def test_what_depends_on_four_bits_is_a_table() -> None:
    word = load(Buffer("w", (), "int32"), ())
    bits = word & 15
    expr = (cast(bits, "float32") - 8.0) * 0.5
    assert four_bits(expr) == bits
    assert table_of(expr, bits) == tuple((n - 8) / 2 for n in range(16))
    assert four_bits(cast(bits, "float32") * cast(word, "float32")) is None
    assert four_bits(cast(word & 31, "float32")) is None
