"""Products on tensor cores and on CUDA cores: every tile, dtype, order of memory and size gives exactly what it must.

Operands are small whole numbers, so that sums are exact in any order and results are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, TensorType
from kernelyard.target import Target
from kernelyard.tir import PrimFunc, parse_primfunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cuda.generator import NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import matmul
from kernelyard_native_cuda.schedule.contraction import Contraction
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE, machine_of
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import assert_close, generate, run_on
from .test_rules import fused, lower, random, rules_of, whole

M, N, K, B = (dims.symbol(name) for name in "mnkb")
# The dtype that is summed up, for each that is multiplied.
SUMS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64", "int8": "int32"}


def product(a: str, b: str, dtype: str, sizes: Mapping[str, Dim], out: str = "mn") -> PrimFunc:
    """`out[m, n] = sum over k of a * b`, the letters of a, b and out being their axes in order."""
    total = SUMS[dtype]

    def shape(letters: str) -> str:
        return f"({', '.join(str(sizes[letter]) for letter in letters)}{',' * (len(letters) == 1)})"

    def element(name: str, letters: str) -> str:
        text = f"{name}[{', '.join(letters)}]"
        return text if total == dtype else f"cast({total}, {text})"

    axes = ", ".join(f"{letter}: {_extent(sizes[letter])}" for letter in out)
    return parse_primfunc(f"""
input a: Tensor[{shape(a)}, {dtype}]
input b: Tensor[{shape(b)}, {dtype}]
output c: Tensor[{shape(out)}, {total}]
block product({axes}, reduce k: {_extent(sizes["k"])}) {{
  c[{", ".join(out)}] = mul({element("a", a)}, {element("b", b)})
  reducer sum
}}""")


def _extent(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) else f"<{dim}>"


def inputs_of(letters: Sequence[str], dtype: str, sizes: Mapping[str, int]) -> list[np.ndarray]:
    return [whole(*(sizes[letter] for letter in each), dtype=dtype) for each in letters]


def check_equal(emulator, module: NativeCudaModule, name: str, function: PrimFunc, inputs, symbols=None) -> None:
    found = run_on(emulator, module, name, inputs, symbols)
    for actual, wanted in zip(found, evaluate(function, list(inputs), symbols or {}), strict=True):
        np.testing.assert_array_equal(actual, wanted, err_msg=name)


# --- every tile -------------------------------------------------------------------------------------------------------
def check_tiles(emulator, monkeypatch, shapes: Sequence[Any], dtype: str, tf32: bool = False) -> None:
    """Each shape, at sizes a little above and below it; one module for all."""
    by_size: dict[tuple[Dim, Dim], Any] = {}
    functions: dict[str, PrimFunc] = {}
    cases: dict[str, dict[str, int]] = {}
    for number, shape in enumerate(shapes):
        for above in (1, -1):
            sizes = {"m": shape.rows + above, "n": shape.columns + (8 if above > 0 else -3), "k": 72 + number}
            by_size[sizes["m"], sizes["n"]] = by_size[sizes["n"], sizes["m"]] = shape
            name = f"tile_{shape.rows}x{shape.columns}_{number}_{'above' if above > 0 else 'below'}"
            functions[name], cases[name] = product("mk", "kn", dtype, sizes), sizes

    def choose(it: Contraction, shapes: Sequence[Any], machine: Any) -> Any:
        return by_size[it.a.extent, it.b.extent]

    monkeypatch.setattr(matmul, "_choose", choose)
    module = NativeCudaGenerator().generate(functions, Target("cuda"), {"tf32": tf32})
    assert isinstance(module, NativeCudaModule)
    assert module.image.source.count("// matmul:") == len(functions)
    for name, function in functions.items():
        check_equal(emulator, module, name, function, inputs_of(("mk", "kn"), dtype, cases[name]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32"])
def test_every_tile_of_tensor_cores(emulator, monkeypatch, dtype):
    check_tiles(emulator, monkeypatch, matmul.TENSOR_SHAPES, dtype, tf32=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_tile_of_plain_cores(emulator, monkeypatch, dtype):
    shapes = [s for s in matmul.PLAIN_SHAPES if dtype == "float32" or s.rows * s.columns <= 64 * 64]
    check_tiles(emulator, monkeypatch, shapes, dtype)


# --- every order and size ---------------------------------------------------------------------------------------------
ORDERS = [("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("km", "nk"), ("bmk", "bkn"), ("bmk", "kn"), ("mbk", "bnk")]
SIZES = st.fixed_dictionaries(
    {"m": st.integers(1, 70), "n": st.integers(1, 70), "k": st.integers(1, 90), "b": st.integers(1, 3)}
)


@pytest.fixture(scope="module")
def symbolic(emulator) -> tuple[dict[str, PrimFunc], NativeCudaModule]:
    """Products of any size in every order, by name."""
    sizes = {"m": M, "n": N, "k": K, "b": B}
    functions = {
        f"{a}_{b}_{dtype}": product(a, b, dtype, sizes, "bmn" if "b" in a else "mn")
        for a, b in ORDERS
        for dtype in SUMS
    }
    return functions, generate(functions)


@settings(max_examples=12, deadline=None)
@given(sizes=SIZES)
@pytest.mark.parametrize("dtype", SUMS)
@pytest.mark.parametrize("order", ORDERS, ids="_".join)
def test_products_of_any_size(emulator, symbolic, order: tuple[str, str], dtype, sizes):
    functions, module = symbolic
    name = f"{order[0]}_{order[1]}_{dtype}"
    check_equal(emulator, module, name, functions[name], inputs_of(order, dtype, sizes), sizes)


@pytest.mark.parametrize(("k", "n", "lanes"), [(64, 64, 16), (36, 36, 8), (34, 34, 4), (33, 35, 0)])
@pytest.mark.parametrize("order", ORDERS[:4], ids="_".join)
def test_copies_are_as_wide_as_memory_allows(emulator, order: tuple[str, str], k, n, lanes):
    sizes = {"m": n, "n": n, "k": k}
    function = product(*order, "float16", sizes)
    module = generate({"kernel": function})
    text = module.image.source.split("// --- generated")[1]
    assert text.count(f"cp_async<{lanes}, Half>") == (2 if lanes else 0)
    assert text.count("put_shared<Half>") == (0 if lanes else 2)
    check_equal(emulator, module, "kernel", function, inputs_of(order, "float16", sizes))


def test_copies_of_symbolic_sizes_are_wide_where_they_are_multiples():
    function = product("mk", "kn", "bfloat16", {"m": M, "n": 8 * N, "k": 16 * K})
    assert generate({"kernel": function}).image.source.count("cp_async<16, BFloat>(") == 2


# --- which cores ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "tf32", "words"),
    [
        ("float16", False, "tensor cores of float16"),
        ("bfloat16", False, "tensor cores of bfloat16"),
        ("int8", False, "tensor cores of int8"),
        ("float32", True, "tensor cores of tf32"),
        ("float32", False, "CUDA cores"),
        ("float64", True, "CUDA cores"),
    ],
)
def test_the_reason_names_the_cores(dtype, tf32, words):
    function = product("mk", "kn", dtype, {"m": 256, "n": 256, "k": 256})
    ((*_, (rule, reason)),) = schedule(function, "kernel", machine_of(["sm_90"], tf32)).choices
    assert rule == "matmul"
    assert words in reason


def test_every_rule_asked_says_why_it_does_not_apply():
    function = product("mk", "kn", "float16", {"m": 256, "n": 256, "k": 256})
    (asked,) = schedule(function, "kernel", ANY_MACHINE).choices
    assert [rule for rule, _ in asked] == [
        "sort",
        "scan",
        "wgmma_attention",
        "attention",
        "gemv",
        "low_batch_gemv",
        "wgmma_conv",
        "conv",
        "wgmma",
        "matmul",
    ]
    assert all(reason for _, reason in asked)
    assert f"// matmul: {asked[-1][1]}" in schedule(function, "kernel", ANY_MACHINE).kernels[0].text


def test_products_of_tf32_are_rounded_once(emulator):
    function = product("mk", "kn", "float32", {"m": 40, "n": 24, "k": 50})
    module = NativeCudaGenerator().generate({"kernel": function}, Target("cuda"), {"tf32": True})
    assert isinstance(module, NativeCudaModule)
    a, b = random(40, 50), random(50, 24)
    (found,) = run_on(emulator, module, "kernel", [a, b])
    error = np.abs(found - a.astype(np.float64) @ b.astype(np.float64)) / (np.abs(a) @ np.abs(b))
    assert 1e-6 < error.max() < 2.0**-10


def test_tiles_are_larger_where_there_is_enough_to_do():
    small, large = (
        matmul._choose(_contraction(size), matmul.TENSOR_SHAPES, machine_of(["sm_90"])) for size in (256, 4096)
    )
    assert (large.rows, large.columns) == (128, 128)
    assert small.rows * small.columns < large.rows * large.columns


def _contraction(size: int) -> Contraction:
    from kernelyard_native_cuda.schedule.contraction import contraction_of
    from kernelyard_native_cuda.schedule.rules import stages_of

    (stage,) = stages_of(product("mk", "kn", "float16", {"m": size, "n": size, "k": size}))
    found = contraction_of(stage)
    assert found is not None
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_two_blocks_fit_a_multiprocessor(arch):
    machine = machine_of([arch])
    for dtype in ("float16", "int8", "float32"):
        function = product("mk", "kn", dtype, {"m": 4096, "n": 4096, "k": 4096})
        (kernel,) = schedule(function, "kernel", machine).kernels
        assert kernel.shared_nbytes <= machine.shared_for_half


# --- what follows -----------------------------------------------------------------------------------------------------
def epilogue(activation: str) -> Any:
    def build(b: FunctionBuilder) -> Any:
        x, w = b.input("x", (M, 40), "float16"), b.input("w", (40, 48), "float16")
        bias, residual = b.input("bias", (48,), "float16"), b.input("residual", (M, 48), "float16")
        product = b.op("add", b.op("matmul", x, w), bias)
        return b.op("add", b.op(activation, product), residual)

    return build


@pytest.mark.parametrize("activation", ["nn.relu", "nn.gelu", "nn.silu", "sigmoid", "tanh"])
def test_epilogues_are_in_the_kernel(emulator, activation):
    function = fused(epilogue(activation))
    assert rules_of(function) == ["low_batch_gemv"]
    module = generate({"kernel": function})
    tiles = module.image.source.split("// matmul: ")[1]
    assert tiles.count("pack_at<8, Half>") == 2  # the bias and the residual
    assert tiles.count("put_pack<8, Half>") == 1
    for rows in (1, 17, 130):
        given = [random(*shape).astype(np.float16) * 0.3 for shape in ((rows, 40), (40, 48), (48,), (rows, 48))]
        (found,) = run_on(emulator, module, "kernel", given, {"m": rows})
        assert_close(found, evaluate(function, given, {"m": rows})[0], "float16")


# --- a few vectors ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", [("mk", "kn"), ("mk", "nk")], ids="_".join)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("k", "n"), [(64, 128), (57, 61), (600, 40)])
def test_vectors_times_a_matrix(emulator, order: tuple[str, str], dtype, rows, k, n):
    sizes = {"m": rows, "n": n, "k": k}
    function = product(*order, dtype, sizes)
    assert rules_of(function)[0] == ("gemv" if rows == 1 else "low_batch_gemv")
    check_equal(emulator, generate({"kernel": function}), "kernel", function, inputs_of(order, dtype, sizes))


@pytest.mark.parametrize("order", [("bk", "bkn"), ("bk", "bnk")], ids="_".join)
def test_vectors_of_any_length_in_batches(emulator, order: tuple[str, str]):
    function = product(*order, "float16", {"b": B, "n": N, "k": K}, "bn")
    module = generate({"kernel": function})
    assert "// gemv:" in module.image.source
    for sizes in ({"b": 1, "n": 1, "k": 1}, {"b": 3, "n": 33, "k": 65}, {"b": 2, "n": 300, "k": 7}):
        check_equal(emulator, module, "kernel", function, inputs_of(order, "float16", sizes), sizes)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 16), ("float32", 8)])
def test_an_unknown_number_of_vectors_has_a_kernel_for_few_and_one_for_more(emulator, dtype, most):
    function = product("mk", "kn", dtype, {"m": M, "n": 96, "k": 64})
    module = generate({"kernel": function})
    few, more = module.function("kernel").launches
    for rows in (1, 5, 8, 9, 16, 17, 100):
        assert (few.grid({"m": rows}) is None, more.grid({"m": rows}) is None) == (rows > most, rows <= most)
        sizes = {"m": rows, "n": 96, "k": 64}
        check_equal(emulator, module, "kernel", function, inputs_of(("mk", "kn"), dtype, sizes), {"m": rows})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 8, M])
def test_vectors_times_rows_of_results_are_tiles_on_tensor_cores(emulator, dtype, rows):
    """The fewest rows that a tile may have; what is multiplied is copied ahead, 16 bytes at a time."""
    sizes = {"m": rows, "n": 200, "k": 136}
    function = product("mk", "kn", dtype, sizes)
    first = schedule(function, "kernel", ANY_MACHINE).kernels[0].text
    assert ", 16, 64, true>, SwizzledTile<" in first
    assert first.count("cp_async<16, ") == 2
    module = generate({"kernel": function})
    for count in (1, 16) if rows == M else (rows,):
        known = {**sizes, "m": count}
        check_equal(
            emulator,
            module,
            "kernel",
            function,
            inputs_of(("mk", "kn"), dtype, known),
            {"m": count} if rows == M else {},
        )


@pytest.mark.parametrize(
    ("order", "dtype", "n", "rows"),
    [
        (("mk", "nk"), "float16", 200, 1),
        (("mk", "nk"), "float16", 200, 4),
        (("mk", "kn"), "float32", 200, 1),
        (("mk", "kn"), "float16", 201, 1),
    ],
)
def test_other_vectors_are_multiplied_without_tiles(order, dtype, n, rows):
    function = product(*order, dtype, {"m": rows, "n": n, "k": 136})
    assert "Tile" not in schedule(function, "kernel", ANY_MACHINE).kernels[0].text


@pytest.mark.parametrize("rows", [5, 8])
def test_more_than_a_few_vectors_by_rows_along_the_sum_are_a_tile(emulator, rows):
    sizes = {"m": rows, "n": 200, "k": 136}
    function = product("mk", "nk", "float16", sizes)
    assert ", 16, 64, true>, SwizzledTile<" in schedule(function, "kernel", ANY_MACHINE).kernels[0].text
    check_equal(emulator, generate({"kernel": function}), "kernel", function, inputs_of(("mk", "nk"), "float16", sizes))


def test_few_results_of_long_sums_have_a_block_each(emulator):
    sizes = {"m": 1, "n": 5, "k": 4104}
    function = product("mk", "nk", "float16", sizes)
    module = generate({"kernel": function})
    assert "block_reduced<Sum, 256>(total" in module.image.source
    check_equal(emulator, module, "kernel", function, inputs_of(("mk", "nk"), "float16", sizes))


# --- split sums -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "n", "k", "rule"), [(16, 64, 2048, "matmul"), (1, 64, 2048, "gemv"), (5, 64, 2048, "low_batch_gemv")]
)
def test_long_sums_of_few_results_are_split(emulator, m, n, k, rule):
    sizes = {"m": m, "n": n, "k": k}
    function = product("mk", "kn", "float16", sizes)
    scheduled = schedule(function, "kernel", ANY_MACHINE)
    assert [choice[-1][0] for choice in scheduled.choices] == [rule, "fallback"]
    (parts,) = scheduled.function.locals
    assert parts.shape[0] == 8
    check_equal(emulator, generate({"kernel": function}), "kernel", function, inputs_of(("mk", "kn"), "float16", sizes))


@pytest.mark.parametrize(
    "sizes", [{"m": 4096, "n": 4096, "k": 4096}, {"m": 16, "n": 64, "k": 100}, {"m": M + 8, "n": 64, "k": 4096}]
)
def test_other_sums_are_not_split(sizes):
    assert len(schedule(product("mk", "kn", "float16", sizes), "kernel", ANY_MACHINE).kernels) == 1


def test_a_matmul_of_half_precision_is_its_operator(check):
    a, b = (random(*shape).astype(np.float16) for shape in ((50, 64), (64, 72)))
    check(lower("matmul", TensorType(a.shape, "float16"), TensorType(b.shape, "float16")), a, b)


@pytest.mark.parametrize("count", [1, 3])
def test_open_batches_meet_fixed_ones(emulator, count):
    """The usual size of an open batch need not broadcast with the other operand's."""
    function = lower("matmul", TensorType((B, 20, 24), "float16"), TensorType((3, 24, 40), "float16"))
    a, b = random(count, 20, 24).astype(np.float16), random(3, 24, 40).astype(np.float16)
    module = generate({"kernel": function})
    (found,) = run_on(emulator, module, "kernel", (a, b), {"b": count})
    assert_close(found, a.astype(np.float32) @ b.astype(np.float32), "float16")
