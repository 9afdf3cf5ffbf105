"""The LLVM text around generated loops: a group's share of a thread, the kernel's entry, and the module."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_native_cpu.machine import Machine


def thread_function(name: str) -> str:
    """What each thread of the pool runs: its share of a group's tasks."""
    return f"""define internal void @{name}.thread(ptr %context) #0 {{
  %args = load ptr, ptr %context
  %p1 = getelementptr ptr, ptr %context, i64 1
  %dims = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %context, i64 2
  %workspace = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %context, i64 3
  %tasks = load i64, ptr %p3
  %number = call i32 @omp_get_thread_num()
  %count = call i32 @omp_get_num_threads()
  %thread = zext i32 %number to i64
  %threads = zext i32 %count to i64
  %next = add i64 %thread, 1
  %low = mul i64 %tasks, %thread
  %high = mul i64 %tasks, %next
  %begin = udiv i64 %low, %threads
  %end = udiv i64 %high, %threads
  call void @{name}(ptr %args, ptr %dims, ptr %workspace, i64 %begin, i64 %end, i64 %thread)
  ret void
}}
"""


def entry_function(name: str, groups: int) -> str:
    """The kernel: each group in turn, by one thread or by the pool."""
    lines = [
        f"define i32 @{name}(ptr %args, ptr %dims, i32 %most, ptr %workspace) #0 {{",
        "entry:",
        "  %context = alloca [4 x ptr], align 8",
        "  store ptr %args, ptr %context",
        "  %c1 = getelementptr ptr, ptr %context, i64 1",
        "  store ptr %dims, ptr %c1",
        "  %c2 = getelementptr ptr, ptr %context, i64 2",
        "  store ptr %workspace, ptr %c2",
        "  %c3 = getelementptr ptr, ptr %context, i64 3",
    ]
    for g in range(groups):
        lines += [
            f"  %pt{g} = getelementptr i64, ptr %dims, i64 {2 * g}",
            f"  %threads{g} = load i64, ptr %pt{g}",
            f"  %pk{g} = getelementptr i64, ptr %dims, i64 {2 * g + 1}",
            f"  %tasks{g} = load i64, ptr %pk{g}",
            f"  %alone{g} = icmp sle i64 %threads{g}, 1",
            f"  br i1 %alone{g}, label %one{g}, label %many{g}",
            f"one{g}:",
            f"  call void @{name}.{g}(ptr %args, ptr %dims, ptr %workspace, i64 0, i64 %tasks{g}, i64 0)",
            f"  br label %done{g}",
            f"many{g}:",
            f"  store i64 %tasks{g}, ptr %c3",
            f"  %count{g} = trunc i64 %threads{g} to i32",
            f"  call void @GOMP_parallel(ptr @{name}.{g}.thread, ptr %context, i32 %count{g}, i32 0)",
            f"  br label %done{g}",
            f"done{g}:",
        ]
    return "\n".join([*lines, "  ret i32 0", "}", ""])


def module_text(functions: Sequence[str], declarations: set[str], machine: Machine, triple: str) -> str:
    """Functions and what they call as one LLVM module."""
    width = machine.vector_bits
    parts = [
        f'target triple = "{triple}"',
        *functions,
        *sorted(declarations),
        "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
        "declare i32 @omp_get_num_threads()",
        "declare i32 @omp_get_thread_num()",
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}',
        "attributes #1 = { nounwind willreturn memory(none) }",
        "!0 = !{}",
    ]
    return "\n".join(parts) + "\n"
