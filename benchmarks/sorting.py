"""Sorting, selection, running sums and what is made of them, beside NumPy and onnxruntime, in turns in one process.

    python benchmarks/sorting.py [--only TEXT] [--seconds 1] [--largest 10000000] [--json FILE]

One thread. `sort` gives values (np.sort, which has AVX-512, or AVX2), `argsort` places (np.argsort, stable),
`sort and argsort` both; NumPy's topk is an argpartition, and a sort of what that chose. `unique` gives first places,
inverse places and counts, too; `nonzero` reads numbers of which half are zero.
Times are the 10th percentile of a call.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from models import machine

import kernelyard as ky

OF_NUMPY = {"topk": 5.0}  # of all else 0.9
OF_ONNXRUNTIME = 1.5
DTYPES = {"float32": "float", "int64": "int64"}
VOCABULARY = 32_000
SIZES = 1_000, 10_000, 100_000, 1_000_000, 10_000_000
Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One operator over a tensor; k: of topk."""

    op: str
    shape: tuple[int, ...]
    axis: int
    dtype: str
    k: int = 0

    @property
    def label(self) -> str:
        """The case as it is printed."""
        of = f", k={self.k}" if self.op == "topk" else ""
        return f"{self.op} {self.dtype} {' x '.join(map(str, self.shape))}, axis {self.axis}{of}"

    def model(self) -> onnx.ModelProto:
        """The operator as a model of ONNX."""
        kind, shape = DTYPES[self.dtype], ", ".join(map(str, self.shape))
        if self.op == "cumsum":
            head, body = f"{kind}[{shape}] y", "y = CumSum(x, at)"
            start = f"<int64 at = {{{self.axis}}}>"
        elif self.op == "unique":
            head, body, start = f"{kind}[a] y, int64[a] i, int64[b] j, int64[a] n", "y, i, j, n = Unique (x)", ""
        elif self.op == "nonzero":
            head, body, start = "int64[r, a] y", "y = NonZero (x)", ""
        else:
            k = self.k or self.shape[self.axis]
            values, places = f"{kind}[a, b] y", "int64[a, b] i"
            outputs = {"argsort": places, "sort": values}.get(self.op, f"{values}, {places}")
            largest = int(self.op == "topk")
            head, body = outputs, f"y, i = TopK <axis = {self.axis}, largest = {largest}> (x, k)"
            start = f"<int64[1] k = {{{k}}}>"
        text = f'<ir_version: 8, opset_import: ["": 17]> net ({kind}[{shape}] x) => ({head}) {start} {{ {body} }}'
        return onnx.parser.parse_model(text)

    def numpy(self, x: np.ndarray) -> Call:
        """Return NumPy's form of the operator."""
        if self.op == "topk":
            return lambda: _numpy_topk(x, self.k, self.axis)
        if self.op == "unique":
            return lambda: np.unique(x, True, True, True)
        if self.op == "nonzero":
            return lambda: np.stack(np.nonzero(x))
        if self.op == "argsort":
            return lambda: np.argsort(x, self.axis, kind="stable")
        if self.op == "sort and argsort":
            return lambda: _numpy_sort_and_argsort(x, self.axis)
        return (lambda: np.sort(x, self.axis)) if self.op == "sort" else (lambda: np.cumsum(x, self.axis))


def _numpy_sort_and_argsort(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x, axis, kind="stable")
    return np.take_along_axis(x, order, axis), order


def _numpy_topk(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.take(np.argpartition(-x, k - 1, axis), np.arange(k), axis)
    values = np.take_along_axis(x, chosen, axis)
    order = np.argsort(-values, axis)
    return np.take_along_axis(values, order, axis), np.take_along_axis(chosen, order, axis)


@dataclass(frozen=True)
class Row:
    """A case with microseconds of a call."""

    case: Case
    kernelyard: float
    numpy: float
    onnxruntime: float

    @property
    def text(self) -> str:
        """The row as it is printed: times, and how many times faster than the others."""
        times = f"{self.kernelyard:10.1f} {self.numpy:10.1f} {self.onnxruntime:10.1f}"
        ratios = f"{self.numpy / self.kernelyard:8.2f} {self.onnxruntime / self.kernelyard:8.2f}"
        return f"{self.case.label:48} {times} {ratios}"

    @property
    def misses(self) -> list[str]:
        """The peers against which the case is below its target."""
        wanted = {"numpy": OF_NUMPY.get(self.case.op, 0.9), "onnxruntime": OF_ONNXRUNTIME}
        return [peer for peer, factor in wanted.items() if getattr(self, peer) / self.kernelyard < factor]


def read_rows(facts: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a file that `--json` wrote."""
    return [Row(Case(**{**row["case"], "shape": tuple(row["case"]["shape"])}), *_times(row)) for row in facts["rows"]]


def _times(row: Mapping[str, float]) -> tuple[float, float, float]:
    return row["kernelyard"], row["numpy"], row["onnxruntime"]


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: microseconds, and how many times faster than the others; in bold what misses."""
    yield "| operator | us | x NumPy | x onnxruntime |"
    yield "|---|---:|---:|---:|"
    for row in rows:
        ratios = {peer: f"{getattr(row, peer) / row.kernelyard:.2f}" for peer in ("numpy", "onnxruntime")}
        cells = " | ".join(f"**{ratio}**" if peer in row.misses else ratio for peer, ratio in ratios.items())
        yield f"| {row.case.label} | {row.kernelyard:.1f} | {cells} |"


def cases(largest: int) -> Iterator[Case]:
    """All cases up to so many elements."""
    sizes = [n for n in SIZES if n <= largest]
    for dtype in DTYPES:
        for k in (1, 10, 50, 1000):
            yield Case("topk", (1, VOCABULARY), 1, dtype, k)
        for n in sizes:
            for op in ("sort", "argsort", "sort and argsort", "cumsum"):
                yield Case(op, (1, n), 1, dtype)
        for axis in (0, 1):
            for op in ("sort", "cumsum"):
                yield Case(op, (1000, 1000), axis, dtype)
        if sizes[-1] == SIZES[-1]:
            yield Case("cumsum", (10_000, 1000), 0, dtype)
        for n in sizes[:-1]:
            for op in ("unique", "nonzero"):
                yield Case(op, (n,), 0, dtype)


def measure(case: Case, seconds: float) -> Row:
    """Call the three in turns."""
    rng = np.random.default_rng(0)
    x = (1e6 * rng.standard_normal(case.shape)).astype(case.dtype)
    if case.op == "nonzero":
        x *= rng.integers(0, 2, case.shape)
    model = case.model()
    program = ky.compile(model, backends=[])
    program.threads = 1
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": x}
    expected = map(np.asarray, session.run(None, feeds))
    for ours, theirs in zip(program.run(feeds).values(), expected, strict=True):
        # Running sums of float32, added one by one, are off by more than the sums of vectors.
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-3, atol=1e-3 * float(np.abs(theirs).max()))
    calls: Mapping[str, Call] = {
        "kernelyard": lambda: program.run(feeds),
        "numpy": case.numpy(x),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found["numpy"]) < 3:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return Row(case, **{name: 1e6 * float(np.percentile(times, 10)) for name, times in found.items()})


def main() -> None:
    """Measure the cases, and say which miss their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose label has this text")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{'microseconds':48} {'kernelyard':>10} {'numpy':>10} {'ort':>10} {'x numpy':>8} {'x ort':>8}")
    rows: list[Row] = []
    for case in cases(given.largest):
        if given.only in case.label:
            rows.append(measure(case, given.seconds))
            print(rows[-1].text, f"  below: {', '.join(rows[-1].misses)}" if rows[-1].misses else "", flush=True)
    if given.json:
        facts = {"machine": machine(), "rows": list(map(asdict, rows))}
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
