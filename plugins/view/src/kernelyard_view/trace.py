"""Take traces: calls of one executable by several threads at once, with the memory plan and the machine's roof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.profiling.profile import Profile
from kernelyard.runtime.profiling.profiler import profile
from kernelyard.runtime.profiling.trace import trace_events
from kernelyard_view.build import Build, MemoryMap
from kernelyard_view.build_json import KEY, build_to_json
from kernelyard_view.measure import build_from_profile


class Trace:
    """Calls of an executable, with what is known of them. profiles: of each caller.

    Example:
        >>> Trace.__name__
        'Trace'
    """

    def __init__(self, build: Build, profiles: Sequence[Profile]) -> None:
        self.build = build
        self.profiles = tuple(profiles)

    def to_json(self) -> dict[str, Any]:
        """Return the trace as Perfetto and Chrome read it; `kernelyard view` reads the rest."""
        live = live_nbytes(self.build.memory) if self.build.memory is not None else ()
        events = trace_events(self.profiles, self.build.title, self.build.roof, live)
        return {"displayTimeUnit": "ns", "traceEvents": events, "otherData": {KEY: build_to_json(self.build)}}


def take_trace(
    executable: Executable,
    title: str,
    feeds: Mapping[str, Any],
    calls: int = 10,
    callers: int = 1,
    roof: Mapping[str, float] | None = None,
    watch: Callable[[Callable[[], Profile]], object] | None = None,
) -> Trace:
    """Trace calls of an executable, by so many threads at the same time.

    watch: is given, after each call of the first, a function that makes the profile so far.
    Raises: as running the program.
    """
    with ThreadPoolExecutor(callers) as pool:
        watches = [watch, *[None] * (callers - 1)]
        profiles = list(pool.map(lambda each: profile(executable, feeds, calls, watch=each), watches))
    return Trace(build_from_profile(executable, title, feeds, profiles[0], roof=roof), profiles)


def live_nbytes(memory: MemoryMap) -> list[int]:
    """Return the bytes of the buffers that are needed at each step."""
    live = [0] * len(memory.steps)
    for buffer in memory.buffers:
        for step in range(max(0, buffer.first), min(len(live), buffer.last + 1)):
            live[step] += buffer.nbytes
    return live
