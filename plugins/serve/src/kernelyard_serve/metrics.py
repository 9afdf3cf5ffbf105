"""Count requests and calls, and write the text that Prometheus reads."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Count values up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Return the samples in Prometheus' text format."""
        total = 0
        for bound, count in zip([*map(repr, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum!r}"
        yield f"{name}_count{{{labels}}} {total}"


class ModelMetrics:
    """Count answers and calls of one version of a model."""

    def __init__(self, model: str, version: str) -> None:
        self.model, self.version = model, version
        self.labels = f'model="{_escape(model)}",version="{_escape(version)}"'
        self.answers: dict[tuple[str, int], int] = defaultdict(int)  # by protocol and status
        self.request_seconds, self.queue_seconds = Histogram(SECONDS), Histogram(SECONDS)
        self.call_seconds, self.call_rows = Histogram(SECONDS), Histogram(ROWS)

    def record_answer(self, protocol: str, status: int, seconds: float) -> None:
        """Record an answer: its status of HTTP, and how long it took from the request's arrival."""
        self.answers[protocol, status] += 1
        self.request_seconds.add(seconds)

    def record_call(self, waited: Sequence[float], rows: int, seconds: float) -> None:
        """Record a call: for how long each of its requests waited, its rows, and how long it took."""
        for each in waited:
            self.queue_seconds.add(each)
        self.call_rows.add(rows)
        self.call_seconds.add(seconds)


_HISTOGRAMS = {
    "request_seconds": "Time from the arrival of a request to its answer.",
    "queue_seconds": "Time that a request waited for its call.",
    "call_seconds": "Time of a call of the compiled model.",
    "call_rows": "Rows of a call, along the first axis.",
}


def text(models: Iterable[ModelMetrics], gauges: Mapping[str, Mapping[str, float]], refused: Mapping[int, int]) -> str:
    """Return everything in Prometheus' text format.

    gauges: by name, a value by labels. refused: answers that no model has a part in, by status.
    """
    models = list(models)
    lines = [*_head("answers_total", "counter", "Answers of models, by protocol and status of HTTP.")]
    for each in models:
        for (protocol, status), count in sorted(each.answers.items()):
            labels = f'{each.labels},protocol="{protocol}",status="{status}"'
            lines.append(f"kernelyard_answers_total{{{labels}}} {count}")
    lines += _head("refused_total", "counter", "Requests refused before a model was found, by status of HTTP.")
    lines += [f'kernelyard_refused_total{{status="{status}"}} {count}' for status, count in sorted(refused.items())]
    for name, summary in _HISTOGRAMS.items():
        lines += _head(name, "histogram", summary)
        for each in models:
            lines += getattr(each, name).lines(f"kernelyard_{name}", each.labels)
    for name, values in gauges.items():
        lines += _head(name, "gauge", name.replace("_", " ").capitalize() + ".")
        lines += [f"kernelyard_{name}{f'{{{labels}}}' if labels else ''} {value!r}" for labels, value in values.items()]
    return "\n".join([*lines, ""])


def resident_bytes() -> int:
    """Return the memory of the process that is resident; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _head(name: str, kind: str, summary: str) -> tuple[str, str]:
    return f"# HELP kernelyard_{name} {summary}", f"# TYPE kernelyard_{name} {kind}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
