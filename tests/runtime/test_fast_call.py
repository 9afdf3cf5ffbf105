"""Quick calls: a built-in made at run time does what the Python path does, declines what it cannot, and leaks nothing."""

from __future__ import annotations

import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import pytest

from kernelyard import errors
from kernelyard.runtime.abi.module import NativeCall
from kernelyard.runtime.execute import fast_call as fast_calls
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.fast_call import FastCallInput, FastCallResult, fast_call
from kernelyard.runtime.execute.step_errors import StepLabel

PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


def copied(buffer: np.ndarray) -> FastCallResult:
    return FastCallResult(buffer.copy)


class Doubling:
    """A native step that writes two times `x` to `y`; `status` is what it answers."""

    def __init__(self, shape=(2, 3), dtype=np.float32):
        self.x, self.y = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self.status = 0
        self.runs = 0
        self.callback = PROTOTYPE(self._step)

    def _step(self, a, b, n, d):
        self.runs += 1
        self.y[...] = 2 * self.x
        return self.status

    def table(self) -> CallTable:
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        assert address is not None
        return CallTable([NativeCall(address)], [StepLabel("node 'Mul_1'")])

    def quick(self):
        made = fast_call(self.table(), [FastCallInput(self.x.shape, self.x.dtype, self.x)], [copied(self.y)])
        assert isinstance(made, types.BuiltinFunctionType)
        return made


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 1, 3, 1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16])
def test_arrays_go_in_and_come_out(shape, dtype):
    doubling = Doubling(shape, dtype)
    x = np.asarray(np.random.default_rng(1).integers(0, 2, shape)).astype(dtype)
    (y,) = doubling.quick()(x)
    np.testing.assert_array_equal(y, (2 * x).astype(dtype))
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert not np.shares_memory(y, doubling.y) or not y.size


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "args",
    [
        (),
        (np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)),
        (np.ones((2, 3), np.float64),),
        (np.ones((2, 3), np.int32),),
        (np.ones((2, 3), ">f4"),),
        (np.ones((3, 2), np.float32),),
        (np.ones(6, np.float32),),
        (np.ones((1, 2, 3), np.float32),),
        (np.ones((3, 2), np.float32).T,),
        (np.ones((2, 6), np.float32)[:, ::2],),
        (np.ones((2, 3), np.float32).view(Subclass),),
        ([[1, 2, 3], [4, 5, 6]],),
        (None,),
        (1.0,),
    ],
)
def test_what_is_no_dense_array_of_the_very_kind_is_declined(args):
    doubling = Doubling()
    assert doubling.quick()(*args) is None
    assert doubling.runs == 0


def test_unread_inputs_are_checked_too():
    doubling = Doubling((2,))
    unread = FastCallInput((3,), np.dtype(np.int64), None)
    read = FastCallInput((2,), np.dtype(np.float32), doubling.x)
    quick = fast_call(doubling.table(), [unread, read], [copied(doubling.y), copied(doubling.x)])
    assert quick is not None
    x = np.float32([3, 4])
    doubled, same = quick(np.zeros(3, np.int64), x)
    np.testing.assert_array_equal(doubled, [6, 8])
    np.testing.assert_array_equal(same, x)
    assert quick(np.zeros(4, np.int64), x) is None


def test_a_failing_step_is_named():
    doubling = Doubling()
    doubling.status = -7
    quick = doubling.quick()
    for _ in range(3):
        with pytest.raises(errors.ExecutionError) as caught:
            quick(np.ones((2, 3), np.float32))
        assert (caught.value.where, caught.value.found) == ("node 'Mul_1'", "status -7")
    doubling.status = 0
    assert quick(np.ones((2, 3), np.float32)) is not None


def test_calls_leave_no_references_behind():
    doubling = Doubling()
    quick, x = doubling.quick(), np.ones((2, 3), np.float32)
    wrong = np.ones(3, np.float32)
    kept = [x, wrong, None, x.dtype, doubling.y]
    for _ in range(3):
        quick(x), quick(wrong)
    before = [sys.getrefcount(each) for each in kept], len(gc.get_objects())
    for _ in range(200):
        quick(x), quick(wrong)
    after = [sys.getrefcount(each) for each in kept], len(gc.get_objects())
    assert all(abs(new - old) < 20 for old, new in zip(before[0], after[0], strict=True))
    assert abs(after[1] - before[1]) < 20
    (result,) = quick(x)
    assert sys.getrefcount(result) == 2


def test_it_owns_what_it_needs():
    doubling = Doubling()
    table = doubling.table()
    alive = weakref.ref(table)
    quick = fast_call(table, [FastCallInput((2, 3), np.dtype("float32"), doubling.x)], [copied(doubling.y)])
    del table
    gc.collect()
    assert alive() is not None
    x = np.full((2, 3), 4, np.float32)
    assert quick is not None
    np.testing.assert_array_equal(quick(x)[0], 2 * x)
    del quick
    gc.collect()
    assert alive() is None


def test_a_table_without_steps_takes_feeds_in_and_results_out():
    doubling = Doubling()
    given = np.arange(6, dtype=doubling.x.dtype).reshape(2, 3)
    call = fast_call(CallTable([]), [FastCallInput((2, 3), doubling.x.dtype, doubling.x)], [copied(doubling.x)])
    assert call is not None
    np.testing.assert_array_equal(call(given)[0], given)


def test_there_is_none_without_a_native_table_or_a_known_python(monkeypatch):
    doubling = Doubling()
    inputs = [FastCallInput((2, 3), doubling.x.dtype, doubling.x)]
    assert fast_call(CallTable([lambda: None]), inputs, []) is None
    with monkeypatch.context() as patch:
        patch.setattr(fast_calls, "dispatch_loop", lambda: None)
        assert fast_call(doubling.table(), inputs, []) is None
    monkeypatch.setattr(fast_calls, "_structs_are_known", lambda: False)
    assert fast_call(doubling.table(), inputs, []) is None


def test_inputs_with_slots_are_told_their_address_and_not_copied():
    words = (ctypes.c_int64 * 3)()
    slots = (ctypes.addressof(words), ctypes.addressof(words) + 16)
    doubling = Doubling((4,))
    moved = FastCallInput((64,), np.dtype(np.float32), np.zeros(64, np.float32), slots)
    made = fast_call(
        doubling.table(), [moved, FastCallInput((4,), np.dtype(np.float32), doubling.x)], [copied(doubling.y)]
    )
    assert made is not None
    room = np.arange(160, dtype=np.float32)
    first = -room.ctypes.data % 64 // 4
    for start in (first, first + 4, first + 32):
        x = room[start : start + 64]
        (y,) = made(x, np.ones(4, np.float32))
        assert list(words) == [x.ctypes.data, 0, x.ctypes.data]
        np.testing.assert_array_equal(y, 2)
        assert moved.buffer is not None
        assert not moved.buffer.any()
    before = list(words)
    assert made(room[first + 1 : first + 65], np.ones(4, np.float32)) is None  # no multiple of 16 bytes
    assert made(x, np.ones(5, np.float32)) is None
    assert (list(words), doubling.runs) == (before, 3)


class Filling:
    """A native step that fills the array whose address is in `word` with ones; `status` is what it answers."""

    def __init__(self) -> None:
        self.word = ctypes.c_int64()
        self.status = 0
        self.made: list[weakref.ref[np.ndarray]] = []
        self.callback = PROTOTYPE(self._step)

    def _step(self, a, b, n, d):
        (ctypes.c_float * 4).from_address(self.word.value)[:] = [1.0] * 4
        return self.status

    def make(self) -> np.ndarray:
        array = np.zeros(4, np.float32)
        self.made.append(weakref.ref(array))
        return array

    def quick(self, *others: FastCallResult):
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        assert address is not None
        table = CallTable([NativeCall(address)], [StepLabel("node 'Fill_1'")])
        own = FastCallResult(self.make, (ctypes.addressof(self.word),))
        made = fast_call(table, [], [*others[:1], own, *others[1:]])
        assert made is not None
        return made


def test_results_with_slots_are_made_first_and_written_by_the_steps():
    filling, first, last = Filling(), np.full(3, 7.0), np.full(2, 8.0)
    quick = filling.quick(copied(first), copied(last))
    kept = [quick() for _ in range(3)]
    for results in kept:
        for result, expected in zip(results, ([7] * 3, [1] * 4, [8] * 2), strict=True):
            np.testing.assert_array_equal(result, expected)
    assert len({results[1].ctypes.data for results in kept}) == 3
    del kept, results, result
    assert [each() for each in filling.made] == [None] * 3


def test_a_failing_step_leaves_no_result_behind():
    filling = Filling()
    filling.status = -7
    with pytest.raises(errors.ExecutionError, match="Fill_1"):
        filling.quick()()
    assert [each() for each in filling.made] == [None]


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_result_that_cannot_be_made_ends_the_call(fails_first):
    def fail() -> np.ndarray:
        raise MemoryError("none left")

    filling = Filling()
    quick = filling.quick(*(() if fails_first else (copied(np.ones(2)),)), FastCallResult(fail))
    with pytest.raises(MemoryError, match="none left"):
        quick()
    gc.collect()
    assert [each() for each in filling.made if each() is not None] == []
