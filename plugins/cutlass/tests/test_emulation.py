"""What stands in for the kernels: it believes the arguments, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BoundTensor
from kernelyard_cutlass.compiler import TEMPLATES
from kernelyard_cutlass.emulation import EmulatedLaunch
from kernelyard_cutlass.epilogue import Epilogue
from kernelyard_cutlass.kernels import AttentionKernel, GemmKernel, NormKernel, Tile, TransposeKernel
from kernelyard_cutlass.launches import SIGNATURES, PlannedLaunch, arguments, swizzle_grid

TILE = Tile(64, 64, 32, 32, 32, 5)
GEMM = GemmKernel("float16", "float16", "float16", 8, 8, 8, TILE, Epilogue(), False)


class Memory:
    """Arrays at addresses."""

    def __init__(self):
        self._held = []

    def __call__(self, array, dtype="float16"):
        copy = memory.aligned_copy(np.asarray(array, dtypes.to_numpy(dtype)))
        self._held.append(copy)
        return BoundTensor(memory.address_of(copy), copy.shape, dtype)


@pytest.fixture
def at():
    return Memory()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def gemm_launch(at, m=5, n=16, k=8, kernel=GEMM, **changed):
    a, b, d = at(numbers(m, k)), at(numbers(k, n, seed=1)), at(np.zeros((m, n)))
    values = {
        "m": m, "n": n, "k": k, "batch": 1, "a": a, "b": b, "source": None, "vector": None, "d": d,
        "lda": k, "ldb": n, "ld_source": 0, "ldd": n, "stride_a": 0, "stride_b": 0, "stride_source": 0,
        "stride_d": 0, "alpha": 1.0, "beta": 0.0,
    }  # fmt: skip
    values.update(changed)
    return PlannedLaunch(kernel, swizzle_grid(kernel, m, n, 1), arguments("gemm", **values)), a, b, d


@pytest.mark.parametrize("template", SIGNATURES)
def test_arguments_are_in_the_order_of_the_templates(template):
    """Names and order are those of the entry, so that the text and what stands in for it cannot drift apart."""
    text = (TEMPLATES / f"{template}.cuh").read_text()
    entry = re.search(r"KY_ENTRY\((.*?)\)\s*{", text, re.DOTALL)[1]
    parameters = [re.fullmatch(r"\s*(.+?)\s*(\w+)\s*", part) for part in entry.split(",")]
    assert tuple(found[2] for found in parameters) == SIGNATURES[template]
    # Each takes eight bytes: a pointer, a whole number or a double.
    assert all(found[1] in ("long long", "double") or found[1].endswith("*") for found in parameters)


def test_a_product_is_that_of_its_arguments(at):
    launch, a, b, d = gemm_launch(at, alpha=0.5)
    EmulatedLaunch(launch)()
    wanted = 0.5 * (a.as_array().astype(np.float32) @ b.as_array().astype(np.float32))
    np.testing.assert_allclose(d.as_array().astype(np.float32), wanted, rtol=1e-3, atol=1e-3)


def test_a_wrong_leading_dimension_gives_wrong_numbers(at):
    launch, *_, right = gemm_launch(at)
    EmulatedLaunch(launch)()
    launch, *_, wrong = gemm_launch(at, ldb=8)
    EmulatedLaunch(launch)()
    assert not np.allclose(right.as_array(), wrong.as_array())


def test_a_launch_moves(at):
    launch, a, *_, d = gemm_launch(at)
    run = EmulatedLaunch(launch)
    run()
    other = at(2 * a.as_array())
    before = d.as_array().copy()
    run.move(SIGNATURES["gemm"].index("a"), other.address)
    run()
    np.testing.assert_allclose(d.as_array(), 2 * before, rtol=2e-3)


@pytest.mark.parametrize("name", ["a", "b", "d", "source"])
def test_a_pointer_that_is_not_aligned_stops_the_kernel(name, at):
    shifted = at(np.zeros(4096))._replace(shape=(4000,))
    shifted = shifted._replace(address=shifted.address + 2)
    launch, *_ = gemm_launch(at, **{name: shifted})
    with pytest.raises(ExecutionError, match="misaligned") as caught:
        EmulatedLaunch(launch)()
    assert name in caught.value.where


@pytest.mark.parametrize(("name", "value"), [("lda", 12), ("ldb", 17), ("ldd", 20), ("stride_a", 4), ("ld_source", 1)])
def test_a_stride_that_is_not_aligned_stops_the_kernel(name, value, at):
    launch, *_ = gemm_launch(at, **{name: value})
    with pytest.raises(ExecutionError, match="misaligned"):
        EmulatedLaunch(launch)()


@pytest.mark.parametrize("size", ["k", "n"])
def test_rows_that_are_not_aligned_stop_the_kernel(size, at):
    launch, *_ = gemm_launch(
        at, **{size: 12}, **{"lda": 16, "ldb": 16, "ldd": 16} if size == "k" else {"ldb": 16, "ldd": 16}
    )
    with pytest.raises(ExecutionError, match="misaligned"):
        EmulatedLaunch(launch)()


def test_reading_outside_of_a_tensor_stops_the_kernel(at):
    launch, *_ = gemm_launch(at, lda=64)
    with pytest.raises(ExecutionError, match="out of bounds"):
        EmulatedLaunch(launch)()
    launch, *_ = gemm_launch(at, beta=1.0)
    with pytest.raises(ExecutionError, match="out of bounds") as caught:
        EmulatedLaunch(launch)()
    assert "source" in caught.value.where


def test_what_the_grid_does_not_cover_is_not_computed(at):
    launch, *_, d = gemm_launch(at, m=100)
    assert launch.blocks == (2, 1, 1)
    EmulatedLaunch(replace(launch, blocks=(1, 1, 1)))()
    assert np.any(d.as_array()[:64])
    assert not np.any(d.as_array()[64:])


@pytest.mark.parametrize(
    ("columns", "blocks"), [(64, (3, 1)), (128, (6, 1)), (192, (12, 1)), (400, (24, 1)), (640, (24, 2))]
)
def test_tiles_are_walked_as_cutlass_does(columns, blocks):
    assert swizzle_grid(GEMM, 3 * 64, columns, 2) == (*blocks, 2)


def test_precisions(at):
    """tf32 loses what 3xtf32 keeps."""
    a = np.float32([[1 + 2**-12]])
    found = {}
    for math in ("tf32", "3xtf32"):
        kernel = GemmKernel("float32", "float32", math, 1, 1, 1, TILE, Epilogue(), False)
        d = at(np.zeros((1, 1)), "float32")
        sizes = {"m": 1, "n": 1, "k": 1, "lda": 1, "ldb": 1, "ldd": 1}
        launch, *_ = gemm_launch(at, kernel=kernel, a=at(a, "float32"), b=at([[1.0]], "float32"), d=d, **sizes)
        EmulatedLaunch(launch)()
        found[math] = float(d.as_array()[0, 0])
    assert found == {"tf32": 1.0, "3xtf32": 1 + 2**-12}


def test_integers_stop_at_the_ends_of_their_range(at):
    kernel = GemmKernel("int8", "int32", "int8", 16, 16, 1, replace(TILE, k=64), Epilogue(), True)
    k = 1 << 18
    a, d = at(np.full((1, k), -128), "int8"), at(np.zeros((1, 1)), "int32")
    launch, *_ = gemm_launch(at, kernel=kernel, a=a, b=a, d=d, m=1, n=1, k=16, lda=k, ldb=k, ldd=1)
    launch = replace(
        launch, arguments=(*launch.arguments[:2], launch.arguments[2]._replace(value=k), *launch.arguments[3:])
    )
    EmulatedLaunch(launch)()
    assert d.as_array()[0, 0] == np.iinfo(np.int32).max


def attention(at, kernel, size=8, value_size=8, **changed):
    q, v = at(numbers(1, 4, 2, size)), at(numbers(1, 4, 2, value_size))
    values = {
        "batch": 1, "rows": 4, "columns": 4, "heads": 2, "shared_heads": 2, "size": size, "value_size": value_size,
        "queries": q, "keys": q, "values": v, "bias": None, "starts_q": None, "starts_k": None,
        "result": at(np.zeros((1, 4, 2, value_size))), "accumulators": None, "bias_batch": 0, "bias_head": 0,
        "bias_row": 0, "row_q": 2 * size, "row_k": 2 * size, "row_v": 2 * value_size, "mask": 0, "scale": 1.0,
    }  # fmt: skip
    return PlannedLaunch(kernel, (1, 2, 1), arguments("attention", **{**values, **changed}), lanes=32)


def test_attention_asks_for_what_its_template_asks_for(at):
    kernel = AttentionKernel("float16", True, False, 64, 64, 64)
    EmulatedLaunch(attention(at, kernel))()
    with pytest.raises(ExecutionError, match="misaligned"):
        EmulatedLaunch(attention(at, kernel, size=4))()
    with pytest.raises(ExecutionError, match="unsupported arguments"):
        EmulatedLaunch(attention(at, kernel, value_size=128))()
    with pytest.raises(ExecutionError, match="unsupported arguments"):
        EmulatedLaunch(attention(at, kernel, bias=at(numbers(4, 8))))()
    with pytest.raises(ExecutionError, match="unsupported arguments"):
        EmulatedLaunch(attention(at, AttentionKernel("float16", True, False, 32, 128, 65536)))()
    biased = AttentionKernel("float16", True, True, 64, 64, 64)
    with pytest.raises(ExecutionError, match="misaligned"):
        EmulatedLaunch(attention(at, biased, bias=at(numbers(4, 4)), bias_row=4))()


def test_norms_and_transpositions(at):
    x, gamma, y = at(numbers(3, 16)), at(np.ones(16)), at(np.zeros((3, 16)))
    kernel = NormKernel("float16", True, 8, 32)
    given = {"x": x, "gamma": gamma, "beta": None, "y": y, "epsilon": 1e-6}
    EmulatedLaunch(PlannedLaunch(kernel, (3, 1, 1), arguments("norm", columns=16, **given)))()
    np.testing.assert_allclose((y.as_array().astype(np.float32) ** 2).mean(1), 1, rtol=1e-2)
    with pytest.raises(ExecutionError, match="misaligned"):
        EmulatedLaunch(PlannedLaunch(kernel, (3, 1, 1), arguments("norm", columns=12, **given)))()
    transposed = at(np.zeros((16, 3)))
    EmulatedLaunch(
        PlannedLaunch(
            TransposeKernel("float16"), (1, 1, 1), arguments("transpose", rows=3, columns=16, x=x, y=transposed)
        )
    )()
    np.testing.assert_array_equal(transposed.as_array(), x.as_array().T)
