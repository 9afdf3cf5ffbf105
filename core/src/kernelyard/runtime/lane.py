"""Lane and LanePool: the memory that one running call has to itself, and how many of them there may be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Condition, get_ident
from typing import TYPE_CHECKING

from kernelyard.runtime import memory
from kernelyard.runtime.instance import AnyInstance, Instance
from kernelyard.runtime.lru import LRU
from kernelyard.runtime.memory import Workspace
from kernelyard.runtime.plan import Plan

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable

MAX_INSTANCES = 16
MIN_ARENA_NBYTES = 1 << 16


class Lane:
    """Memory that one running call uses at a time, and the instances that are bound to it.

    latest: by function, the instance that ran its last call here, and the sizes that were known then. is_spare: no pool
    has it.
    """

    def __init__(self, is_spare: bool = False, instance_type: type[Instance] = Instance) -> None:
        self.is_spare = is_spare
        self._instance_type = instance_type
        self.holder: int | None = None
        self.latest: dict[object, tuple[tuple[int | None, ...], AnyInstance]] = {}
        self._arena = memory.aligned_bytes(0)
        self._scratch = Workspace()
        self._instances: dict[int, LRU[Plan, AnyInstance]] = {}  # by the program's identity

    def instance(self, plan: Plan, executable: Executable, threads: int) -> AnyInstance:
        """The plan bound to this lane's memory."""
        kept = self._instances.setdefault(id(plan.program), LRU(MAX_INSTANCES))
        return kept.get_or_make(plan, lambda: self._bind(plan, executable, threads))

    def forget(self) -> None:
        """Bind everything anew when it is next called."""
        for kept in self._instances.values():
            kept.clear()
        self.latest.clear()

    def _bind(self, plan: Plan, executable: Executable, threads: int) -> AnyInstance:
        if plan.arena_nbytes > self._arena.nbytes:
            # Room to grow costs addresses only: pages that no plan touches are never there.
            self._arena = memory.aligned_bytes(max(plan.arena_nbytes, 2 * self._arena.nbytes, MIN_ARENA_NBYTES))
            self.forget()  # what is bound to the old arena would keep it
        return self._instance_type(plan, executable, self._arena, self._scratch, threads)


class LanePool:
    """At most `size` lanes. A call takes one and gives it back; while all are taken, others wait.

    A thread that holds a lane already (an instrument or a Python step that calls the program again) does not wait: it
    might wait for itself. It gets a lane that is gone afterwards.

    Example:
        >>> pool = LanePool(2)
        >>> first = pool.take()
        >>> pool.give_back(first)
        >>> pool.take() is first
        True
    """

    def __init__(self, size: int, make_lane: Callable[[bool], Lane] = Lane) -> None:
        self.size = size
        self._make_lane = make_lane  # of whether it is a spare one
        self._lanes: list[Lane] = []
        self._idle: list[Lane] = []
        self._handed: list[Lane] = []  # for those who wait, so that nobody overtakes them for ever
        self._waiting = 0
        self._changed = Condition()

    def __len__(self) -> int:
        """How many lanes there are: as many as were ever in use at the same time."""
        return len(self._lanes)

    def take(self) -> Lane:
        """A lane that nobody else uses until `give_back`: the one given back last, where there is one."""
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = self._make_or_wait()
        lane.holder = get_ident()
        return lane

    def give_back(self, lane: Lane) -> None:
        """Let others have a lane."""
        lane.holder = None
        if lane.is_spare:
            return
        if not self._waiting:  # whoever begins to wait raises this first, and looks at the idle lanes afterwards
            self._idle.append(lane)
            return
        with self._changed:
            self._handed.append(lane)
            self._changed.notify()

    def _make_or_wait(self) -> Lane:
        me = get_ident()
        with self._changed:
            if self._handed:
                return self._handed.pop()
            if len(self._lanes) < self.size:
                self._lanes.append(self._make_lane(False))
                return self._lanes[-1]
            if any(lane.holder == me for lane in self._lanes):
                return self._make_lane(True)
            self._waiting += 1
            try:
                while True:
                    if self._handed:
                        return self._handed.pop()
                    with suppress(IndexError):
                        return self._idle.pop()
                    self._changed.wait()
            finally:
                self._waiting -= 1
