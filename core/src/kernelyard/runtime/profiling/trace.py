"""Traces: profiles as events that https://ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.runtime.profiling.profile import Profile, StepTime, TimedCall

PROCESS = 1
Event = dict[str, Any]


def trace_events(
    profiles: Sequence[Profile],
    title: str = "kernelyard",
    roof: Mapping[str, float] | None = None,
    live_nbytes: Sequence[int] = (),
) -> list[Event]:
    """Return the events of profiles that were taken at the same time, each by a thread of its own.

    A thread has its calls, in these the steps, and in a library's step what the library did. Bytes and operations per
    second are counters. roof: `gflops` and `gbytes` that the machine does at most, with which steps are compared.
    live_nbytes: of the memory plan at each step, which becomes a counter.
    """
    begin = min((call.start for profile in profiles for call in profile.timeline), default=0.0)
    events = [_metadata_event("process_name", title)]
    for thread, profile in enumerate(profiles, start=1):
        events.append(_metadata_event("thread_name", f"caller {thread}", thread))
        facts = [_describe_step(profile, step, roof or {}) for step in profile.steps]
        for number, call in enumerate(profile.timeline):
            name = f"call {number + 1}"
            events.append(_slice(name, "call", thread, call.start - begin, call.seconds, {"steps": len(profile.steps)}))
            events += _steps_of(profile, call, facts, thread, begin)
    if profiles:
        events += _counters(profiles[0], live_nbytes, begin)
    return events


def _steps_of(
    profile: Profile, call: TimedCall, facts: Sequence[Mapping[str, Any]], thread: int, begin: float
) -> Iterator[Event]:
    for step, known, timed in zip(profile.steps, facts, call.steps, strict=True):
        start = timed.start - begin
        yield _slice(step.label or step.symbol, step.module, thread, start, timed.seconds, known)
        for part, seconds in zip(step.inside, timed.inside, strict=True):
            inside = {"does": part.label, "implementation": part.implementation}
            inside |= {"bytes": part.nbytes, "flops": part.flops, **_rates(part.nbytes, part.flops, seconds)}
            name = part.node or part.label
            yield _slice(name, f"{step.module} part", thread, start, min(seconds, timed.seconds), inside)
            start += seconds


def _describe_step(profile: Profile, step: StepTime, roof: Mapping[str, float]) -> dict[str, Any]:
    """Return what a click on a step shows; rates are those of its median time."""
    rates = _rates(step.nbytes, step.flops, step.seconds)
    near = max(
        (rates[name] / roof[name] for name in ("gflops", "gbytes") if rates.get(name) and name in roof), default=0
    )
    facts = {"function": step.symbol, "parts": list(step.parts), "bytes": step.nbytes, "flops": step.flops, **rates}
    facts |= {"median_us": step.seconds * 1e6, "share": profile.share(step)}
    return facts | ({"of_roof": near} if near else {})


def _rates(nbytes: int, flops: int | None, seconds: float) -> dict[str, float]:
    counts = {"gflops": flops, "gbytes": nbytes}
    return {name: count / seconds / 1e9 for name, count in counts.items() if count and seconds > 0}


def _counters(profile: Profile, live_nbytes: Sequence[int], begin: float) -> Iterator[Event]:
    for call in profile.timeline:
        for number, (step, timed) in enumerate(zip(profile.steps, call.steps, strict=True)):
            rates = _rates(step.nbytes, step.flops, timed.seconds)
            yield _counter("GFLOP/s", timed.start - begin, rates.get("gflops", 0.0))
            yield _counter("GB/s", timed.start - begin, rates.get("gbytes", 0.0))
            if number < len(live_nbytes):
                yield _counter("live bytes", timed.start - begin, live_nbytes[number])
        for name in ("GFLOP/s", "GB/s", *(["live bytes"] if live_nbytes else [])):
            yield _counter(name, call.start + call.seconds - begin, 0)


def _metadata_event(kind: str, name: str, thread: int = 0) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": thread, "name": kind, "args": {"name": name}}


def _counter(name: str, seconds: float, value: float) -> Event:
    return {"ph": "C", "pid": PROCESS, "name": name, "ts": seconds * 1e6, "args": {name: value}}


def _slice(name: str, category: str, thread: int, start: float, seconds: float, facts: Mapping[str, Any]) -> Event:
    place = {"ph": "X", "pid": PROCESS, "tid": thread, "name": name, "cat": category}
    return {**place, "ts": start * 1e6, "dur": seconds * 1e6, "args": dict(facts)}
