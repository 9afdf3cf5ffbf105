"""Products of 8-bit integers: dot-product instructions, on every CPU, with the same results as exact sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.target import Target
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.byte_products import PER_WORD, byte_of, with_sign_of
from kernelyard.tir.expr import Axis, Expr, cast
from kernelyard.tir.interpreter import evaluate as evaluate_loops
from kernelyard.transform.pipelines import get_pipeline, integer_products
from kernelyard_native_cpu import _native
from kernelyard_native_cpu.generator import NativeCpuGenerator, write_module
from kernelyard_native_cpu.machine import LEVELS, Machine, features_of_level, resolve_machine
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.rules import make_plan

from .conftest import compile_one, kernels, plan_of_product, run_module, skip_beyond_host

RNG = np.random.default_rng(11)
ZERO = {"uint8": 120, "int8": -5}
V4, V3 = features_of_level("x86-64-v4"), features_of_level("x86-64-v3")
AVX512_VNNI = Machine("x86_64", tuple(sorted((*V4, "avx512vnni"))))
AVX_VNNI = Machine("x86_64", tuple(sorted((*V3, "avxvnni"))))
MACHINES = {
    "vpdpbusd.512": AVX512_VNNI,
    "vpdpbusd.256": AVX_VNNI,
    "avx512.pmaddw.d": Machine("x86_64", V4),
    "avx2.pmadd.wd": Machine("x86_64", V3),
    "sse2.pmadd.wd": Machine("x86_64", features_of_level("x86-64")),
    "neon.usdot": Machine("aarch64", ("i8mm",)),
    "aarch64.sve.usdot": Machine("aarch64", ("i8mm", "sve256")),
}


def numbers(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scales(count: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, count).astype(np.float32)


def layer(left: Sequence[Dim], k: int, n: int, dtype: str = "uint8", zeros: np.ndarray | None = None) -> IRModule:
    """A product of quantized values with a bias and an activation."""
    b = FunctionBuilder()
    x = b.op("dequantize", b.input("x", (*left, k), dtype), np.float32(0.25), np.array(ZERO[dtype], dtype))
    weight = numbers("int8", k, n)
    matrix = b.op("dequantize", weight, scales(n), np.zeros(n, np.int8) if zeros is None else zeros, axis=1)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("add", b.op("matmul", x, matrix), scales(n))))})


def convolution(shape: Sequence[Dim], filters: int, window: int, dtype: str = "uint8", **attrs: object) -> IRModule:
    b = FunctionBuilder()
    x = b.op("dequantize", b.input("x", tuple(shape), dtype), np.float32(0.25), np.array(ZERO[dtype], dtype))
    weight = numbers("int8", filters, int(shape[1]), window, window)
    stored = b.op("dequantize", weight, scales(filters), np.zeros(filters, np.int8), axis=0)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("nn.conv2d", x, stored, **attrs)))})


def check(module: IRModule, x: np.ndarray, exe: ky.Executable) -> None:
    (expected,) = evaluate(module, [x])
    np.testing.assert_allclose(exe(x).numpy(), expected, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize(
    ("left", "k", "n"),
    [
        ((), 64, 10),
        ((1,), 512, 640),
        ((1,), 333, 555),
        ((3,), 1030, 70),
        ((12,), 16, 16),
        ((40,), 67, 130),
        ((2, 3), 35, 4),
        ((1, 130), 512, 64),
        ((70,), 3000, 96),
    ],
)
def test_a_product_is_one_kernel_of_dot_products(left: tuple[int, ...], k: int, n: int, dtype: str) -> None:
    module = layer(left, k, n, dtype)
    assert plan_of_product(module, AVX512_VNNI).dot_product is not None
    exe = ky.compile(module, backends=[], strict=True)
    (kernel,) = exe.report.kernels
    assert {op.rpartition(".")[2] for op in kernel.ops} == {"dequantize", "matmul", "add", "relu"}
    assert sum(constant.nbytes for constant in exe.constants.values()) <= 1.1 * k * (n + 64) + 16 * (n + 64)
    x = numbers(dtype, *left, k)
    check(module, x, exe)
    (expected,) = evaluate(module, [x])
    found = VirtualMachine(exe, threads=2)["main"](x).numpy()
    np.testing.assert_allclose(found, expected, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize("zeros", [-128, 127, "all"])
def test_zero_points_of_weights(zeros: int | str, dtype: str) -> None:
    n = 256 if zeros == "all" else 37
    per_column = np.arange(-128, 128) if zeros == "all" else np.full(n, zeros)
    module = layer((5,), 70, n, dtype, per_column.astype(np.int8))
    assert plan_of_product(layer((5,), 70, n, dtype), AVX512_VNNI).dot_product is not None
    check(module, numbers(dtype, 5, 70), ky.compile(module, backends=[], strict=True))


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize(
    ("shape", "filters", "window", "attrs"),
    [
        ((1, 16, 12, 20), 32, 1, {}),
        ((2, 3, 21, 19), 24, 5, {"strides": (2, 2), "padding": (2, 2, 2, 2)}),
        ((1, 9, 7, 40), 5, 3, {"dilation": (2, 1), "padding": (1, 0, 1, 2)}),
        ((1, 64, 7, 7), 70, 3, {"padding": (1, 1, 1, 1)}),
    ],
)
def test_convolution(shape: tuple[int, ...], filters: int, window: int, attrs: dict[str, object], dtype: str) -> None:
    module = convolution(shape, filters, window, dtype, **attrs)
    assert plan_of_product(module, AVX512_VNNI).dot_product is not None
    check(module, numbers(dtype, *shape), ky.compile(module, backends=[], strict=True))


@pytest.mark.parametrize("instruction", MACHINES)
@pytest.mark.parametrize(
    "module", [layer((7,), 100, 96, "int8"), convolution((1, 8, 9, 40), 16, 3)], ids=["mm", "conv"]
)
def test_every_cpu_has_its_instruction(module: IRModule, instruction: str) -> None:
    machine = MACHINES[instruction]
    _, text = write_module(kernels(module), machine)
    assert instruction in text
    assert _native.compile_object(text, machine)


@pytest.mark.parametrize("level", LEVELS)
def test_words_that_lanes_share_are_taken_apart_in_vectors(level: str) -> None:
    """Moving halves from scalar registers to vectors takes longer than the products."""
    _, text = write_module(kernels(layer((7,), 100, 96)), Machine("x86_64", features_of_level(level)))
    assert "lshr <" in text
    assert "lshr i32" not in text


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_cpus_without_dot_products_sum_pairs_without_saturation(mcpu: str) -> None:
    skip_beyond_host(mcpu)
    module = layer((6,), 130, 80)
    exe = ky.compile(module, Target("cpu", mcpu=mcpu), backends=[], strict=True)
    check(module, np.full((6, 130), 255, np.uint8), exe)
    image = convolution((1, 6, 9, 30), 40, 3, "int8")
    check(image, numbers("int8", 1, 6, 9, 30), ky.compile(image, Target("cpu", mcpu=mcpu), backends=[], strict=True))


@pytest.mark.parametrize("dtype", sorted(ZERO))
def test_rows_of_a_size_that_is_known_only_then(dtype: str) -> None:
    module = layer((dims.symbol("m"),), 322, 384, dtype)
    plan = plan_of_product(module, AVX512_VNNI)
    assert all(each.dot_product is not None for each in (plan, *plan.for_fewer_rows))
    exe = ky.compile(module, backends=[], strict=True)
    for rows in (1, 2, 7, 64, 129):
        check(module, numbers(dtype, rows, 322), exe)


def test_images_of_a_size_that_is_known_only_then() -> None:
    module = convolution((1, 10, dims.symbol("h"), dims.symbol("w")), 6, 3, padding=(1, 1, 1, 1))
    assert plan_of_product(module, AVX512_VNNI).dot_product is not None
    exe = ky.compile(module, backends=[], strict=True)
    for size in ((1, 1), (3, 5), (9, 33), (20, 64)):
        check(module, numbers("uint8", 1, 10, *size), exe)


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize("channels", [36, 52, 88])
def test_words_are_summed_along_lanes_that_no_word_fills(channels: int, dtype: str) -> None:
    """Few images of one place, as the gates of a network have: lanes beyond the last channel count for nothing."""
    module = convolution((dims.symbol("n"), channels, 1, 1), 22, 1, dtype)
    plan = plan_of_product(module, resolve_machine("x86-64-v3"))
    assert any(each.vector_is_reduced and each.dot_product is not None for each in plan.for_fewer_rows)
    exe = ky.compile(module, backends=[], strict=True)
    for count in (1, 3, 8, 20):
        check(module, numbers(dtype, count, channels, 1, 1), exe)


def product_of_words(rows: int, depth: int, columns: int) -> PrimFunc:
    b = PrimFuncBuilder()
    shapes = {"x": (rows, depth), "w": (depth, columns)}
    x, w = (b.input(name, TensorType(shape, "int32")) for name, shape in shapes.items())

    def body(at: Sequence[Axis], p: Sequence[Axis]) -> Expr:
        return byte_of(x[at[0], p[0]], p[1], "uint8") * byte_of(w[p[0], at[1]], p[1], "int8")

    return b.finish((b.reduce("sum", (rows, columns), (depth, PER_WORD), body),))


@pytest.mark.parametrize("shape", [(1, 8, 64), (3, 5, 40), (1, 7, 1), (6, 9, 17)], ids=str)
@pytest.mark.parametrize("mcpu", [None, *LEVELS])
def test_words_are_multiplied_exactly(mcpu: str | None, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    function = product_of_words(*shape)
    if columns > 1:
        (stage,) = (stage for group in make_groups(function) for stage in group.stages)
        assert make_plan(stage, frozenset(), {}, resolve_machine(mcpu)).dot_product is not None
    x = RNG.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), (rows, depth, PER_WORD))
    w = RNG.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), (depth, columns, PER_WORD))
    arrays = [np.ascontiguousarray(each).view(np.int32)[..., 0] for each in (x, w)]
    right = np.einsum("rkb,kcb->rc", x.astype(np.int64), w.astype(np.int64))
    skip_beyond_host(mcpu)
    (found,) = run_module(compile_one(function, mcpu), "kernel", arrays)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(evaluate_loops(function, arrays)[0], right)


def narrow_layer(kind: str, dtype: str, largest: int) -> tuple[IRModule, tuple[int, ...]]:
    """A product or a convolution whose results are sums of integers, and the shape of its data."""
    b = FunctionBuilder()
    shape = (13, 70) if kind == "matmul" else (1, 18, 9, 21)
    x = b.op("dequantize", b.input("x", shape, dtype), np.float32(1), np.array(ZERO[dtype], dtype))
    codes = RNG.choice(np.array([-largest, largest], np.int8), (70, 43) if kind == "matmul" else (21, 18, 3, 3))
    scale, zero = np.float32(1), np.int8(0)
    weight = b.op("dequantize", codes, scale, zero, axis=None)
    return IRModule({"main": b.function(b.op(kind, x, weight))}), shape


@pytest.mark.parametrize("dtype", sorted(ZERO))
@pytest.mark.parametrize(("largest", "instructions"), [(64, ["pmadd.ub.sw"]), (127, ["pmadd.ub.sw", "psign.b"])])
@pytest.mark.parametrize("kind", ["matmul", "nn.conv2d"])
def test_sums_in_16_bits_are_exact(kind: str, largest: int, instructions: list[str], dtype: str) -> None:
    module, shape = narrow_layer(kind, dtype, largest)
    machine = MACHINES["avx2.pmadd.wd"]
    legal = get_pipeline("legalize")(integer_products(sums_in_16_bits=True)(get_pipeline("simplify")(module)))
    functions = {name: f for name, f in legal.functions.items() if isinstance(f, PrimFunc)}
    _, text = write_module(functions, machine)
    assert [each for each in ("pmadd.ub.sw", "psign.b") if each in text] == instructions
    skip_beyond_host("x86-64-v3")
    exe = ky.compile(module, Target("cpu", mcpu="x86-64-v3"), backends=[], strict=True)
    limits = np.iinfo(dtype)
    for _ in range(5):
        x = RNG.choice(np.array([limits.min, limits.max], dtype), shape)
        np.testing.assert_array_equal(exe(x).numpy(), evaluate(module, [x])[0])


@pytest.mark.parametrize("rows", [1, 9, dims.symbol("m")], ids=str)
def test_outliers_are_multiplied_by_themselves(rows: Dim) -> None:
    b = FunctionBuilder()
    codes = RNG.choice(np.array([-64, 64], np.int8), (36, 520))
    codes[6:8, 17], codes[6:8, 400], codes[34, ::97] = -128, 127, -128
    x = b.op("dequantize", b.input("x", (rows, 36), "uint8"), np.float32(1), np.uint8(120))
    weight = b.op("dequantize", codes, np.float32(1), np.int8(0), axis=None)
    module = IRModule({"main": b.function(b.op("matmul", x, weight))})
    skip_beyond_host("x86-64-v3")
    exe = ky.compile(module, Target("cpu", mcpu="x86-64-v3"), backends=[], strict=True)
    assert len(exe.report.kernels) == 2
    data = RNG.choice(np.array([0, 255], np.uint8), (rows if isinstance(rows, int) else 30, 36))
    np.testing.assert_array_equal(exe(data).numpy(), evaluate(module, [data])[0])


@pytest.mark.parametrize("mcpu", [None, *LEVELS])
def test_signs_are_taken_on_every_cpu(mcpu: str | None) -> None:
    """-128 of the data, too: its magnitude is one more than an int8 holds."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 5 * PER_WORD), "int8"))
    magnitudes, w = b.input("a", TensorType(x.shape, "uint8")), b.input("w", TensorType((5, 11), "int32"))

    def body(at: Sequence[Axis], p: Sequence[Axis]) -> Expr:
        place = (at[0], p[0] * PER_WORD + p[1])
        weight = with_sign_of(x[place], byte_of(w[p[0], at[1]], p[1], "int8", "int16"))
        return cast(cast(magnitudes[place], "int16") * weight, "int32")

    function = b.finish((b.reduce("sum", (3, 11), (5, PER_WORD), body),))
    data = RNG.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), x.shape)
    weights = RNG.choice(np.array([-127, -1, 0, 1, 127], np.int8), (5, 11, PER_WORD))
    arrays = [data, np.abs(data.astype(np.int16)).astype(np.uint8), weights.view(np.int32)[..., 0]]
    right = np.einsum("rkb,kcb->rc", data.reshape(3, 5, PER_WORD).astype(np.int64), weights.astype(np.int64))
    skip_beyond_host(mcpu)
    (found,) = run_module(compile_one(function, mcpu), "kernel", arrays)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(evaluate_loops(function, arrays)[0], right)


def test_memory_beyond_the_operands_is_not_read(run) -> None:
    module = layer((5,), 35, 19, "int8")
    (function,) = kernels(module).values()
    shapes = [(buffer.shape, buffer.dtype) for buffer in function.inputs]
    inputs = [
        RNG.standard_normal(shape).astype(np.float32)
        if dtype == "float32"
        else RNG.integers(-99, 99, shape).astype(dtype)
        for shape, dtype in shapes
    ]
    run(function, *inputs)


def test_a_target_says_whether_it_multiplies_integers() -> None:
    assert resolve_machine("x86-64", None).dot_instruction == "pmaddwd"
    assert AVX_VNNI.dot_instruction == AVX512_VNNI.dot_instruction == "vpdpbusd"
    for arch, is_there in (("x86_64", True), ("aarch64", False)):
        points = ky.get_default_pipeline(
            Target("cpu", arch=arch, mcpu="cortex-a72" if arch == "aarch64" else None)
        ).points
        assert ("integer_products" in points) == is_there


@pytest.mark.parametrize(("level", "bits"), [("x86-64", []), ("x86-64-v3", [4]), ("x86-64-v4", [4, 8])])
def test_digits_are_multiplied_where_registers_hold_them(level: str, bits: list[int]) -> None:
    target, generator = Target("cpu", arch="x86_64", mcpu=level), NativeCpuGenerator()
    assert generator.multiplies_integers(target)
    assert [each for each in (4, 8) if generator.multiplies_digits(target, each)] == bits
    assert generator.sums_in_16_bits(target) == (level == "x86-64-v3")
