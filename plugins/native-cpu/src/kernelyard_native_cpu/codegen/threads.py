"""Multi-threading of kernels as LLVM text: the threads of a pool share a group's tasks.

Each thread has a range of its own, and takes half of what is left of it, again and again; when nothing is left it goes
on with the others' ranges. So a thread finds in its cache what it worked on in the group before, and none waits long
for one that woke late or was held up.
"""

from __future__ import annotations

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

# What an entry function calls where tasks have threads.
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
