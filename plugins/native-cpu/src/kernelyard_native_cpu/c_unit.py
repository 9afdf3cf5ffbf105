"""Write kernels behind the interface of `kernelyard.runtime.abi.native_unit`.

What `KernelInfo.evaluate` finds is found in C.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import C_FUNCTIONS, to_c
from kernelyard.runtime.api import ALIGNMENT, WRONG_CPU, NativeFunction, NativeUnit, SharedLibrary, Signature, c_name
from kernelyard_native_cpu.kernel_info import (
    NANOSECONDS_PER_THREAD,
    ConcurrentLoopsInfo,
    GroupInfo,
    KernelInfo,
    Variant,
    entry_symbol,
)
from kernelyard_native_cpu.machine import Machine

LIBRARIES = (SharedLibrary("libgomp.so.1", hint="apt install libgomp1"), SharedLibrary("libm.so.6"))
_ASSEMBLER_NAME = re.compile(r"[A-Za-z_.][A-Za-z0-9_.]*\Z")
# Features that all C compilers in use can ask the CPU for; the rest comes along with these.
_ASKED = (
    "avx",
    "avx2",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512vl",
    "bmi",
    "bmi2",
    "fma",
    "popcnt",
    "sse4.2",
)
# Source: the Linux kernel's documentation, "ARM64 ELF hwcaps", whose bits are those of <asm/hwcap.h>, and "Scalable
# Vector Extension support for AArch64 Linux".
_ASKED_OF_LINUX = {
    "bf16": "(getauxval(AT_HWCAP2) & (1UL << 14)) != 0",
    "dotprod": "(getauxval(AT_HWCAP) & (1UL << 20)) != 0",
    "fullfp16": "(getauxval(AT_HWCAP) & (1UL << 10)) != 0",
    "i8mm": "(getauxval(AT_HWCAP2) & (1UL << 13)) != 0",
    "sve256": "(prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == 256 / 8",
    "sve512": "(prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == 512 / 8",
}
_HEAD = f"""\
#include <stdint.h>
#include <stdlib.h>
{C_FUNCTIONS}
static int64_t ky_aligned(int64_t nbytes) {{
  return (ky_max(nbytes, 0) + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT};
}}
/* How many threads are worth waking for tasks that take `work` nanoseconds together, if each has `least` of them. */
static int64_t ky_threads(int64_t most, int64_t tasks, double work, int64_t least) {{
  return ky_max(1, ky_min(ky_min(most, tasks), (int64_t)(work / least)));
}}
"""
_FUNCTION = """\
extern int32_t {name}_kernel(void**, void*, int32_t, void*) __asm__("{entry}");
int32_t {name}_prepare(const void* const* constants, int32_t threads, void** shared) {{
  (void)constants; (void)threads;
  *shared = NULL;
  return ky_cpu_status();
}}
int32_t {name}_bind(void* shared, const int64_t* s, int32_t most, void** call, int64_t* workspace_nbytes) {{
  (void)shared; (void)s; (void)most;
  int64_t *numbers = malloc({count} * sizeof(int64_t)), *n = numbers, offset = 0, widest = 1, tasks, threads, size;
  (void)widest; (void)tasks; (void)threads; (void)size;
  if (!numbers) return 1;
{body}
  *call = numbers;
  *workspace_nbytes = offset;
  return 0;
}}
int32_t {name}_run(void** args, void* call, int32_t threads, void* workspace) {{
  return {name}_kernel(args, call, threads, workspace);
}}
void {name}_unbind(void* call) {{ free(call); }}
void {name}_release(void* shared) {{ (void)shared; }}
"""


def native_unit(kernels: Sequence[KernelInfo], objects: Sequence[bytes], machine: Machine) -> NativeUnit | None:
    """Return the kernels of these objects as a unit; None where a name cannot be written in assembler."""
    if not all(_ASSEMBLER_NAME.match(entry_symbol(kernel.symbol)) for kernel in kernels):
        return None
    functions = tuple(map(_native_function, kernels))
    texts = [_HEAD, _cpu_status(machine)]
    texts += [_text(kernel, function) for kernel, function in zip(kernels, functions, strict=True)]
    return NativeUnit("\n".join(texts), functions, LIBRARIES, tuple(objects))


def _native_function(kernel: KernelInfo) -> NativeFunction:
    count = len(kernel.params) - kernel.num_outputs
    signature = Signature(kernel.params[:count], kernel.params[count:])
    return NativeFunction(kernel.symbol, c_name(kernel.symbol), signature, sizes=_symbols(kernel))


def _symbols(kernel: KernelInfo) -> tuple[str, ...]:
    """Return every symbolic dim that the kernel's numbers depend on."""
    used: list[Dim] = [*kernel.numbers, *(local.nbytes for local in kernel.locals)]
    used += [points for points, _ in kernel.loops.work] if kernel.loops else []
    for group in kernel.groups:
        used += [points for points, _ in group.work]
        used += [dim for variant in group.variants for dim in (variant.tasks, variant.extent)]
    return tuple(sorted({name for dim in used for name in dims.symbols_of(dim)}))


def _cpu_status(machine: Machine) -> str:
    """Return the C function that asks the CPU for the features; on ARM it asks Linux."""
    if machine.architecture == "x86_64":
        has = [f'__builtin_cpu_supports("{feature}")' for feature in _ASKED if feature in machine.features]
    else:
        has = [_ASKED_OF_LINUX[feature] for feature in machine.features]
    include = "#include <sys/auxv.h>\n#include <sys/prctl.h>\n" if has and machine.architecture != "x86_64" else ""
    return f"{include}static int32_t ky_cpu_status(void) {{ return {' && '.join(has) or '1'} ? 0 : {WRONG_CPU}; }}\n"


def _text(kernel: KernelInfo, function: NativeFunction) -> str:
    names = {name: f"s[{number}]" for number, name in enumerate(function.sizes)}
    lines = [line for group in kernel.groups for line in _group(group, names)]
    for local in kernel.locals:
        lines.append(f"  *n++ = offset; *n++ = size = ky_aligned({to_c(local.nbytes, names)});")
        lines.append(f"  offset += size{' * widest' if local.per_thread else ''};")
    lines += _loops(kernel.loops, names) if kernel.loops else []
    lines += [f"  *n++ = {to_c(dim, names)};" for dim in kernel.numbers]
    entry = entry_symbol(kernel.symbol)
    return _FUNCTION.format(name=function.name, entry=entry, count=max(kernel.num_numbers, 1), body="\n".join(lines))


def _group(group: GroupInfo, names: Mapping[str, str]) -> list[str]:
    return [
        f"  tasks = ky_max({_tasks(group.variants, names)}, 0);",
        f"  threads = ky_threads(most, tasks, {_work(group.work, names)}, {group.nanoseconds_per_thread});",
        "  widest = ky_max(widest, threads);",
        "  *n++ = threads; *n++ = tasks;",
    ]


def _loops(loops: ConcurrentLoopsInfo, names: Mapping[str, str]) -> list[str]:
    in_turn = " || ".join(f"numbers[{2 * group}] > {loops.number}" for group in loops.groups)
    threads = f"ky_threads(most, {loops.number}, {_work(loops.work, names)}, {NANOSECONDS_PER_THREAD})"
    return [f"  *n++ = {in_turn} ? 1 : {threads};"]


def _work(work: Sequence[tuple[Dim, float]], names: Mapping[str, str]) -> str:
    return " + ".join(f"(double){to_c(points, names)} * {time!r}" for points, time in work) or "0.0"


def _tasks(variants: Sequence[Variant], names: Mapping[str, str]) -> str:
    if not variants:
        return "0"
    first, *rest = variants
    condition = f"{to_c(first.extent, names)} >= {first.least}"
    return f"({condition} ? {to_c(first.tasks, names)} : {_tasks(rest, names)})"
