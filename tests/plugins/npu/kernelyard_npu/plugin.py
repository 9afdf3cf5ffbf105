"""The hooks of kernelyard-npu."""

from __future__ import annotations

from kernelyard.plugins import hookimpl


@hookimpl
def kernelyard_backend():
    from kernelyard_npu.backend import NpuBackend

    return NpuBackend()
