"""Back-to-back matmuls, as in attention: which functions are fused, and that their results are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.interpreter import run
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.schedule.group import Group
from kernelyard_native_cpu.schedule.groups import make_groups

S, T = dims.symbol("s"), dims.symbol("t")
RNG = np.random.default_rng(12)
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def attention(
    rows: dims.Dim, columns: dims.Dim, *, heads: int = 2, shared: int = 2, size: int = 16, batch: int = 1, **attrs
) -> IRModule:
    """With a bias of one row for all heads where `has_bias` is set."""
    has_bias = attrs.pop("has_bias", False)
    b = FunctionBuilder()
    operands = [b.input("q", (batch, rows, heads, size))]
    operands += [b.input(name, (batch, columns, shared, size)) for name in "kv"]
    operands += [b.input("bias", (batch, 1, 1, columns))] if has_bias else []
    return IRModule({"main": b.function(b.op("nn.attention_bias" if has_bias else "nn.attention", *operands, **attrs))})


def decomposed(rows: dims.Dim, columns: dims.Dim, *, with_weights: bool = False) -> IRModule:
    """As models of ONNX have it, where the weights may be a result, too."""
    b = FunctionBuilder()
    q, k = b.input("q", (1, 2, rows, 16)), b.input("k", (1, 2, columns, 16))
    scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2))), np.float32(0.25))
    weights = b.op("nn.softmax", scores, axis=3)
    result = b.op("matmul", weights, b.input("v", (1, 2, columns, 16)))
    return IRModule({"main": b.function(result, weights) if with_weights else b.function(result)})


def groups_of(module: IRModule) -> tuple[Group, ...]:
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    return make_groups(function)


def check(module: IRModule, mcpu: str | None = None) -> ky.Executable:
    """Compile without libraries and compare with NumPy; the number of threads must not matter."""
    feeds = {param.name: normal(*param.tensor_type.shape) for param in module["main"].params}
    exe = ky.compile(module, target=ky.Target("cpu", mcpu=mcpu), backends=[])
    results: list[list[np.ndarray]] = []
    for threads in (1, 2):
        exe.threads = threads
        results.append(list(exe.run(feeds).values()))
    for found, again, expected in zip(*results, run(module, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(found, again)
    return exe


@pytest.mark.parametrize(
    ("module", "height"),
    [
        (attention(197, 197), 66),
        (attention(64, 77), 32),
        (attention(40, 4100), 14),
        (attention(96, 96, causal="top_left", has_bias=True), 48),
        (attention(48, 48, heads=6, shared=2), 48),
        (attention(64, 1024, heads=1, shared=1), 16),
        (attention(197, 197, heads=1, shared=1), 50),
    ],
)
def test_rows_are_taken_in_blocks(module: IRModule, height: int) -> None:
    (group,) = groups_of(module)
    assert group.block_rows == height
    assert len(group.stages) == 5
    assert all(buffer.shape[0] == height for buffer in group.private)


@pytest.mark.parametrize(
    ("rows", "columns", "at"),
    [
        (S, 64, {(1, 64): 1, (16, 64): 16, (100, 64): 50, (200, 64): 67}),
        (64, T, {(64, 1): 32, (64, 4100): 16}),
        (S, T, {(100, 1): 50, (100, 4100): 15}),
    ],
)
def test_blocks_of_symbolic_rows_are_as_high_as_fits(rows, columns, at: dict[tuple[int, int], int]) -> None:
    (group,) = groups_of(attention(rows, columns))
    assert len(group.stages) == 5
    heights = {(s, t): dims.evaluate(group.block_rows, {"s": s, "t": t}) for s, t in at}
    assert heights == at


@pytest.mark.parametrize("module", [attention(1, 512), attention(32, 20_000)])
def test_few_or_long_rows_are_not(module: IRModule) -> None:
    assert not any(group.block_rows for group in groups_of(module))


SHAPES = [
    {"rows": 197, "columns": 197, "heads": 3, "shared": 3, "size": 64},
    {"rows": 130, "columns": 77, "size": 40, "batch": 2},
    {"rows": 33, "columns": 19, "size": 24, "has_bias": True},
    {"rows": 100, "columns": 1100, "size": 16, "has_bias": True},
    {"rows": 70, "columns": 90, "causal": "bottom_right"},
    {"rows": 64, "columns": 64, "heads": 6, "shared": 2, "size": 32, "causal": "top_left"},
]


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_right(shape, mcpu: str | None) -> None:
    check(attention(**shape), mcpu)


@given(
    st.integers(16, 140),
    st.integers(1, 300),
    st.sampled_from([8, 16, 24, 33]),
    st.sampled_from([(1, 1), (4, 4), (4, 2)]),
)
def test_blocks_of_any_size_are_right(rows: int, columns: int, size: int, heads: tuple[int, int]) -> None:
    check(attention(rows, columns, heads=heads[0], shared=heads[1], size=size))


SYMBOLIC = {
    "rows": attention(S, 40, has_bias=True),
    "columns": attention(40, T, heads=4, causal="bottom_right"),
    "both": attention(S, T, size=24, batch=2),
    "equal": attention(S, S, causal="top_left", size=64),
    "batch": attention(33, 77, batch=dims.symbol("b"), size=8),
}


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("kind", SYMBOLIC)
def test_blocks_of_symbolic_sizes_are_right(kind: str, mcpu: str | None) -> None:
    """Also below one block, one tile and one vector, and where the last block and the last vectors are moved back."""
    module = SYMBOLIC[kind]
    exe = ky.compile(module, target=ky.Target("cpu", mcpu=mcpu), backends=[])
    for s, t in [(1, 1), (5, 3), (6, 17), (15, 64), (17, 63), (64, 65), (100, 300), (197, 128), (2, 512)]:
        sizes = {"s": s, "t": t, "b": 1 + t % 3}
        shapes = {x.name: [dims.evaluate(dim, sizes) for dim in x.tensor_type.shape] for x in module["main"].params}
        feeds = {name: normal(*shape) for name, shape in shapes.items()}
        (expected,) = run(module, feeds)
        for threads in (1, 2):
            exe.threads = threads
            (found,) = exe.run(feeds).values()
            np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_decomposed_attention_is_one_kernel() -> None:
    exe = check(decomposed(80, 80))
    assert [kernel.ops for kernel in exe.report.kernels if "nn.attention" in kernel.ops]


@pytest.mark.parametrize(
    "module", [decomposed(4, 80), decomposed(80, 80, with_weights=True)], ids=["few rows", "weights are a result"]
)
def test_other_attention_stays_decomposed(module: IRModule) -> None:
    exe = check(module)
    assert not any("nn.attention" in kernel.ops for kernel in exe.report.kernels)


def test_decomposed_attention_of_symbolic_sizes_is_one_kernel() -> None:
    exe = ky.compile(decomposed(S, T), backends=[])
    assert [kernel.ops for kernel in exe.report.kernels if "nn.attention" in kernel.ops]


def test_backends_see_products_and_softmax() -> None:
    explained = ky.explain(decomposed(80, 80), backends=[])
    assert {"matmul", "nn.softmax"} <= {node.op for node in explained.nodes}
