"""What a core of this machine can do at most: multiply-adds in registers, and bytes read from memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from kernelyard_native_cpu.machine import host_machine

READ_BYTES = 256 << 20  # more than any cache here
FMA_ROUNDS = 2_000_000
CHAINS = 14  # independent sums: enough to hide the latency of an addition, few enough for 16 registers
REPEATS = 7


@dataclass(frozen=True)
class Peaks:
    """gflops: float32 multiply-adds, counted as two. gbytes: read from memory, in GB per second."""

    gflops: float
    gbytes: float


def _loop(name: str, body: list[str], results: list[str], vector: str) -> str:
    """A function `void name(ptr data, i64 count)` that carries one vector per result around a loop."""
    phis = [f"  %a{n} = phi {vector} [ zeroinitializer, %entry ], [ {r}, %loop ]" for n, r in enumerate(results)]
    total = [f"  %t{n} = fadd {vector} %t{n - 1}, {r}" for n, r in enumerate(results) if n]
    total[0] = total[0].replace("%t0", results[0])
    lines = [
        f"define void @{name}(ptr %data, i64 %count) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *body,
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %count",
        "  br i1 %more, label %loop, label %end",
        "end:",
        *total,
        f"  store volatile {vector} %t{len(results) - 1}, ptr %data, align 4",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _module(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    fma = (
        f"call {vector} @llvm.fma.v{lanes}f32({vector} %a{{n}}, {vector} splat (float 0.5), {vector} splat (float 1.0))"
    )
    multiply = [f"  %b{n} = {fma.format(n=n)}" for n in range(CHAINS)]
    read: list[str] = ["  %start = mul i64 %i, " + str(8 * lanes)]
    for n in range(8):
        read += [
            f"  %o{n} = add i64 %start, {n * lanes}",
            f"  %p{n} = getelementptr float, ptr %data, i64 %o{n}",
            f"  %l{n} = load {vector}, ptr %p{n}, align 4",
            f"  %b{n} = fadd {vector} %a{n}, %l{n}",
        ]
    parts = [
        _loop("multiply", multiply, [f"%b{n}" for n in range(CHAINS)], vector),
        _loop("read", read, [f"%b{n}" for n in range(8)], vector),
        f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
    ]
    return "\n".join(parts)


def _best(run: Callable[[int], None], threads: int) -> float:
    """The least seconds in which every thread is through; of one thread, those that the processor gave to it."""
    best = float("inf")
    clock = time.thread_time if threads == 1 else time.perf_counter
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            start = clock()
            if threads == 1:
                run(0)
            else:
                list(pool.map(run, range(threads)))
            best = min(best, clock() - start)
    return best


def measure_peaks(threads: int = 1) -> Peaks:
    """Measured now, with so many threads."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = host_machine()
    lanes = machine.vector_bits // 32
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=machine.cpu, features=machine.feature_string, opt=2, jit=True
    )
    jit = llvm.create_lljit_compiler(target)
    builder = llvm.JITLibraryBuilder().add_ir(_module(lanes)).export_symbol("multiply").export_symbol("read")
    library = builder.link(jit, "peaks")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    multiply, read = kind(library["multiply"]), kind(library["read"])
    data = np.zeros((threads, READ_BYTES // 4), np.float32)
    data[:] = 1.0
    steps = READ_BYTES // 4 // (8 * lanes)
    seconds_multiply = _best(lambda n: multiply(data[n].ctypes.data, FMA_ROUNDS), threads)
    seconds_read = _best(lambda n: read(data[n].ctypes.data, steps), threads)
    flops = threads * FMA_ROUNDS * CHAINS * lanes * 2
    return Peaks(flops / seconds_multiply / 1e9, threads * READ_BYTES / seconds_read / 1e9)
