"""An interpreter of PTX in NumPy: what a CUDA compiler makes of kernels is executed where no GPU is.

It is slow, checks every access, and knows of sm_80 what our kernels and CUTLASS's templates use; an instruction that it does
not know is an error that names it. `Program(text, memory).launch(...)` is the front door.
"""

from __future__ import annotations

from .errors import PtxError
from .program import GlobalMemory, Program

__all__ = ["GlobalMemory", "Program", "PtxError"]
