"""Memory of results comes back when nobody sees it any more, and not before."""

from __future__ import annotations

import gc
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
import kernelyard.ops
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.abi.memory import address_of
from kernelyard.runtime.execute.bound_program import REBIND_RESULT_BYTES, idle_results
from kernelyard.runtime.execute.result_memory import ResultMemory, size_class

FLOAT = np.dtype(np.float32)


@given(st.integers(0, 1 << 40))
def test_sizes_are_rounded_up_by_an_eighth_at_most(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(nbytes * 9 / 8 + 64, 64)
    assert size % 64 == 0
    assert size_class(size) == size


def test_a_block_comes_back_once_its_last_view_is_gone() -> None:
    blocks = ResultMemory()
    array = blocks.empty((512, 64), FLOAT)
    address, view = address_of(array), array[3:, 1:].T.view(np.uint32)
    assert address % 64 == 0
    del array
    assert blocks.idle_nbytes == 0
    assert address_of(blocks.empty((512, 64), FLOAT)) != address
    del view
    assert address_of(blocks.empty((500, 64), FLOAT)) == address


def test_through_dlpack_memory_is_still_seen() -> None:
    blocks = ResultMemory()
    array = blocks.empty((64, 64), FLOAT)
    array[...] = 3
    other = np.from_dlpack(array)
    del array
    gc.collect()
    assert blocks.idle_nbytes == 0
    assert (other == 3).all()
    del other
    assert blocks.idle_nbytes > 0


def test_no_more_is_kept_than_allowed() -> None:
    blocks = ResultMemory(kept_bytes=100_000)
    arrays = [blocks.empty((100, 100), FLOAT) for _ in range(4)]
    assert len({address_of(array) for array in arrays}) == 4
    arrays.clear()
    assert blocks.idle_nbytes == 2 * size_class(40_000)


def test_sizes_that_come_back_no_more_make_room() -> None:
    blocks = ResultMemory(kept_bytes=100_000)
    old = [blocks.empty((100, 100), FLOAT), blocks.empty((90, 100), FLOAT)]
    old.clear()
    array = blocks.empty((150, 100), FLOAT)
    address = address_of(array)
    del array
    assert blocks.idle_nbytes <= 100_000
    assert address_of(blocks.empty((150, 100), FLOAT)) == address


def test_random_sizes_share_few_blocks() -> None:
    blocks, random = ResultMemory(), np.random.default_rng(0)
    for size in random.integers(20_000, 400_000, 1000):
        blocks.empty((int(size),), FLOAT)
    sizes = {size_class(4 * size) for size in range(20_000, 400_000, 1000)}
    assert blocks.info().entries < len(sizes) / 3


def test_small_results_take_no_large_blocks() -> None:
    blocks = ResultMemory()
    large = address_of(blocks.empty((100_000,), FLOAT))
    assert address_of(blocks.empty((60_000,), FLOAT)) == large, "up to twice as large as needed"
    assert address_of(blocks.empty((40_000,), FLOAT)) != large


def test_what_is_larger_than_allowed_puts_nothing_out() -> None:
    blocks = ResultMemory(kept_bytes=100_000)
    small, large = blocks.empty((100, 100), FLOAT), blocks.empty((1000, 100), FLOAT)
    del small, large
    assert blocks.idle_nbytes == size_class(40_000)


def test_many_threads_never_share_a_block() -> None:
    blocks, failures = ResultMemory(), []

    def work(number: int) -> None:
        for _ in range(300):
            array = blocks.empty((40, 100), FLOAT)
            array[...] = number
            if not (array == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_results_that_callers_keep_are_never_written_again() -> None:
    b, shape = FunctionBuilder(), (400, 100)
    assert REBIND_RESULT_BYTES <= 4 * 400 * 100, "smaller results are copied to memory of NumPy's"
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", shape)))})
    exe = ky.compile(module, backends=[])
    results = [exe(np.full(shape, number, np.float32)).numpy() for number in range(6)]
    assert (
        [float(result.min()) for result in results] == [float(result.max()) for result in results] == [0, 1, 2, 3, 4, 5]
    )
    addresses = {address_of(result) for result in results}
    assert len(addresses) == 6
    gc.collect()  # so that nothing else of that size comes back in between
    results.clear()
    hits = idle_results().hits
    assert address_of(exe(np.ones(shape, np.float32)).numpy()) in addresses
    assert idle_results().hits == hits + 1
