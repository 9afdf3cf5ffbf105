"""Code for arithmetic on bytes: that LLVM takes it, for every dtype."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import pytest

from kernelyard_llvm.byte_arithmetic import LINES, PRODUCT, SUM, Kind, byte_arithmetic_kernel, byte_arithmetic_text

TEAM: Mapping[str, int] = dict.fromkeys(("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"), 0)


@pytest.mark.parametrize("operation", [SUM, PRODUCT, LINES])
@pytest.mark.parametrize("signed", [(False, False), (True, False), (False, True)])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
def test_code_is_compiled(operation, signed):
    kind = Kind(operation, *signed)
    code = byte_arithmetic_kernel(kind, TEAM)
    assert code is not None
    assert code.addresses["run"]
    assert f"{'s' if signed[0] else 'z'}ext <16 x i8>" in byte_arithmetic_text(kind)
