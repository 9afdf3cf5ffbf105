"""Accuracy against speed of the quantization schemes, on networks with trained weights.

    python benchmarks/quantization.py [--rounds 15] [--page docs/quantizing.md] [--picture docs/images/quantizing.png]

Each network is quantized by `kernelyard.quantize` with each scheme and run on one thread beside its float32, in turns;
onnxruntime runs the same saved files. Times are the least of all rounds. The error is that of the worst
result on feeds that calibration has not seen: root mean square difference over root mean square.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from recipes.pretrained import SENTENCES, efficientnet, minilm, photographs, tokens

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "read_page"))

from ocr import PageReader, model_paths
from page import draw_page

import kernelyard as ky

SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "static": {"scheme": "static"},
    "static, percentile": {"scheme": "static", "observer": "percentile"},
    "static, max_error 0.12": {"scheme": "static", "max_error": 0.12},
    "dynamic": {"scheme": "dynamic"},
    "int8_weights": {"scheme": "int8_weights"},
    "int4_weights": {"scheme": "int4_weights"},
}
MARK = "<!-- measured -->"
CALIBRATION = (
    *("the dog is in the house", "she was a very good person and a great friend"),
    *("it is cold today and the sun is not out", "the new computer can read all of these files"),
    *("we went to the city to see a film", "the president of the company said that sales were down"),
    *("a cat and a dog are happy together", "music is a way of life for many people"),
)

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A model file, feeds to calibrate with, and one to measure on."""

    name: str
    path: Path
    calibration: list[Feed]
    feed: Feed


@dataclass(frozen=True)
class Row:
    """One network in one scheme. faster: than our float32; peer: onnxruntime's time on the same file over ours."""

    network: str
    scheme: str
    error: float
    kept: int
    layers: int
    bytes: float
    faster: float
    peer: float


def networks(folder: Path) -> list[Network]:
    """Return the networks: a page's detector and recogniser, a sentence encoder, an image classifier."""
    seen = _page_feeds()
    found = [Network(f"ppocr_{name}", path, *seen[name]) for name, path in model_paths().items() if name in seen]
    images = photographs()
    for name, model, calibration, feed in (
        ("minilm", minilm(), [tokens(CALIBRATION[n : n + 4]) for n in (0, 4)], tokens(SENTENCES)),
        ("efficientnet_lite0", efficientnet(), [{"image": each} for each in images[1::2]], {"image": images[0]}),
    ):
        onnx.save(model, folder / f"{name}.onnx")
        found.append(Network(name, folder / f"{name}.onnx", calibration, feed))
    return found


def _page_feeds() -> Mapping[str, tuple[list[Feed], Feed]]:
    """Return what detector and recogniser are fed: calibration on a smaller page, and one feed of the page itself."""
    exes = {name: ky.compile(path) for name, path in model_paths().items()}
    seen: dict[str, list[Feed]] = {name: [] for name in exes}

    def network(name: str) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
        def run(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            seen[name].append({key: np.array(array) for key, array in feeds.items()})
            return [np.asarray(tensor) for tensor in exes[name].run(feeds).values()]

        return run

    reader = PageReader(**{name: network(name) for name in exes}, characters=exes["recogniser"].metadata["character"])
    page, calibration = draw_page(), {}
    reader.read(page.resize((page.width * 9 // 10, page.height * 9 // 10)))
    for name in ("detector", "recogniser"):
        calibration[name] = seen[name][:4]
        seen[name].clear()
    reader.read(page)
    return {name: (feeds, seen[name][0]) for name, feeds in calibration.items()}


def measured(network: Network, rounds: int, folder: Path) -> list[Row]:
    """Return a row for each scheme; all of them, float32 and onnxruntime take turns in each round."""
    exact = ky.compile(network.path)
    reports: dict[str, Any] = {}
    calls: dict[str, Callable[[], object]] = {"float32": lambda: exact.run(network.feed)}
    results: dict[str, Mapping[str, np.ndarray]] = {}
    exact.threads = 1
    for name, arguments in SCHEMES.items():
        quantized = ky.quantize(network.path, network.calibration, measure="max_error" in arguments, **arguments)
        quantized.save(folder / "quantized.onnx")
        exe, peer = ky.compile(quantized), _session(folder / "quantized.onnx")
        exe.threads = 1
        reports[name] = quantized.quantization
        results[name] = {key: tensor.numpy() for key, tensor in exe.run(network.feed).items()}
        calls[name] = lambda exe=exe: exe.run(network.feed)
        calls[f"onnxruntime, {name}"] = lambda peer=peer: peer.run(None, network.feed)
    best = _least_times(calls, rounds)
    reference = {key: tensor.numpy() for key, tensor in exact.run(network.feed).items()}
    return [
        Row(
            network.name,
            name,
            _error(results[name], reference),
            len(report.kept),
            len(report.kept) + len(report.quantized),
            report.weight_bytes[1] / report.weight_bytes[0],
            best["float32"] / best[name],
            best[f"onnxruntime, {name}"] / best[name],
        )
        for name, report in reports.items()
    ]


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _least_times(calls: Mapping[str, Callable[[], object]], rounds: int) -> Mapping[str, float]:
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def _error(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    return max(float(np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name])) for name in theirs)


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown, under the machine and the date."""
    where = f"One thread of {platform.machine()}, {os.cpu_count()} processors, beside other work"
    lines = [f"{where}; {datetime.now(UTC):%Y-%m-%d}; Kernelyard {ky.__version__}.", ""]
    lines += ["| network | scheme | error | layers in float32 | weights | over float32 | over onnxruntime |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        kept, numbers = f"{row.kept} of {row.layers}", f"{row.faster:.2f}x | {row.peer:.2f}x"
        lines.append(f"| {row.network} | {row.scheme} | {row.error:.1e} | {kept} | {row.bytes:.0%} | {numbers} |")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Draw error against speed: a panel for each network, a point for each scheme."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.network for row in rows))
    figure, panels = pyplot.subplots(1, len(names), figsize=(3.6 * len(names), 3.8), layout="constrained")
    for panel, name in zip(np.atleast_1d(panels), names, strict=True):
        for number, row in enumerate(row for row in rows if row.network == name):
            panel.scatter(row.faster, row.error, s=60, color=f"C{number}", label=row.scheme, zorder=3)
        panel.axvline(1, color="0.6", linewidth=1)
        panel.set(title=name, yscale="log", xlabel="times as fast as float32")
        panel.grid(alpha=0.3)
    np.atleast_1d(panels)[0].set_ylabel("error of the worst result")
    handles, labels = np.atleast_1d(panels)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print the table, and write page and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--picture", type=Path, help="draw error against speed")
    parser.add_argument("--only", nargs="*", help="names of networks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in networks(Path(folder)) if not options.only or each.name in options.only]
        rows = [row for each in chosen for row in measured(each, options.rounds, Path(folder))]
    print(table(rows))
    if options.page:
        head, mark, _ = options.page.read_text(encoding="utf-8").partition(MARK)
        options.page.write_text(f"{head}{mark}\n\n{table(rows)}\n", encoding="utf-8")
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
