"""The memory plan: buffers that live together never overlap, and bytes are shared where they may be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.runtime import memory
from kernelyard.runtime.memory import ALIGNMENT, Lifetime, Workspace, plan_memory

lifetimes = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.integers(0, 6),
)


@given(st.lists(lifetimes, max_size=30))
def test_living_buffers_do_not_overlap(buffers):
    plan = plan_memory(buffers)
    for i, (a, start) in enumerate(zip(buffers, plan.offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.nbytes <= plan.nbytes
        for b, other in list(zip(buffers, plan.offsets, strict=True))[:i]:
            if a.overlaps(b) and a.nbytes and b.nbytes:
                assert start + a.nbytes <= other or other + b.nbytes <= start


@given(st.lists(lifetimes, max_size=30))
def test_no_more_than_separate_buffers_are_needed(buffers):
    assert plan_memory(buffers).nbytes <= sum(memory.align(buffer.nbytes) for buffer in buffers)


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(1000, time, time + 1) for time in range(50)]
    assert plan_memory(chain).nbytes == 2 * 1024


def test_the_tightest_gap_is_taken():
    # 640 bytes end first; at time 5 the gaps are 640 bytes, then 128 between two that live on
    living = [Lifetime(640, 0, 0), Lifetime(320, 0, 9), Lifetime(256, 0, 0), Lifetime(192, 0, 9)]
    plan = plan_memory([*living, Lifetime(192, 5, 5), Lifetime(64, 5, 5)])
    assert plan.offsets[:4] == (0, 640, 960, 1216)
    assert plan.offsets[4] == 960
    assert plan.offsets[5] == 960 + 192


def test_arrays_are_aligned():
    for shape in ((), (0,), (3, 5), (1000,)):
        for dtype in ("float32", "bool", "bfloat16"):
            array = memory.aligned_empty(shape, dtype)
            assert (array.shape, array.dtype.name) == (shape, dtype)
            assert memory.address_of(array) % ALIGNMENT == 0 or not array.size


def test_aligned_copies_are_read_only_and_shared_where_possible():
    aligned = memory.aligned_empty((4,), "float32")
    aligned[...] = 3
    assert memory.address_of(memory.aligned_copy(aligned)) == memory.address_of(aligned)
    odd = np.arange(9, dtype=np.float32)[1:][::2]
    copied = memory.aligned_copy(odd)
    assert memory.address_of(copied) % ALIGNMENT == 0
    assert not copied.flags.writeable
    np.testing.assert_array_equal(copied, odd)


def test_a_workspace_grows_and_keeps_old_addresses_valid():
    workspace = Workspace()
    first = workspace(100)
    assert workspace(50) == first
    second = workspace(1000)
    assert second != first
    assert second % ALIGNMENT == 0
    assert workspace(900) == second
    assert workspace.nbytes <= 4 * memory.align(1000)
