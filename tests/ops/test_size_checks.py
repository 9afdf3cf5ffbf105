"""Sizes that types cannot prove are checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import ArtifactCorruptedError, ShapeError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, Tuple
from kernelyard.ops.interpreter import run
from kernelyard.ops.samples import floats
from kernelyard.ops.size_checks import size_checks
from kernelyard.runtime.program.program import Program, SizeCheck

n, m = dims.symbol("n"), dims.symbol("m")


def two_inputs(op: str, left: tuple[Any, ...], right: tuple[Any, ...], **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.function(b.op(op, b.input("x", left), b.input("y", right), origin="node 'A'", **attrs))})


def test_what_is_proved_needs_no_check() -> None:
    assert size_checks(two_inputs("add", (n, 4), (n, 4)), "main") == ()
    assert size_checks(two_inputs("concat", (n, 4), (n, 3), axis=1), "main") == ()
    assert size_checks(two_inputs("matmul", (m, n), (n, 8)), "main") == ()


@pytest.mark.parametrize(
    ("module", "check"),
    [
        (two_inputs("matmul", (2, n), (m, 8)), SizeCheck(n, m, "node 'A'")),
        (two_inputs("concat", (n, 4), (5, 4), axis=1), SizeCheck(n, 5, "node 'A'")),
        (two_inputs("add", (n,), (m,)), SizeCheck(dims.broadcast(m, n), dims.broadcast(m, n), "node 'A'")),
        (
            two_inputs("nn.conv1d", (1, 3, n), (8, 3, 5)),
            SizeCheck(n - 4, dims.maximum(n - 4, 0), "node 'A'"),
        ),
    ],
)
def test_what_is_assumed_is_a_check(module: IRModule, check: SizeCheck) -> None:
    assert size_checks(module, "main") == (check,)


def test_functions_that_are_called_are_looked_into_once() -> None:
    inner = two_inputs("matmul", (2, n), (m, 8))["main"]
    b = FunctionBuilder()
    x, y = b.input("x", (2, n)), b.input("y", (m, 8))
    first = b.call_function("inner", [x, y], TensorType((2, 8), "float32"))
    second = b.call_function("inner", [x, y], TensorType((2, 8), "float32"))
    module = IRModule({"main": b.function(b.op("add", first, second)), "inner": inner})
    assert size_checks(module, "main") == (SizeCheck(n, m, "node 'A'"),)


def test_a_compiled_program_refuses_sizes_that_do_not_fit() -> None:
    # The sum over everything hides the broadcast from the shapes of all that the program keeps.
    b = FunctionBuilder()
    total = b.op("sum", b.op("add", b.input("x", (n,)), b.input("y", (m,)), origin="node 'Add_1'"))
    exe = ky.compile(IRModule({"main": b.function(total)}), backends=[])
    three = np.ones(3, np.float32)
    assert float(exe(three, np.ones(1, np.float32)).numpy()) == 6
    with pytest.raises(ShapeError, match=r"sizes \d and \d do not broadcast") as caught:
        exe(three, np.ones(2, np.float32))
    assert caught.value.where == "node 'Add_1'"


def one_open(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    return IRModule(
        {"main": b.function(b.op(op, *(b.input(f"x{at}", each) for at, each in enumerate(shapes)), **attrs))}
    )


def check_sizes(module: IRModule, good: Sequence[int], bad: Sequence[int]) -> None:
    """Compare a program with the reference for sizes of `n`, and have it refuse others."""
    exe = ky.compile(module, backends=[])

    def feeds(size: int) -> list[np.ndarray]:
        shapes = [[dims.evaluate(dim, {"n": size}) for dim in each.shape] for each in exe.entries["main"].inputs]
        return [floats(*shape, seed=at) for at, shape in enumerate(shapes)]

    for size in good:
        np.testing.assert_allclose(np.asarray(exe(*feeds(size))), run(module, feeds(size))[0], 1e-5, 1e-6)
    for size in bad:
        with pytest.raises(ShapeError, match="sizes of the inputs are inconsistent"):
            exe(*feeds(size))


@pytest.mark.parametrize(
    ("module", "divisor"),
    [
        (one_open("nn.attention", (1, 4, n, 8), (1, 5, 2, 8), (1, 5, 2, 8)), 2),
        (one_open("nn.group_norm", (2, n, 5), (n,), (n,), num_groups=3), 3),
        (one_open("nn.conv2d", (1, 4, 6, 6), (n, 2, 3, 3), groups=2), 2),
        (one_open("nn.conv1d_transpose", (1, n, 6), (n, 2, 3), groups=2), 2),
    ],
    ids=("heads of attention", "groups of a norm", "groups of filters", "groups of channels"),
)
def test_an_open_size_is_a_multiple_of_what_divides_it(module: IRModule, divisor: int) -> None:
    """Else heads or groups would be cut off, or read what lies behind."""
    check_sizes(module, (2 * divisor,), (divisor + 1,))


@pytest.mark.parametrize(
    ("module", "good", "bad"),
    [
        (one_open("nn.prelu", (n, 4), (2, 4)), (2,), (1, 3)),
        (one_open("broadcast_to", (n, 4), shape=(3, 4)), (1, 3), (2, 4)),
        (one_open("nn.attention_bias", (n, 4, 2, 8), (n, 5, 2, 8), (n, 5, 2, 8), (3, 1, 1, 5)), (3,), (1, 4)),
    ],
    ids=("the slope", "what is spread", "the bias"),
)
def test_what_is_spread_fits(module: IRModule, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    """Else what lies behind the slope would be read, or rows of a result would be left out."""
    check_sizes(module, good, bad)


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (3, 4), (4, n)])
def test_a_slice_never_leaves_its_operand(begin: Any, end: Any) -> None:
    b = FunctionBuilder()
    x = b.input("x", (n, 2))
    part = b.op("strided_slice", x, axes=(0,), begin=(begin,), end=(end,), strides=(1,))
    exe = ky.compile(IRModule({"main": b.function(part)}), backends=[])
    whole = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(np.asarray(exe(whole)), whole[begin : 5 if end is n else end])
    with pytest.raises(ShapeError, match="sizes of the inputs are inconsistent") as caught:
        exe(whole[:3])
    assert caught.value.where == "strided_slice"


def test_a_sort_is_of_as_many_elements_as_there_are() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (n, 2)), b.input("y", (m,))
    values = b.get(b.op("topk", x, k=m, axis=0), 0)
    exe = ky.compile(IRModule({"main": b.function(Tuple([values, y]))}), backends=[])
    rows = np.array([[1, 6], [3, 4], [5, 2]], np.float32)
    assert exe(rows, np.zeros(2, np.float32))[0].numpy().tolist() == [[5, 6], [3, 4]]
    assert exe(rows, np.zeros(3, np.float32))[0].numpy().tolist() == [[5, 6], [3, 4], [1, 2]]
    with pytest.raises(ShapeError, match="sizes of the inputs are inconsistent"):
        exe(rows, np.zeros(4, np.float32))


def test_checks_are_saved(tmp_path: Any) -> None:
    exe = ky.compile(two_inputs("concat", (n, 4), (m, 4), axis=1), backends=[])
    exe.save(tmp_path / "a.kyar")
    loaded = ky.load(tmp_path / "a.kyar")
    with pytest.raises(ShapeError, match="n is 2, but m is 3"):
        loaded(np.ones((2, 4), np.float32), np.ones((3, 4), np.float32))
    assert loaded(np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)).shape == (2, 8)


@pytest.mark.parametrize("pair", [["n", "k"], ["n"], ["n", -1], "n"])
def test_malformed_checks_are_refused(pair: Any) -> None:
    program = Program("main", ("n",), (), (), (), (), (), (SizeCheck(n, 3, "here"),))
    content = program.to_json()
    assert Program.from_json(content) == program
    content["checks"][0]["dims"] = pair
    with pytest.raises(ArtifactCorruptedError):
        Program.from_json(content)
