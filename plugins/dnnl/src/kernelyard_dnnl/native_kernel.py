"""Code of our own as an operation of a plan, beside oneDNN's primitives: it reads all it needs from a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class NativeKernel(NamedTuple):
    """A C function `int32_t f(int64_t* record, _, int32_t threads, _)`, and the record of one operation.

    record: what the function reads; addresses are 0 until the operation is bound. places: where in the record the
    address of each argument goes, by the library's argument numbers. scratch_place: where that of the scratch memory
    goes. flops: additions and multiplications. keep: what must live as long as the function is called.
    """

    implementation: str
    function: int
    record: tuple[int, ...]
    places: Mapping[int, int]
    scratch_place: int
    scratchpad_nbytes: int
    threads: int
    flops: int
    keep: object = None
