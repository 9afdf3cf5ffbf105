"""Group: stages that run under one parallel loop."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Buffer, IterVar, Stage


@dataclass(frozen=True)
class Group:
    """Stages under one parallel loop over the first `shared` axes.

    private: locals that are kept per thread, without these axes. block_rows: the last shared axis counts blocks of so
    many of its `rows_in_all`, and buffers are declared for the rows of one block; 0 where it counts single rows.
    """

    stages: tuple[Stage, ...]
    shared: int = 0
    private: frozenset[Buffer] = frozenset()
    rows_in_all: Dim = 0
    block_rows: Dim = 0

    @property
    def step(self) -> IterVar | None:
        """The step axis of the loop around the group."""
        return self.stages[0].step

    @property
    def rows(self) -> Dim:
        """The number of iterations of the shared loop."""
        return dims.product(axis.extent for axis in self.stages[0].spatial[: self.shared])

    @property
    def dropped_axes(self) -> int:
        """The number of leading axes that private buffers are kept without."""
        return 0 if self.block_rows else self.shared
