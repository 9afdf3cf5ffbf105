"""Compile one kernel for this machine's CUDA, and say which compiler did."""

from __future__ import annotations

import sys

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_cuda import compiler as cuda_compiler


def main() -> int:
    """Return 1 where nothing compiles."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (5,))))})
    try:
        compiler = cuda_compiler.find_kernel_compiler()
        if compiler is None:
            print("no compiler for CUDA: neither NVRTC nor nvcc is installed")
            return 1
        ky.compile(module, target=ky.Target("cuda", arch="sm_90"), backends=[])
    except KernelyardError as error:
        print(f"nothing compiles: {error}")
        return 1
    print(f"kernels are compiled by {compiler.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
