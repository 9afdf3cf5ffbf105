"""Default architectures: what code is compiled for where a target names none."""

from __future__ import annotations

import logging

from kernelyard.runtime.api import EnvironmentVariable
from kernelyard_cuda import driver_api
from kernelyard_cuda.compiler import INSTALL_HINT, find_kernel_compiler

VARIABLE = EnvironmentVariable(
    "KERNELYARD_CUDA_ARCHS",
    "`sm_80,sm_90`: the architectures that code for CUDA is compiled for; empty: none, which the emulator runs",
    "those of the GPUs here, else one of each generation",
)
# One of each major version, the least: A100, H100, B200, RTX 5090. A GPU runs code of its own major version.
PORTABLE = ("sm_80", "sm_90", "sm_100", "sm_120")


def default_archs() -> tuple[str, ...]:
    """Return those that `KERNELYARD_CUDA_ARCHS` lists, else of the GPUs of this machine, else `PORTABLE` ones.

    An empty variable is none: programs carry CUDA text alone, which the emulator runs. So it is, with a warning in the
    log, where no CUDA compiler is installed. Raises: ToolchainError for a compiler that does not run.
    """
    if VARIABLE.is_set:
        return tuple(arch.strip() for arch in VARIABLE.get().split(",") if arch.strip())
    compiler = find_kernel_compiler()
    if compiler is None:
        logging.getLogger(__name__).warning(
            "programs for CUDA get no code for GPUs without a compiler: %s", INSTALL_HINT
        )
        return ()
    if archs := driver_api.gpu_archs():
        return archs
    known = compiler.archs()
    return tuple(arch for arch in PORTABLE if arch in known)
