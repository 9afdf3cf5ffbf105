"""Counts of the server, in the text that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kernelyard_llm.engine.engine import Engine
from kernelyard_serve.metrics import SECONDS, Histogram, resident_bytes

_PREFIX = "kernelyard_llm"
_HISTOGRAMS = {
    "first_token_seconds": "Time from a request to its first token.",
    "token_seconds": "Time from a token of a text to the next.",
    "request_seconds": "Time from a request to the end of its answer.",
}


class ServerCounts:
    """Answers by status, and how long they took."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self._seconds = {name: Histogram(SECONDS) for name in _HISTOGRAMS}

    def token(self, seconds: float, is_first: bool) -> None:
        """Take down a token: the time since the request, or since the token before."""
        self._seconds["first_token_seconds" if is_first else "token_seconds"].add(seconds)

    def count_answer(self, status: int, seconds: float) -> None:
        """Take down an answer."""
        self.answers[status] += 1
        self._seconds["request_seconds"].add(seconds)

    def text(self, engine: Engine, model: str) -> str:
        """Return everything in Prometheus' text format."""
        label = 'model="' + model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
        return "\n".join([*self._lines(engine, label), ""])

    def _lines(self, engine: Engine, label: str) -> Iterator[str]:
        yield from _head("answers_total", "counter", "Answers by status of HTTP.")
        for status, count in sorted(self.answers.items()):
            yield f'{_PREFIX}_answers_total{{{label},status="{status}"}} {count}'
        for name, summary in _HISTOGRAMS.items():
            yield from _head(name, "histogram", summary)
            yield from self._seconds[name].lines(f"{_PREFIX}_{name}", label)
        for name, value in vars(engine.counts).items():
            yield from _head(f"{name}_total", "counter", name.replace("_", " ").capitalize() + " of the engine.")
            yield f"{_PREFIX}_{name}_total{{{label}}} {value}"
        gauges = {
            "waiting": (engine.waiting, "Requests in the queue."),
            "running": (engine.running, "Requests in the batch."),
            "pages": (engine.pool.count, "Pages of the cache."),
            "pages_used": (engine.pool.used, "Pages of the cache that requests hold."),
            "resident_bytes": (resident_bytes(), "Memory of the process that is resident."),
        }
        for name, (value, summary) in gauges.items():
            yield from _head(name, "gauge", summary)
            yield f"{_PREFIX}_{name}{{{label}}} {value}"


def _head(name: str, kind: str, summary: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}_{name} {summary}", f"# TYPE {_PREFIX}_{name} {kind}"
