"""Measure the peaks of a core: multiply-adds in registers, and bytes read from memory."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from kernelyard_native_cpu.machine import host_machine

Timed = Callable[[], float]
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


@cache
def _functions() -> tuple[Callable[..., None], Callable[..., None], Any]:
    """`multiply(data, rounds)`, `read(data, steps)`, and what keeps their code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = host_machine()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=machine.cpu, features=machine.feature_string, opt=2, jit=True
    )
    jit = llvm.create_lljit_compiler(target)
    builder = llvm.JITLibraryBuilder().add_ir(_module(_lanes())).export_symbol("multiply").export_symbol("read")
    library = builder.link(jit, "peaks")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    return kind(library["multiply"]), kind(library["read"]), (jit, library)


def _lanes() -> int:
    return host_machine().vector_bits // 32


def _timed(run: Callable[[int], None], threads: int) -> Timed:
    """A call that gives the seconds in which every thread is through; of one thread, those that the processor gave."""
    if threads == 1:

        def alone() -> float:
            start = time.thread_time()
            run(0)
            return time.thread_time() - start

        return alone
    pool = ThreadPoolExecutor(threads)

    def together() -> float:
        start = time.perf_counter()
        list(pool.map(run, range(threads)))
        return time.perf_counter() - start

    return together


def reader(nbytes: float, threads: int = 1) -> Timed:
    """A call that gives the seconds that reading so many bytes takes, each thread its part of them."""
    step = 8 * _lanes()
    steps = max(1, math.ceil(nbytes / (4 * step * threads)))
    data = np.ones((threads, steps * step), np.float32)
    read = _functions()[1]
    return _timed(lambda n: read(data[n].ctypes.data, steps), threads)


def measure_peaks(threads: int = 1) -> Peaks:
    """Measured now, with so many threads."""
    data = np.zeros((threads, _lanes()), np.float32)
    multiply = _functions()[0]
    multiplying = _timed(lambda n: multiply(data[n].ctypes.data, FMA_ROUNDS), threads)
    reading = reader(threads * READ_BYTES, threads)
    flops = threads * FMA_ROUNDS * CHAINS * _lanes() * 2
    gflops = flops / min(multiplying() for _ in range(REPEATS)) / 1e9
    return Peaks(gflops, threads * READ_BYTES / min(reading() for _ in range(REPEATS)) / 1e9)
