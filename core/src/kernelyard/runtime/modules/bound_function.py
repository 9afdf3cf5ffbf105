"""BoundFunction: call a function of a module from Python, bound to buffers of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from kernelyard.errors import InputShapeError, InputTypeError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.runtime.abi.spec import Signature
from kernelyard.runtime.abi.threads import threads_of_a_run
from kernelyard.runtime.device.tensor import as_array
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.step_errors import StepLabel
from kernelyard.runtime.lru import LRU

MAX_BOUND_SHAPES = 16


class BoundFunction:
    """A function behind the destination-passing convention: copies in, runs, copies out; one call at a time runs."""

    def __init__(self, module: RuntimeModule, symbol: str, signature: Signature) -> None:
        self._module = module
        self._symbol = symbol
        self._signature = signature
        self._lock = renewed_in_children(Lock())
        self._bound: LRU[object, tuple[CallTable, list[np.ndarray], BoundCall]] = LRU(MAX_BOUND_SHAPES)

    def __call__(self, *tensors: Any, symbols: Mapping[str, int] | None = None) -> None:
        arrays = [as_array(tensor) for tensor in tensors]
        values = self._check(arrays, symbols)
        count = len(self._signature.inputs)
        with self._lock:
            key = tuple(sorted(values.items()))
            table, buffers, _ = self._bound.get_or_make(key, lambda: self._bind(values))
            for buffer, array in zip(buffers[:count], arrays[:count], strict=True):
                buffer[...] = array
            table.run()
            for buffer, array in zip(buffers[count:], arrays[count:], strict=True):
                array[...] = buffer

    def _check(self, arrays: Sequence[np.ndarray], symbols: Mapping[str, int] | None) -> dict[str, int]:
        specs = self._signature.tensors
        if len(arrays) != len(specs):
            raise InputShapeError(
                f"{self._symbol} takes inputs and then outputs",
                found=f"{len(arrays)} tensors",
                expected=f"{len(self._signature.inputs)} inputs and {len(self._signature.outputs)} outputs",
            )
        values = dict(symbols or {})
        solve_symbols(specs, [array.shape for array in arrays], values)
        for number, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
            if array.dtype.name != spec.dtype:
                raise InputTypeError(
                    "a tensor has the wrong dtype",
                    where=f"argument {number} of {self._symbol}",
                    found=array.dtype.name,
                    expected=spec.dtype,
                )
        return values

    def _bind(self, values: Mapping[str, int]) -> tuple[CallTable, list[np.ndarray], BoundCall]:
        specs = self._signature.tensors
        buffers = [memory.aligned_empty(spec.evaluate(values), spec.dtype) for spec in specs]
        args = [BoundTensor(memory.address_of(b), b.shape, spec.dtype) for b, spec in zip(buffers, specs, strict=True)]
        context = BindContext(threads_of_a_run(), memory.Workspace())
        call = self._module.bind(self._symbol, args, values, context)
        call.keep.append(context)  # the workspace lives as long as the call
        return CallTable(call.steps, [StepLabel(self._symbol, self._module.kind)] * len(call.steps)), buffers, call
