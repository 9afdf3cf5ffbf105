"""Code for chains over floats: that LLVM takes it, for every step."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import pytest

from kernelyard_llvm.float_chain import ARITHMETIC, FUNCTIONS, Step, float_chain_kernel

TEAM: Mapping[str, int] = dict.fromkeys(("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"), 0)


@pytest.mark.parametrize("operation", [*ARITHMETIC, *FUNCTIONS])
@pytest.mark.parametrize("is_row", [False, True])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
def test_code_is_compiled(operation, is_row):
    steps = [Step("linear"), Step(operation, is_row and operation in ARITHMETIC), Step("round")]
    code = float_chain_kernel(steps, TEAM)
    assert code is not None
    assert code.addresses["run"]
