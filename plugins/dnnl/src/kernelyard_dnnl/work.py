"""Cost estimate of a primitive, which decides whether multi-threading pays.

Waking threads and waiting for the last of them takes some microseconds, and far longer where others use the cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelyard import dtypes
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.primitive import Argument, Descriptors

# What one core does in a second on a server of today, at least: a third of the operations, and bytes from its caches.
FLOPS = 1e11
INTEGER_FLOPS = 4e11  # where products of 8 bits are added four at a time
BYTES = 4e10
# What a step on all threads must take on one. Sharing it costs less than a microsecond where the threads are awake, and
# what one thread alone reads was half written by the others, in whose caches it lies: in MobileNets with two threads,
# depthwise convolutions of 19 us took 28 us on one.
WORTHWHILE_SECONDS = 5e-6


def seconds(kind: str, arguments: Sequence[Argument]) -> float:
    """Return one core's time for a primitive."""
    layouts = layouts_of(arguments)
    nbytes = sum(math.prod(each.shape) * dtypes.itemsize(each.dtype) for each in layouts)
    rate = INTEGER_FLOPS if layouts and layouts[0].dtype in ("int8", "uint8") else FLOPS
    return flops(kind, layouts) / rate + nbytes / BYTES


def layouts_of(arguments: Sequence[Argument]) -> list[MemoryDescriptor]:
    """Return the tensors among a primitive's arguments, in order."""
    layouts: list[MemoryDescriptor] = []
    for argument in arguments:
        if isinstance(argument, Descriptors):
            layouts += argument.values
        elif isinstance(argument, MemoryDescriptor):
            layouts.append(argument)
    return layouts


def flops(kind: str, layouts: Sequence[MemoryDescriptor]) -> float:
    """Return the additions and multiplications of a matmul or convolution; 0 for memory-bound primitives."""
    if kind == "matmul":
        return 2.0 * math.prod(layouts[-1].shape) * layouts[0].shape[-1]
    if kind in ("convolution_forward", "deconvolution_forward"):
        # Each weight meets every place of an image: of the result, or, where that is spread out, of the data.
        image = layouts[-1] if kind == "convolution_forward" else layouts[0]
        return 2.0 * math.prod(image.shape) * math.prod(layouts[1].shape) / max(image.shape[1], 1)
    return 0.0


def fitting_threads(kind: str, arguments: Sequence[Argument], threads: int) -> int:
    """Return the number of threads for a primitive: one or all of them."""
    return threads if threads == 1 or seconds(kind, arguments) >= WORTHWHILE_SECONDS else 1
