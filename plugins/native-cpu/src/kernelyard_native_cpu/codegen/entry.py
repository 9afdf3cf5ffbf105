"""The entry function of a kernel as LLVM text: its groups in turn, for each step of a loop if they share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelyard.runtime.api import ALONE_IF_ASLEEP
from kernelyard_native_cpu.codegen.threads import SHARE_OUT

_ARGUMENTS = "ptr %args, ptr %dims, ptr %workspace"


class GroupLoop(NamedTuple):
    """Groups that are run in turn, for each step of a loop if they share one.

    groups: by number, with `GroupInfo.is_short`. steps: how many, or where that stands in the table of numbers.
    """

    groups: Sequence[tuple[int, bool]]
    steps: int = 1
    steps_place: int | None = None


class ConcurrentLoops(NamedTuple):
    """Loops that do not depend on each other, and may be run at the same time, one by a thread.

    place: where in the table of numbers it stands how many threads run them; with one, they are run in turn.
    """

    loops: Sequence[GroupLoop]
    place: int


def entry_function(name: str, parts: Sequence[GroupLoop | ConcurrentLoops]) -> str:
    """Return the kernel: each part in turn, its groups by one thread or by the pool."""
    tasks = ""
    lines = [f"define i32 @{name}(ptr %args, ptr %dims, i32 %most, ptr %workspace) #0 {{", "entry:"]
    for part in parts:
        if isinstance(part, ConcurrentLoops):
            tasks = _loops_as_tasks(f"{name}.loops", name, part.loops)
            lines += _run_concurrently(f"{name}.loops", name, part)
        else:
            lines += _loop(name, part)
    return "\n".join([tasks, *lines, "  ret i32 0", "}", ""])


def _run_concurrently(tasks: str, name: str, part: ConcurrentLoops) -> list[str]:
    """Return the lines that run loops at the same time where threads are given, and else in turn."""
    return [
        *_load_number("%together", part.place),
        "  %apart = icmp sle i64 %together, 1",
        "  br i1 %apart, label %in_turn, label %at_once",
        "at_once:",
        f"  call void @{SHARE_OUT}(ptr @{tasks}, {_ARGUMENTS},",
        f"    i64 {len(part.loops)}, i64 %together, i64 0, i32 0)",
        "  br label %after_loops",
        "in_turn:",
        *[line for loop in part.loops for line in _loop(name, loop)],
        "  br label %after_loops",
        "after_loops:",
    ]


def _loops_as_tasks(tasks: str, name: str, loops: Sequence[GroupLoop]) -> str:
    """Return a function like that of a group whose tasks are whole loops, each run by the thread that has the task."""
    lines = [f"define internal void @{tasks}({_ARGUMENTS}, i64 %begin, i64 %end, i64 %thread, i64 %step) #0 {{"]
    cases = " ".join(f"i64 {number}, label %task{number}" for number in range(len(loops)))
    lines += [
        "entry:",
        "  br label %look",
        "look:",
        "  %task = phi i64 [ %begin, %entry ], [ %task.next, %done ]",
        "  %some = icmp slt i64 %task, %end",
        "  br i1 %some, label %take, label %finished",
        "take:",
        f"  switch i64 %task, label %done [ {cases} ]",
    ]
    for number, loop in enumerate(loops):
        lines += [f"task{number}:", *_loop(name, loop, is_alone=True), "  br label %done"]
    lines += ["done:", "  %task.next = add i64 %task, 1", "  br label %look", "finished:", "  ret void", "}", ""]
    return "\n".join(lines)


def _loop(name: str, loop: GroupLoop, is_alone: bool = False) -> list[str]:
    """Return the lines of a loop over groups; each is told the step. is_alone: the pool is at other work."""
    run = _groups_of_one_thread if is_alone else _groups
    if loop.steps == 1 and loop.steps_place is None:
        return run(name, loop.groups, "0")
    number = loop.groups[0][0]
    step, count = f"%step{number}", str(loop.steps)
    lines: list[str] = []
    if loop.steps_place is not None:
        count = f"%count{number}"
        lines = _load_number(count, loop.steps_place)
    return [
        *lines,
        f"  br label %enter{number}",
        f"enter{number}:",
        f"  br label %head{number}",
        f"head{number}:",
        f"  {step} = phi i64 [ 0, %enter{number} ], [ {step}.next, %latch{number} ]",
        f"  {step}.inside = icmp slt i64 {step}, {count}",
        f"  br i1 {step}.inside, label %body{number}, label %exit{number}",
        f"body{number}:",
        *run(name, loop.groups, step),
        f"  br label %latch{number}",
        f"latch{number}:",
        f"  {step}.next = add i64 {step}, 1",
        f"  br label %head{number}",
        f"exit{number}:",
    ]


def _load_number(register: str, place: int) -> list[str]:
    """Return the lines that load a number from the kernel's table."""
    return [
        f"  {register}.at = getelementptr i64, ptr %dims, i64 {place}",
        f"  {register} = load i64, ptr {register}.at",
    ]


def _groups_of_one_thread(name: str, groups: Sequence[tuple[int, bool]], step: str) -> list[str]:
    lines: list[str] = []
    for g, _ in groups:
        lines += [*_load_number(f"%tasks{g}", 2 * g + 1), _call_alone(name, g, step)]
    return lines


def _call_alone(name: str, g: int, step: str) -> str:
    return f"  call void @{name}.{g}({_ARGUMENTS}, i64 0, i64 %tasks{g}, i64 0, i64 {step})"


def _groups(name: str, groups: Sequence[tuple[int, bool]], step: str) -> list[str]:
    lines: list[str] = []
    for g, is_short in groups:
        lines += [
            *_load_number(f"%threads{g}", 2 * g),
            *_load_number(f"%tasks{g}", 2 * g + 1),
            f"  %alone{g} = icmp sle i64 %threads{g}, 1",
            f"  br i1 %alone{g}, label %one{g}, label %many{g}",
            f"one{g}:",
            _call_alone(name, g, step),
            f"  br label %done{g}",
            f"many{g}:",
            f"  call void @{SHARE_OUT}(ptr @{name}.{g}, {_ARGUMENTS},",
            f"    i64 %tasks{g}, i64 %threads{g}, i64 {step}, i32 {ALONE_IF_ASLEEP if is_short else 0})",
            f"  br label %done{g}",
            f"done{g}:",
        ]
    return lines
