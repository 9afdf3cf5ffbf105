"""Call the kernels of a case once, after a call that warms up: `one_kernel.py CASE ENGINE`, under ncu.

Only the last call lies between the marks that `ncu --profile-from-start off` waits for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import kernelyard as ky
from kernelyard_cuda.driver_api import require_cuda

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_gpu.bound import BoundProgram, Shared
from on_gpu.engines import Stage
from on_gpu.kernel_bench import OURS
from on_gpu.kernel_cases import KERNELS


def main(name: str, engine: str) -> int:
    """Return 1 without a GPU."""
    if name not in KERNELS or engine not in OURS:
        print(f"no such kernel; cases: {', '.join(KERNELS)}; engines: {', '.join(OURS)}")
        return 2
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU here, and counters are a GPU's")
        return 1
    stage, case, (backends, _) = Stage(is_emulator=False), KERNELS[name](), OURS[engine]
    exe = ky.compile(case.module([each.array() for each in case.weights]), target=stage.target, backends=backends)
    driver = require_cuda(stage.device.open(), name)
    program = BoundProgram(exe, Shared(exe, driver), [each.array() for each in case.feeds])
    program()
    driver.synchronize()
    torch.cuda.profiler.start()
    program()
    driver.synchronize()
    torch.cuda.profiler.stop()
    print(exe.report)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
