"""Tables of bytes: every value, lengths around whole vectors, and results over the source."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from kernelyard.runtime.abi.memory import address_of
from kernelyard_llvm.byte_table import Field, byte_table_kernel

CPU = Path("/proc/cpuinfo")
FLAGS = CPU.read_text(encoding="ascii", errors="replace") if CPU.exists() else ""
WAYS = [False, pytest.param(True, marks=pytest.mark.skipif("avx512vbmi" not in FLAGS, reason="no AVX-512 VBMI"))]


@pytest.mark.parametrize("has_vbmi", WAYS)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 256, 1000])
@pytest.mark.parametrize("in_place", [False, True])
def test_entries_of_a_table(has_vbmi, count, in_place):
    rng = np.random.default_rng(count)
    source, table = (rng.integers(0, 256, size, np.uint8) for size in (count, 256))
    if count == 256:
        source = rng.permutation(256).astype(np.uint8)
    expected, result = table[source], source if in_place else np.zeros(count + 1, np.uint8)
    code = byte_table_kernel(has_vbmi)
    assert code is not None
    record = (ctypes.c_int64 * Field.LENGTH)()
    for place, array in ((Field.SOURCE, source), (Field.TABLE, table), (Field.RESULT, result)):
        record[place] = address_of(array)
    record[Field.COUNT] = count
    run = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(code.addresses["run"])
    assert run(ctypes.addressof(record), None, None, None) == 0
    assert result[:count].tolist() == expected.tolist()
    assert in_place or result[count] == 0
