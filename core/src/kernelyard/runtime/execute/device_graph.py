"""CapturedProgram: steps of a device, captured and replayed as one call, as CUDA graphs are.

Source: CUDA C++ Programming Guide, "CUDA Graphs".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from kernelyard.errors import ExecutionError, PerformanceWarning, warn_caller
from kernelyard.runtime.abi.module import Step
from kernelyard.runtime.device.driver import DeviceDriver
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.step_errors import StepLabel

# Of one program: results that are fed back lie at two or three places in turn, and so do feeds.
MAX_GRAPHS = 8
MAX_SEEN = 32
# What a capture beyond the first few takes in replays: addresses that come back too seldom are not worth it.
REPLAYS_OF_A_CAPTURE = 16

Addresses = tuple[int, ...]
Replay = Callable[[], None]


class _Part:
    """Neighbouring steps. may_capture: whether they only put work on the device's stream, and are several."""

    def __init__(self, driver: DeviceDriver, table: CallTable, may_capture: bool) -> None:
        self._driver = driver
        self.table = table
        self.may_capture = may_capture

    def capture(self) -> Replay:
        """Return the replay of the steps at their present addresses; the steps themselves where there is none, which is
        told once."""
        if not self.may_capture:
            return self.table.run
        try:
            replay = self._driver.capture(self.table.run)
        except ExecutionError as error:
            replay = None
            message = f"steps on {self._driver.device} run one by one, as they cannot be captured: {error}"
            warn_caller(message, PerformanceWarning)
        self.may_capture = replay is not None
        return replay or self.table.run


class CapturedProgram:
    """The steps of a program: those that may be captured as graphs, the others between them.

    They run as they are the first time at given addresses, which is also the warm-up that libraries need, and are
    captured the next time, though there were others meanwhile. What cannot be captured runs as it is, with a warning.
    labels: what each step is, for messages. capturable: whether each may be captured.
    """

    def __init__(
        self, driver: DeviceDriver, steps: Sequence[Step], labels: Sequence[StepLabel], capturable: Sequence[bool]
    ) -> None:
        self._parts: list[_Part] = []
        for may_capture, numbers in groupby(range(len(steps)), key=capturable.__getitem__):
            members = list(numbers)
            table = CallTable([steps[n] for n in members], [labels[n] for n in members])
            self._parts.append(_Part(driver, table, may_capture and len(members) > 1))
        self._seen: OrderedDict[Addresses, object] = OrderedDict()
        self._replays: OrderedDict[Addresses, list[Replay]] = OrderedDict()
        self._captured = self._replayed = 0

    def run(self, choices: Sequence[Addresses], move: Callable[[Addresses], None]) -> Addresses:
        """Run the steps at one of some sets of addresses, and return which: the first that is captured or was seen
        before, else the first of all. `move` tells the steps of it.

        A set is all addresses that may differ from run to run.
        """
        addresses = next(filter(self._is_known, choices), choices[0])
        replays = self._replays.get(addresses)
        if replays is None or not all(part.may_capture for part in self._parts):  # what was captured has its addresses
            move(addresses)
        if replays is not None:
            self._replays.move_to_end(addresses)
            self._replayed += 1
            for replay in replays:
                replay()
        elif self._is_known(addresses):
            self._capture(addresses)
        else:
            for part in self._parts:
                part.table.run()
        if any(part.may_capture for part in self._parts):
            for each in choices:
                _put(self._seen, each, None, MAX_SEEN)
        return addresses

    def _is_known(self, addresses: Addresses) -> bool:
        """Tell if steps are captured at these addresses, or may be: a capture takes longer than a run, and must pay."""
        if addresses in self._replays:
            return True
        return addresses in self._seen and self._captured < MAX_GRAPHS + self._replayed // REPLAYS_OF_A_CAPTURE

    def _capture(self, addresses: Addresses) -> None:
        self._captured += 1
        replays: list[Replay] = []
        for part in self._parts:
            replays.append(part.capture())
            replays[-1]()
        if any(part.may_capture for part in self._parts):
            _put(self._replays, addresses, replays, MAX_GRAPHS)
        else:
            self._seen.clear()


def _put(into: OrderedDict[Addresses, Any], addresses: Addresses, value: object, most: int) -> None:
    into[addresses] = value
    into.move_to_end(addresses)
    if len(into) > most:
        into.popitem(last=False)
