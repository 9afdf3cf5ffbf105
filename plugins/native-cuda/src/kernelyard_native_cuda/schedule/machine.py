"""Machine: what schedules ask of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard_cuda.driver_api import capability_of

KIB = 1 << 10
HOPPER = (9, 0)


@dataclass(frozen=True)
class Machine:
    """multiprocessors: of a usual GPU of the architecture. shared: bytes of shared memory of a multiprocessor, of which
    a block may have all but one KiB. allows_tf32: matmuls of float32 may be rounded to tf32, for tensor cores.
    has_wgmma: code is to be for sm_90a alone, with its bulk copies and products by warp groups. has_wgmma_convolutions:
    convolutions are to be such products.
    """

    multiprocessors: int
    shared: int
    allows_tf32: bool = False
    has_wgmma: bool = False
    has_wgmma_convolutions: bool = False

    @property
    def shared_for_block(self) -> int:
        """The most that a block may have."""
        return self.shared - KIB

    @property
    def shared_for_half(self) -> int:
        """The most that a block may have where two are to run on a multiprocessor."""
        return self.shared // 2 - KIB


# By compute capability: A100, A10, Orin, L40, H100, B200, Thor, RTX 5090, DGX Spark.
_MACHINES = {
    (8, 0): Machine(108, 164 * KIB),
    (8, 6): Machine(72, 100 * KIB),
    (8, 7): Machine(16, 164 * KIB),
    (8, 9): Machine(142, 100 * KIB),
    (9, 0): Machine(132, 228 * KIB),
    (10, 0): Machine(148, 228 * KIB),
    (11, 0): Machine(20, 228 * KIB),
    (12, 0): Machine(170, 100 * KIB),
    (12, 1): Machine(48, 100 * KIB),
}
# What every one of them can do.
ANY_MACHINE = Machine(108, 100 * KIB)


def machine_of(
    archs: Sequence[str],
    allows_tf32: bool = False,
    allows_wgmma: bool = False,
    allows_wgmma_convolutions: bool = False,
) -> Machine:
    """Return the features common to some architectures; an unknown one has those of the newest known before it.

    Example:
        >>> machine_of(["sm_90a"]).multiprocessors, machine_of(["sm_103", "sm_80"]).multiprocessors
        (132, 108)
    """
    found = [_machine_of(arch) for arch in archs] or [ANY_MACHINE]
    has_wgmma = allows_wgmma and bool(archs) and all(capability_of(arch) == HOPPER for arch in archs)
    multiprocessors, shared = min(m.multiprocessors for m in found), min(m.shared for m in found)
    return Machine(multiprocessors, shared, allows_tf32, has_wgmma, has_wgmma and allows_wgmma_convolutions)


def _machine_of(arch: str) -> Machine:
    capability = capability_of(arch)
    known = [each for each in _MACHINES if capability and each <= capability]
    return _MACHINES[max(known)] if known else ANY_MACHINE
