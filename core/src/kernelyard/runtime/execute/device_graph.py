"""CapturedGraph: steps of a device, captured and replayed as one call, as CUDA graphs are.

Source: CUDA C++ Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import groupby

from kernelyard.errors import ExecutionError, PerformanceWarning
from kernelyard.runtime.abi.module import Step
from kernelyard.runtime.device.driver import DeviceDriver
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.step_errors import StepLabel

MAX_GRAPHS = 4  # of one sequence of steps: feeds that lie in turn at a few places

Addresses = tuple[int, ...]


class CapturedGraph:
    """Steps that only put work on the device's stream.

    They run as they are the first time at given addresses, which is also the warm-up that libraries need, and are
    captured the second time. What cannot be captured runs on as it is, with a warning.
    """

    def __init__(self, driver: DeviceDriver, table: CallTable, count: int) -> None:
        self._driver = driver
        self._table = table
        self._is_worthwhile = count > 1
        self._seen: Addresses | None = None
        self._replays: dict[Addresses, Callable[[], None]] = {}

    def run(self, addresses: Addresses) -> None:
        """Run the steps; `addresses` are all that may have changed since the last time."""
        replay = self._replays.get(addresses)
        if replay is None and self._is_worthwhile and self._seen == addresses:
            replay = self._capture(addresses)
        self._seen = addresses
        (replay or self._table.run)()

    def _capture(self, addresses: Addresses) -> Callable[[], None] | None:
        try:
            replay = self._driver.capture(self._table.run)
        except ExecutionError as error:
            replay = None
            warnings.warn(
                f"steps on {self._driver.device} run one by one, as they cannot be captured: {error}",
                PerformanceWarning,
                stacklevel=2,
            )
        if replay is None:
            self._is_worthwhile = False
            return None
        if len(self._replays) == MAX_GRAPHS:
            del self._replays[next(iter(self._replays))]
        self._replays[addresses] = replay
        return replay


class CapturedProgram:
    """The steps of a program: those that may be captured by `CapturedGraph`, the others between them.

    labels: what each step is, for messages. capturable: whether each may be captured.
    """

    def __init__(
        self, driver: DeviceDriver, steps: Sequence[Step], labels: Sequence[StepLabel], capturable: Sequence[bool]
    ) -> None:
        self._parts: list[Callable[[Addresses], None]] = []
        for may_capture, numbers in groupby(range(len(steps)), key=capturable.__getitem__):
            members = list(numbers)
            table = CallTable([steps[n] for n in members], [labels[n] for n in members])
            part = CapturedGraph(driver, table, len(members)).run if may_capture else _unconditional(table)
            self._parts.append(part)

    def run(self, addresses: Addresses) -> None:
        """See `CapturedGraph.run`."""
        for part in self._parts:
            part(addresses)


def _unconditional(table: CallTable) -> Callable[[Addresses], None]:
    return lambda addresses: table.run()
