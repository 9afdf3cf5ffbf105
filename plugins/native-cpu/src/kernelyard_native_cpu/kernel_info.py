"""Decide how many threads, tasks and bytes of workspace a kernel gets when it is bound.

The numbers come from a header that is saved beside the object code, and validated when it is read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernelyard.dims import Dim
from kernelyard.runtime.api import Fields, NamedTuple, TensorSpec, align, corrupted, read_dim

# A thread of the pool joins in a microsecond while it spins, in tens once it sleeps; each must have so much to do.
# In a loop over steps it still spins since the step before.
NANOSECONDS_PER_THREAD, NANOSECONDS_PER_AWAKE_THREAD = 10_000, 3_000
# Who wakes a thread loses 15 us, and it comes 30 us later: what takes less than this in all is left to threads awake.
LEAST_NANOSECONDS_TO_WAKE = 60_000


class Variant(NamedTuple):
    """A way to run a group: taken where `extent >= least`; `tasks` is then the number of its tasks."""

    tasks: Dim
    extent: Dim = 1
    least: int = 0


class GroupInfo(NamedTuple):
    """variants: the first that applies is taken. work: numbers of points, with the nanoseconds that each takes.
    in_steps: it is run for each step of a loop."""

    variants: tuple[Variant, ...]
    work: tuple[tuple[Dim, float], ...]
    in_steps: bool = False

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Dims that the numbers of tasks and threads follow from."""
        return (*[dim for each in self.variants for dim in (each.extent, each.tasks)], *[dim for dim, _ in self.work])

    def evaluate(self, values: Iterator[int], most: int) -> tuple[int, int]:
        """Return the numbers of threads worth waking, of at most so many, and of tasks; `values`: of the dims."""
        found = [(next(values), next(values)) for _ in self.variants]
        total = sum([next(values) * time for _, time in self.work])
        for variant, (extent, count) in zip(self.variants, found, strict=True):
            if extent >= variant.least:
                tasks = max(count, 0)
                return max(1, min(most, tasks, int(total / self.nanoseconds_per_thread))), tasks
        return 1, 0

    @property
    def is_short(self) -> bool:
        """True for what is known to take less time than waking a thread, and is not done step by step."""
        times = [points * time for points, time in self.work if isinstance(points, int)]
        return not self.in_steps and len(times) == len(self.work) and sum(times) < LEAST_NANOSECONDS_TO_WAKE

    @property
    def nanoseconds_per_thread(self) -> int:
        """The work that a thread is worth calling for."""
        return NANOSECONDS_PER_AWAKE_THREAD if self.in_steps or self.is_short else NANOSECONDS_PER_THREAD


class ConcurrentLoopsInfo(NamedTuple):
    """Loops that may run at the same time, `number` of them; groups: all of theirs. work: as in `GroupInfo`, of all
    their steps."""

    number: int
    groups: tuple[int, ...]
    work: tuple[tuple[Dim, float], ...]

    def evaluate(self, values: Iterator[int], pairs: Sequence[tuple[int, int]], most: int) -> int:
        """Return the number of threads that run the loops; pairs: those of each group, where they run in turn.

        In turn is better where more threads than there are loops share what a step does.
        """
        total = sum([next(values) * time for _, time in self.work])
        if max([pairs[group][0] for group in self.groups]) > self.number:
            return 1
        return max(1, min(most, self.number, int(total / NANOSECONDS_PER_THREAD)))


class LocalInfo(NamedTuple):
    """A local buffer: one for all threads, or one for each."""

    nbytes: Dim
    per_thread: bool


class Binding(NamedTuple):
    """The numbers a kernel is called with, and the workspace it needs."""

    numbers: tuple[int, ...]
    workspace: int


def entry_symbol(kernel: str) -> str:
    """Return a kernel's symbol in object code: never that of a C function, which `floor` alone would be."""
    return f"kernel.{kernel}"


class KernelInfo(NamedTuple):
    """params: inputs, then `num_outputs` outputs. numbers: dims the code reads, after those of groups, locals and
    loops. loops: those that may run at the same time."""

    symbol: str
    params: tuple[TensorSpec, ...]
    num_outputs: int
    groups: tuple[GroupInfo, ...]
    locals: tuple[LocalInfo, ...]
    numbers: tuple[Dim, ...]
    loops: ConcurrentLoopsInfo | None = None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Dims whose values `evaluate` takes."""
        groups = [dim for group in self.groups for dim in group.dims]
        loops = [points for points, _ in self.loops.work] if self.loops else []
        return (*groups, *[local.nbytes for local in self.locals], *loops, *self.numbers)

    @property
    def num_numbers(self) -> int:
        """How many numbers `evaluate` returns."""
        return 2 * len(self.groups) + 2 * len(self.locals) + bool(self.loops) + len(self.numbers)

    def evaluate(self, values: Sequence[int], most_threads: int) -> Binding:
        """Return the kernel's numbers for some values of `dims`."""
        left = iter(values)
        pairs = [group.evaluate(left, most_threads) for group in self.groups]
        found = [number for pair in pairs for number in pair]
        offset = 0
        for local in self.locals:
            size = align(max(next(left), 0))
            found += [offset, size]
            offset += size * (max(pairs)[0] if local.per_thread else 1)
        if self.loops:
            found.append(self.loops.evaluate(left, pairs, most_threads))
        return Binding((*found, *left), offset)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; symbolic dims become text."""
        return {
            "symbol": self.symbol,
            "params": [spec.to_json() for spec in self.params],
            "outputs": self.num_outputs,
            "groups": [_group_to_json(group) for group in self.groups],
            "locals": [{"bytes": _dim_to_json(local.nbytes), "per_thread": local.per_thread} for local in self.locals],
            "numbers": [_dim_to_json(dim) for dim in self.numbers],
            **({"loops": _loops_to_json(self.loops)} if self.loops else {}),
        }


def _dim_to_json(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _group_to_json(group: GroupInfo) -> dict[str, Any]:
    return {
        "variants": [
            {"tasks": _dim_to_json(v.tasks), "extent": _dim_to_json(v.extent), "least": v.least} for v in group.variants
        ],
        "work": _work_to_json(group.work),
        **({"in_steps": True} if group.in_steps else {}),
    }


def _loops_to_json(loops: ConcurrentLoopsInfo) -> dict[str, Any]:
    return {"number": loops.number, "groups": list(loops.groups), "work": _work_to_json(loops.work)}


def _work_to_json(work: Sequence[tuple[Dim, float]]) -> list[list[Any]]:
    return [[_dim_to_json(points), time] for points, time in work]


def read_kernel_info(value: Any, where: str) -> KernelInfo:
    """Return a header from outside.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(value, where)
    params = fields.each("params", lambda item, place: Fields(item, place).tensor())
    groups = fields.each("groups", _read_group)
    return KernelInfo(
        fields.text("symbol"),
        params,
        fields.integer("outputs", least=0, most=len(params)),
        groups,
        fields.each("locals", _read_local),
        fields.each("numbers", read_dim),
        _read_loops(fields.any("loops"), f"{where}.loops", len(groups)) if "loops" in fields else None,
    )


def _read_group(value: Any, where: str) -> GroupInfo:
    fields = Fields(value, where)
    in_steps = "in_steps" in fields and _read_flag(fields, "in_steps")
    return GroupInfo(fields.each("variants", _read_variant), fields.each("work", _read_work), in_steps)


def _read_loops(value: Any, where: str, num_groups: int) -> ConcurrentLoopsInfo:
    fields = Fields(value, where)
    groups = fields.indices("groups", limit=num_groups)
    if not groups:
        raise corrupted(where, value, "groups of loops")
    return ConcurrentLoopsInfo(fields.integer("number", least=2), groups, fields.each("work", _read_work))


def _read_variant(value: Any, where: str) -> Variant:
    fields = Fields(value, where)
    return Variant(read_dim(fields.any("tasks"), where), read_dim(fields.any("extent"), where), fields.integer("least"))


def _read_work(value: Any, where: str) -> tuple[Dim, float]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], (int, float)):
        raise corrupted(where, value, "a number of points and a time")
    return read_dim(value[0], where), float(value[1])


def _read_local(value: Any, where: str) -> LocalInfo:
    fields = Fields(value, where)
    return LocalInfo(read_dim(fields.any("bytes"), where), _read_flag(fields, "per_thread"))


def _read_flag(fields: Fields, key: str) -> bool:
    value = fields.any(key)
    if not isinstance(value, bool):
        raise corrupted(f"{fields.where}.{key}", value, "true or false")
    return value
