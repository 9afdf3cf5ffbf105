"""GPU properties for the choice of tiles, by compute capability.

Source: CUDA C++ Programming Guide, "Compute Capabilities", and NVIDIA's white papers of the A100, L40 and H100.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Gpu:
    """multiprocessors: of the largest of its kind. shared_nbytes: that one block, and one multiprocessor, may have.
    products: multiply-adds of float16 that a multiprocessor does in a clock with the instructions used here. nbytes:
    that it gets from the second-level cache in a clock.
    """

    multiprocessors: int
    shared_nbytes: int
    threads: int
    products: int
    nbytes: int


GPUS = {
    (8, 0): Gpu(108, 163 << 10, 2048, 1024, 48),
    (8, 6): Gpu(84, 99 << 10, 1536, 512, 32),
    (8, 9): Gpu(142, 99 << 10, 1536, 512, 32),
    (9, 0): Gpu(132, 227 << 10, 2048, 1024, 48),
    (10, 0): Gpu(148, 227 << 10, 2048, 1024, 48),
    (12, 0): Gpu(170, 99 << 10, 1536, 512, 32),
}
DEFAULT = GPUS[LEAST_CAPABILITY]


def gpu_of(capability: tuple[int, int] | None) -> Gpu:
    """Return the facts of a capability: those of the newest known one of its generation that is not newer."""
    if capability is None:
        return DEFAULT
    fitting = [known for known in GPUS if known <= capability]
    return GPUS[max(fitting)] if fitting else DEFAULT
