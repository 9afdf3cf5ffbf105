"""Multi-threading of kernels as LLVM text: the threads of a pool share a group's tasks.

Each thread has a range of its own, and takes half of what is left of it, again and again; when nothing is left it goes
on with the others' ranges. So a thread finds in its cache what it worked on in the group before, and none waits long
for one that woke late or was held up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelyard.runtime.api import ALONE_IF_ASLEEP

# The smallest piece is this part of a range: smaller ones are shared more evenly, but each has its cost.
_SMALLEST = 8
# Where each thread's next task stands: on a cache line of its own.
_LINE = 64

# What threads are told, in the order in which it lies in a context: 8 bytes each.
FIELDS = {
    "group": "ptr",
    "args": "ptr",
    "dims": "ptr",
    "workspace": "ptr",
    "tasks": "i64",
    "threads": "i64",
    "cursors": "ptr",
    "step": "i64",
}

# What an entry function calls where a group has threads.
SHARE_OUT = "threads.share_out"
_PARAMETERS = "ptr, ptr, ptr, ptr, i64, i64, i64, i32"
DECLARATIONS = {SHARE_OUT: f"declare hidden void @{SHARE_OUT}({_PARAMETERS})"}
# What the functions below call.
POOL_DECLARATIONS = {
    "GOMP_parallel": "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
    "omp_get_thread_num": "declare i32 @omp_get_thread_num()",
    "llvm.umax.i64": "declare i64 @llvm.umax.i64(i64, i64)",
    "llvm.umin.i64": "declare i64 @llvm.umin.i64(i64, i64)",
}


def _places() -> str:
    """Return the LLVM text that computes the addresses of `%context`'s fields."""
    return "\n".join(f"  %{name}.at = getelementptr i64, ptr %context, i64 {n}" for n, name in enumerate(FIELDS))


def _loads() -> str:
    """Return the LLVM text that loads the fields of `%context`."""
    return "\n".join(f"  %{name} = load {type_}, ptr %{name}.at, align 8" for name, type_ in FIELDS.items())


def _stores() -> str:
    """Return the LLVM text that stores the fields of `%context`."""
    return "\n".join(f"  store {type_} %{name}, ptr %{name}.at, align 8" for name, type_ in FIELDS.items())


# share_out: every thread's range is untouched; the pool runs the group by these flags. Objects that are linked into one
# library may each bring it along.
# take_tasks: what one thread does of a group: pieces of its own range, then of those after it. In every other step of a
# recurrence it begins at the end of a range: the last pieces of the step before are in its cache.
FUNCTIONS = f"""define weak_odr hidden void @{SHARE_OUT}(ptr %group, ptr %args, ptr %dims, ptr %workspace, i64 %tasks,
    i64 %threads, i64 %step, i32 %flags) #0 {{
entry:
  %context = alloca [{len(FIELDS)} x i64], align 8
  %cursors = alloca [{_LINE} x i8], i64 %threads, align {_LINE}
{_places()}
{_stores()}
  br label %next
next:
  %thread = phi i64 [ 0, %entry ], [ %after, %next ]
  %low = mul i64 %tasks, %thread
  %begin = udiv i64 %low, %threads
  %line = mul i64 %thread, {_LINE}
  %cursor = getelementptr i8, ptr %cursors, i64 %line
  store i64 %begin, ptr %cursor, align 8
  %after = add i64 %thread, 1
  %more = icmp ult i64 %after, %threads
  br i1 %more, label %next, label %run
run:
  %count = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @take_tasks, ptr %context, i32 %count, i32 %flags)
  ret void
}}

define internal void @take_tasks(ptr %context) #0 {{
entry:
{_places()}
{_loads()}
  %number = call i32 @omp_get_thread_num()
  %thread = zext i32 %number to i64
  %odd = and i64 %step, 1
  %backwards = icmp ne i64 %odd, 0
  br label %range
range:
  %offset = phi i64 [ 0, %entry ], [ %further, %done ]
  %place = add i64 %thread, %offset
  %owner = urem i64 %place, %threads
  %follower = add i64 %owner, 1
  %low = mul i64 %tasks, %owner
  %high = mul i64 %tasks, %follower
  %first = udiv i64 %low, %threads
  %last = udiv i64 %high, %threads
  %length = sub i64 %last, %first
  %fraction = udiv i64 %length, {_SMALLEST}
  %least = call i64 @llvm.umax.i64(i64 %fraction, i64 1)
  %line = mul i64 %owner, {_LINE}
  %cursor = getelementptr i8, ptr %cursors, i64 %line
  br label %look
look:
  %begin = load atomic i64, ptr %cursor monotonic, align 8
  %some = icmp ult i64 %begin, %last
  br i1 %some, label %take, label %done
take:
  %left = sub i64 %last, %begin
  %half = lshr i64 %left, 1
  %piece = call i64 @llvm.umax.i64(i64 %half, i64 %least)
  %reached = add i64 %begin, %piece
  %end = call i64 @llvm.umin.i64(i64 %reached, i64 %last)
  %pair = cmpxchg ptr %cursor, i64 %begin, i64 %end monotonic monotonic, align 8
  %taken = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %taken, label %work, label %look
work:
  %ends = add i64 %first, %last
  %far = sub i64 %ends, %end
  %near = sub i64 %ends, %begin
  %from = select i1 %backwards, i64 %far, i64 %begin
  %to = select i1 %backwards, i64 %near, i64 %end
  call void %group(ptr %args, ptr %dims, ptr %workspace, i64 %from, i64 %to, i64 %thread, i64 %step)
  br label %look
done:
  %further = add i64 %offset, 1
  %others = icmp ult i64 %further, %threads
  br i1 %others, label %range, label %finished
finished:
  ret void
}}
"""


class GroupLoop(NamedTuple):
    """Groups that are run in turn, for each step of a loop if they share one.

    groups: by number, with `GroupInfo.is_short`. steps: how many, or where that stands in the table of numbers.
    """

    groups: Sequence[tuple[int, bool]]
    steps: int = 1
    steps_place: int | None = None


def entry_function(name: str, loops: Sequence[GroupLoop]) -> str:
    """Return the kernel: each group in turn, by one thread or by the pool."""
    lines = [f"define i32 @{name}(ptr %args, ptr %dims, i32 %most, ptr %workspace) #0 {{", "entry:"]
    for number, loop in enumerate(loops):
        is_single = loop.steps == 1 and loop.steps_place is None
        lines += _groups(name, loop.groups, "0") if is_single else _steps(name, number, loop)
    return "\n".join([*lines, "  ret i32 0", "}", ""])


def _steps(name: str, number: int, loop: GroupLoop) -> list[str]:
    """Return the lines of a loop over groups; each is told the step."""
    step, count = f"%step{number}", str(loop.steps)
    lines: list[str] = []
    if loop.steps_place is not None:
        count = f"%count{number}"
        lines = [
            f"  {count}.at = getelementptr i64, ptr %dims, i64 {loop.steps_place}",
            f"  {count} = load i64, ptr {count}.at",
        ]
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
        *_groups(name, loop.groups, step),
        f"  br label %latch{number}",
        f"latch{number}:",
        f"  {step}.next = add i64 {step}, 1",
        f"  br label %head{number}",
        f"exit{number}:",
    ]


def _groups(name: str, groups: Sequence[tuple[int, bool]], step: str) -> list[str]:
    lines: list[str] = []
    for g, is_short in groups:
        given, flags = "ptr %args, ptr %dims, ptr %workspace", ALONE_IF_ASLEEP if is_short else 0
        lines += [
            f"  %pt{g} = getelementptr i64, ptr %dims, i64 {2 * g}",
            f"  %threads{g} = load i64, ptr %pt{g}",
            f"  %pk{g} = getelementptr i64, ptr %dims, i64 {2 * g + 1}",
            f"  %tasks{g} = load i64, ptr %pk{g}",
            f"  %alone{g} = icmp sle i64 %threads{g}, 1",
            f"  br i1 %alone{g}, label %one{g}, label %many{g}",
            f"one{g}:",
            f"  call void @{name}.{g}({given}, i64 0, i64 %tasks{g}, i64 0, i64 {step})",
            f"  br label %done{g}",
            f"many{g}:",
            f"  call void @{SHARE_OUT}(ptr @{name}.{g}, {given},",
            f"    i64 %tasks{g}, i64 %threads{g}, i64 {step}, i32 {flags})",
            f"  br label %done{g}",
            f"done{g}:",
        ]
    return lines
