"""LoopTransfers: the native calls that move bytes between the steps of a program with loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BoundTensor, NativeCall
from kernelyard.runtime.jit.transfers import WORDS, TransferFunctions, transfer_functions
from kernelyard.runtime.program.program import CHECK_FULL, CLEAR, COLLECT, COPY, Transfer


class LoopTransfers:
    """Binds the transfers of a program; must live as long as the calls do.

    tensor: the memory of a register. Raises: ExecutionError where there is no llvmlite to make native code.
    """

    def __init__(self, transfers: Sequence[Transfer], tensor: Callable[[int], BoundTensor]) -> None:
        functions = transfer_functions()
        if functions is None:
            raise ExecutionError("loops of native code take llvmlite", hint="pip install llvmlite")
        self._functions: TransferFunctions = functions
        self._tensor = tensor
        collecting = dict.fromkeys(each.target for each in transfers if each.kind == CLEAR)
        self._words = np.array([_encode_target(tensor(target)) for target in collecting], np.int64).reshape(-1, WORDS)
        self._rows = {target: row for row, target in enumerate(collecting)}

    def call(self, transfer: Transfer) -> NativeCall:
        """Return the call of a transfer."""
        functions = self._functions
        if transfer.kind == COPY:
            target, source = self._tensor(transfer.target), self._tensor(transfer.source)
            return NativeCall(functions.copy, target.address, source.address, d=source.nbytes)
        words = memory.address_of(self._words[self._rows[transfer.target]])
        if transfer.kind == COLLECT:
            return NativeCall(functions.collect, words, self._tensor(transfer.source).address)
        return NativeCall({CLEAR: functions.clear, CHECK_FULL: functions.check_full}[transfer.kind], words)


def _encode_target(target: BoundTensor) -> tuple[int, int, int, int]:
    """Return what `collect` keeps of a target: its address, the bytes of an item, how many there are and may be."""
    capacity = target.shape[0]
    return target.address, target.nbytes // capacity if capacity else 0, 0, capacity
