"""`kernelyard -v`: what takes time, said as it happens."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import click

from kernelyard.ir import IRModule
from kernelyard.runtime.installed.disk_cache import CACHE_LOOKUPS
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, PassContext, Sequential

LEAST_SECONDS = 0.001  # faster passes are summed up


class _PassLog(Instrument):
    """Prints each pass that took long or changed the module, when it is done."""

    def __init__(self) -> None:
        self._started: list[float] = []
        self.quick = 0
        self.seconds = 0.0

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        del self._started[depth:]  # what a failed pass left behind is deeper than we are
        self._started.append(time.perf_counter())

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        seconds = time.perf_counter() - self._started.pop()
        if isinstance(pass_, Sequential):
            return
        self.seconds += seconds
        if seconds < LEAST_SECONDS:
            self.quick += 1
            return
        changed = "" if after is before else "  changed the module"
        click.echo(f"{seconds * 1e3:9.1f} ms  {pass_.name}{changed}", err=True)


class _Echo(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)


@contextmanager
def verbose_log() -> Iterator[None]:
    """Print the passes, what the caches had, and what is logged, on stderr."""
    log, handler, passes = logging.getLogger("kernelyard"), _Echo(), _PassLog()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    start, before = time.perf_counter(), Counter(CACHE_LOOKUPS)
    try:
        with PassContext(instruments=[passes]):
            yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        if passes.seconds:
            click.echo(f"{passes.seconds * 1e3:9.1f} ms  in passes; {passes.quick} took less than 1 ms each", err=True)
        found = CACHE_LOOKUPS - before
        for name in sorted({name for name, _ in found}):
            click.echo(f"cache {name}: {found[name, True]} hits, {found[name, False]} misses", err=True)
        click.echo(f"{(time.perf_counter() - start) * 1e3:9.1f} ms  in all", err=True)
