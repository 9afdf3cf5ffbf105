"""Aligned memory, and workspaces."""

from __future__ import annotations

import numpy as np

from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import ALIGNMENT, Workspace


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
