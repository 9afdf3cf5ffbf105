"""Loop nests on hand-made functions: reductions, tiles, rows, scans, conditions, symbolic sizes and threads."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims, dtypes
from kernelyard.ir import TensorType
from kernelyard.tir import DimValue
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import binary, cast, const, equal, index, select, unary
from kernelyard_native_cpu.schedule.groups import make_groups

RNG = np.random.default_rng(3)
N, M = dims.symbol("n"), dims.symbol("m")


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def softmax(shape: tuple[dims.Dim, dims.Dim]):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType(shape, "float32"))
    largest = b.reduce("max", shape[:1], shape[1:], lambda s, r: x[s[0], r[0]])
    e = b.compute(shape, lambda i, j: unary("exp", x[i, j] - largest[i]))
    total = b.reduce("sum", shape[:1], shape[1:], lambda s, r: e[s[0], r[0]])
    return b.finish((b.compute(shape, lambda i, j: e[i, j] / total[i]),))


def matmul(m: dims.Dim, n: dims.Dim, k: dims.Dim, transposed: bool = False, with_bias: bool = True):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((m, k), "float32"))
    w = b.input("w", TensorType((n, k) if transposed else (k, n), "float32"))
    bias = b.input("bias", TensorType((n,), "float32"))

    def product(s, r):
        return x[s[0], r[0]] * (w[s[1], r[0]] if transposed else w[r[0], s[1]])

    y = b.reduce("sum", (m, n), (k,), product)
    if with_bias:
        y = b.compute((m, n), lambda i, j: binary("max", y[i, j] + bias[j], const(0.0, "float32")))
    return b.finish((y,))


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
def test_softmax_of_every_width(check, width, mcpu):
    check(softmax((5, width)), normal(5, width), mcpu=mcpu)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 16), (2, 100)])
def test_softmax_of_symbolic_sizes(check, size):
    check(softmax((N, M)), normal(*size), symbols={"n": size[0], "m": size[1]})


@pytest.mark.parametrize("m", [1, 3, 8, 13])
@pytest.mark.parametrize("n", [1, 5, 16, 40, 100])
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_of_static_sizes(check, m, n, transposed):
    k = 19
    w = normal(n, k) if transposed else normal(k, n)
    check(matmul(m, n, k, transposed), normal(m, k), w, normal(n), atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 2), (8, 16, 4), (9, 70, 33)])
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_of_symbolic_sizes(check, size, transposed):
    m, n, k = size
    w = normal(n, k) if transposed else normal(k, n)
    function = matmul(dims.symbol("m"), dims.symbol("n"), dims.symbol("k"), transposed)
    check(function, normal(m, k), w, normal(n), symbols={"m": m, "n": n, "k": k}, atol=1e-5)


@pytest.mark.parametrize("size", [(64, 160, 40), (50, 200, 33), (130, 20, 64), (33, 17, 100)])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
def test_packed_panels(check, size, symbolic, mcpu):
    m, n, k = size
    shape = (dims.symbol("m"), dims.symbol("n"), dims.symbol("k")) if symbolic else size
    symbols = {"m": m, "n": n, "k": k} if symbolic else {}
    check(matmul(*shape), normal(m, k), normal(k, n), normal(n), symbols=symbols, mcpu=mcpu, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_give_the_same(run, threads):
    function = matmul(200, 300, 50)
    x, w, bias = normal(200, 50), normal(50, 300), normal(300)
    found = run(function, x, w, bias, threads=threads)[0]
    np.testing.assert_allclose(found, np.maximum(x @ w + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_among_threads_have_scratch_of_their_own(run, threads):
    x = normal(4000, 100)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run(softmax((4000, 100)), x, threads=threads)[0], e / e.sum(1, keepdims=True), rtol=1e-5)


def test_maps_of_many_elements_are_shared_among_threads(run):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((N, M), "float32"))
    function = b.finish((b.compute((N, M), lambda i, j: unary("tanh", x[i, j])),))
    values = normal(700, 1003)
    found = run(function, values, symbols={"n": 700, "m": 1003}, threads=2)[0]
    np.testing.assert_allclose(found, np.tanh(values), rtol=1e-6)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("shape", [(3, 50), (50, 3), (1, 200)])
def test_reducers(check, reducer, dtype, shape):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType(shape, dtype))
    rows = b.reduce(reducer, shape[:1], shape[1:], lambda s, r: x[s[0], r[0]])
    columns = b.reduce(reducer, shape[1:], shape[:1], lambda s, r: x[r[0], s[0]])
    values = normal(*shape).astype(dtype) if dtype.startswith("f") else RNG.integers(0, 5, shape).astype(dtype)
    check(b.finish((rows, columns)), values, rtol=1e-4)


@pytest.mark.parametrize("reducer", ["any", "all"])
def test_reducers_of_bools(check, reducer):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4, 40), "bool"))
    values = RNG.random((4, 40)) > (0.98 if reducer == "any" else 0.02)
    check(b.finish((b.reduce(reducer, (4,), (40,), lambda s, r: x[s[0], r[0]]),)), values)


@pytest.mark.parametrize("reducer", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extrema_of_nan_and_infinity(run, reducer, axis):
    values = normal(20, 20)
    values[3, 4], values[7, 9], values[3, 11], values[5, :] = np.nan, np.inf, np.nan, -np.inf
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((20, 20), "float32"))
    arg = (lambda s, r: r[0]) if reducer.startswith("arg") else None
    body = (lambda s, r: x[s[0], r[0]]) if axis == 1 else (lambda s, r: x[r[0], s[0]])
    found = run(b.finish((b.reduce(reducer, (20,), (20,), body, arg=arg),)), values)[0]
    np.testing.assert_array_equal(found, getattr(np, reducer)(values, axis=axis))


def test_reduction_starts_from_init(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((6, 33), "float32"))
    y = b.input("y", TensorType((6,), "float32"))
    function = b.finish((b.reduce("sum", (6,), (33,), lambda s, r: x[s[0], r[0]], init=lambda s: y[s[0]]),))
    check(function, normal(6, 33), normal(6))


@pytest.mark.parametrize("width", [5, 16, 50])
def test_conditions_along_lanes_load_nothing_outside(check, width):
    """Concatenation and padding: each side of the condition is loaded only where it is chosen."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, width), "float32"))
    y = b.input("y", TensorType((3, 7), "float32"))
    joined = b.compute((3, width + 7), lambda i, j: select(j < width, x[i, j], y[i, j - width]))
    inside = lambda j: (j >= 2) & (j < width + 2)  # noqa: E731
    padded = b.compute((3, width + 4), lambda i, j: select(inside(j), x[i, j - 2], 9.0))
    check(b.finish((joined, padded)), normal(3, width), normal(3, 7))


def test_conditions_on_rows_become_branches(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 20), "float32"))
    y = b.input("y", TensorType((2, 20), "float32"))
    function = b.finish((b.compute((5, 20), lambda i, j: select(i < 3, x[i, j], y[i - 3, j])),))
    check(function, normal(3, 20), normal(2, 20))


def test_broadcast_that_is_known_only_at_run_time(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, N), "float32"))
    y = b.input("y", TensorType((3, M), "float32"))
    at = lambda size, j: select(equal(DimValue(size), 1), 0, j)  # noqa: E731
    shape = (3, dims.broadcast(N, M))
    function = b.finish((b.compute(shape, lambda i, j: x[i, at(N, j)] + y[i, at(M, j)]),))
    check(function, normal(3, 30), normal(3, 1), symbols={"n": 30, "m": 1})
    check(function, normal(3, 1), normal(3, 4), symbols={"n": 1, "m": 4})


def test_gather_reverse_and_transpose(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((40, 24), "float32"))
    i_ = b.input("indices", TensorType((30,), "int64"))
    rows = b.compute((30, 24), lambda i, j: x[i_[i], j])
    columns = b.compute((40, 30), lambda i, j: x[i, select(i_[j] < 20, i_[j], 3)])
    backwards = b.compute((40, 24), lambda i, j: x[i, index(23) - j])
    transposed = b.compute((24, 40), lambda i, j: x[j, i])
    strided = b.compute((40, 8), lambda i, j: x[i, j * 3 + 1])
    check(b.finish((rows, columns, backwards, transposed, strided)), normal(40, 24), RNG.integers(0, 40, 30))


def test_scan_runs_in_order(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((5, 20), "float32"))

    def body(out, at):
        before = select(at[1] > 0, out[at[0], at[1] - 1], 0.0)
        return before + x[at[0], at[1]]

    check(b.finish((b.scan((5, 20), 1, body, "float32"),)), normal(5, 20))


def test_scatter_keeps_the_last_write(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((10,), "float32"))
    where = b.input("where", TensorType((6,), "int64"))
    update = b.input("update", TensorType((6,), "float32"))
    target = b.compute((10,), lambda i: x[i])
    b.store(target, (6,), lambda k: (where[k],), lambda k: update[k], ordered=(0,))
    check(b.finish((target,)), normal(10), np.array([1, 4, 1, 9, 4, 4]), normal(6))


def test_a_block_that_adds_to_what_is_there_does_so_once(check):
    """The last vector of a row may be moved back over elements that are done: not here."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 37), "float32"))
    target = b.compute((3, 40), lambda i, j: cast(j, "float32"))
    b.store(target, (3, 37), lambda i, j: (i, j + 3), lambda i, j: target[i, j + 3] + x[i, j])
    check(b.finish((target,)), normal(3, 37))


def test_parts_of_one_buffer_are_stored_one_by_one(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4, 19), "float32"))
    y = b.input("y", TensorType((4, 21), "float32"))
    joined = b.buffer((4, 40), "float32")
    b.store(joined, (4, 19), lambda i, j: (i, j), lambda i, j: x[i, j])
    b.store(joined, (4, 21), lambda i, j: (i, j + 19), lambda i, j: y[i, j])
    check(b.finish((joined,)), normal(4, 19), normal(4, 21))


def test_empty_tensors(run):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((0, 4), "float32"))
    total = b.reduce("sum", (4,), (0,), lambda s, r: x[r[0], s[0]])
    copy = b.compute((0, 4), lambda i, j: x[i, j] + 1.0)
    found = run(b.finish((total, copy)), np.empty((0, 4), np.float32))
    assert found[0].tolist() == [0, 0, 0, 0]
    assert found[1].shape == (0, 4)


def test_rank_zero(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((), "float32"))
    check(b.finish((b.compute((), lambda: unary("exp", x[()])),)), np.array(1.5, np.float32))


def test_axes_as_numbers(check):
    b = PrimFuncBuilder()
    triangle = b.compute((6, 37), lambda i, j: select(j - i > 2, cast(i * 100 + j, "float32"), -1.0))
    check(b.finish((triangle,)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "mod", "fmod"])
def test_integer_division_never_traps(run, dtype, op):
    info = np.iinfo(dtype)
    a = np.array([7, info.min, info.min, 5, info.max, 0, 3, 9, 100, 1, 2, 3, 4, 5, 6, 7, 8], dtype)
    b_ = np.array([2, -1 if info.min else 1, 1, 0, 3, 0, 1, 2, 7, 1, 2, 3, 4, 5, 6, 7, 0], dtype)
    b = PrimFuncBuilder()
    x, y = b.input("x", TensorType((17,), dtype)), b.input("y", TensorType((17,), dtype))
    found = run(b.finish((b.compute((17,), lambda i: binary(op, x[i], y[i])),)), a, b_)[0]
    with np.errstate(all="ignore"):
        floor = {"floordiv": np.floor_divide, "mod": np.mod, "fmod": np.fmod}.get(op)
        wanted = (
            floor(a, b_)
            if floor
            else np.where(b_ == 0, 0, a - np.fmod(a, np.where(b_ == 0, 1, b_))) // np.where(b_ == 0, 1, b_)
        )
    usable = b_ != 0
    np.testing.assert_array_equal(found[usable], wanted.astype(dtype)[usable])
    assert (found[~usable] == 0).all()


def test_a_stage_hands_elements_on_in_registers():
    """A reduction and the map that follows it are one loop nest."""
    (group,) = make_groups(matmul(16, 64, 8))
    (stage,) = group.stages
    assert [block.reducer for block in stage.blocks] == ["sum", None]


def test_rows_share_one_loop_and_scratch_per_thread():
    function = softmax((8, 64))
    (group,) = make_groups(function)
    assert (len(group.stages), group.shared) == (4, 1)
    assert group.private == frozenset(function.locals)


def test_rows_keep_axis_names_apart(check):
    """Blocks over the same sizes in another order of axes share no rows."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((12, 12), "float32"))
    total = b.reduce("sum", (12,), (12,), lambda s, r: x[s[0], r[0]])
    function = b.finish((b.compute((12, 12), lambda i, j: x[i, j] / total[j]),))
    check(function, normal(12, 12) + 3)
    assert [group.shared for group in make_groups(function)] == [0, 0]


@pytest.mark.parametrize("size", [(16, 16), (17, 35), (40, 100), (64, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
def test_transposed_tiles(run, size, dtype, mcpu):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, *size), dtype))
    y = b.input("y", TensorType((3, *size[::-1]), dtype))
    function = b.finish((b.compute((3, *size[::-1]), lambda n, i, j: binary("max", x[n, j, i], y[n, i, j])),))
    kind = dtypes.to_numpy(dtype)
    values, others = (RNG.integers(-9, 9, (3, *shape)).astype(kind) for shape in (size, size[::-1]))
    found = run(function, values, others, mcpu=mcpu)[0]
    np.testing.assert_array_equal(found, np.maximum(values.transpose(0, 2, 1), others))


@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 3, 7, 16, 37])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
def test_strided_loads_end_with_their_last_element(check, step, width, symbolic, mcpu):
    size = dims.symbol("n") if symbolic else width
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, (size - 1) * step + 1), "float32"))
    function = b.finish((b.compute((3, size), lambda i, j: x[i, j * step] + 1.0),))
    check(function, normal(3, (width - 1) * step + 1), symbols={"n": width} if symbolic else {}, mcpu=mcpu)
