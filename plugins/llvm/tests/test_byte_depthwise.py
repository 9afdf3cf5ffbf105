"""Code for depthwise convolutions of bytes: that LLVM takes it, for every width and dtype."""

from __future__ import annotations

import platform

import pytest

from kernelyard_llvm.byte_depthwise import WIDTHS, Kind, byte_depthwise_kernel, byte_depthwise_text

TEAM = dict.fromkeys(("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"), 0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("signed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("bounds", [None, (-3, 100)])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
def test_code_is_compiled(width, signed, bounds):
    kind = Kind(width, *signed, bounds)
    code = byte_depthwise_kernel(kind, TEAM)
    assert code is not None
    assert code.addresses["run"]
    assert f"vpdpbusd.{8 * width}" in byte_depthwise_text(kind)
