"""Digests of large weights, computed by other threads while a compile goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kernelyard import dims
from kernelyard.ir.expr import Constant, operands
from kernelyard.ir.module import IRModule
from kernelyard.runtime.abi.threads import processors

LARGE = 1 << 18  # bytes: what is smaller is hashed sooner than a thread takes it up


def hash_ahead(module: IRModule) -> None:
    """Start to compute the digests of a module's large constants; `Constant.digest` waits for its own.

    The elements of a `DeferredConstant` are computed for it. SHA-256 takes a second for a gigabyte, and the interpreter
    lock is free meanwhile.
    """
    read = (
        operand
        for function in module.graph_functions().values()
        for binding in function.bindings
        for operand in operands(binding.value)
    )
    large = dict.fromkeys(each for each in read if isinstance(each, Constant) and _nbytes(each) >= LARGE)
    if not large:
        return
    executor = ThreadPoolExecutor(processors(), "kernelyard-digest")
    for constant in large:
        constant.hash_ahead(executor)
    executor.shutdown(wait=False)


def _nbytes(constant: Constant) -> int:
    """Return the size of the elements, which may not be computed yet."""
    return dims.evaluate(constant.tensor_type.nbytes, {})
