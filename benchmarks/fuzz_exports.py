"""Compile small random networks that torch's exporter wrote, and hold the results against torch and onnxruntime.

    python benchmarks/fuzz_exports.py [--minutes 10] [--seed 0] [--nets N] [--int8] [--output FOLDER] [--json FILE]

Networks have layers of odd sizes, groups, dilation, windows that round up, padding on one side, 1 to 3 axes, batches
that are left open, and of size 0. They run at default placement with one thread and with two. With --int8 onnxruntime's
quantizer writes them once more. A result is right where it is as near to torch in float64 as onnxruntime's, or within
rounding. Exits with 1 where something was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from peers.exported import Exported, exported

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard_debug.isolation import Announce, Failed, Finished, run_isolated
from kernelyard_fuzz.chooser import SeededChooser

TOLERANCE = 2e-4  # of the largest magnitude: float32 through a few layers
BEYOND = 4.0  # times as far from torch as onnxruntime is
STEPS = 3.0  # of 256: how far results of integers may be from onnxruntime's, which rounds in other places
SECONDS = 180
THREADS = (1, 2)
PEER = "onnxruntime"  # what a process is at


@dataclass(frozen=True)
class Verdict:
    """Record what came of a network.

    outcome: "agrees", "differs", "refused", "fails", "peer refuses", "peer dies" or "not written". message: why.
    """

    seed: int
    outcome: str
    message: str = ""
    layers: tuple[str, ...] = ()


def tried(seed: int, is_int8: bool, folder: Path | None, announce: Announce) -> Verdict:
    """Return what comes of the network of a seed."""
    warnings.simplefilter("ignore")
    net = exported(SeededChooser(seed), seed)
    if net is None:
        return Verdict(seed, "not written")
    try:
        model = _quantized(net, seed) if is_int8 else net.model
        if not _is_finite(model):
            return Verdict(seed, "peer refuses", "a scale of infinity, of a mask that it has seen", net.layers)
    except Exception as error:  # whatever it is, onnxruntime's quantizer does not take the network
        return Verdict(seed, "peer refuses", f"{type(error).__name__}: {error}"[:200], net.layers)
    outcome, message = _compared(model, net, is_int8, announce)
    if outcome not in ("agrees", "peer refuses") and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed_{seed}.onnx").write_bytes(model)
    return Verdict(seed, outcome, message, net.layers)


def _compared(model: bytes, net: Exported, is_int8: bool, announce: Announce) -> tuple[str, str]:
    judge = _steps if is_int8 else _error
    try:
        exe = ky.compile(onnx.load_from_string(model))
    except KernelyardError as error:
        return "refused", f"{error.code}: {error}"[:300]
    for feed, wanted in zip(net.feeds, net.outputs, strict=True):
        announce(PEER)
        theirs = _theirs(model, feed)
        announce("ours")
        if theirs is None and is_int8:
            return "peer refuses", "the integers"
        for threads in THREADS:
            exe.threads = threads
            ours = exe(feed).numpy()  # pyright: ignore[reportAttributeAccessIssue]
            message = judge(ours, theirs, wanted)
            if message:
                return "differs", f"batch {feed.shape[0]}, {threads} threads: {message}"
    return "agrees", ""


def _error(ours: np.ndarray, theirs: np.ndarray | None, wanted: np.ndarray) -> str:
    """Return how a result is wrong, by torch in float64; empty where it is right."""
    if theirs is not None and not ours.size and ours.shape == theirs.shape:
        return ""  # torch reshapes what has no elements in another way
    if ours.shape != wanted.shape:
        return f"shape {ours.shape} in place of {wanted.shape}"
    largest = np.abs(wanted).max(initial=0) + 1e-6
    error = np.abs(ours - wanted).max(initial=0) / largest
    other = (
        np.inf if theirs is None or theirs.shape != wanted.shape else np.abs(theirs - wanted).max(initial=0) / largest
    )
    if error <= TOLERANCE or error <= BEYOND * other < np.inf:
        return ""
    return f"{error:.3g} of the largest, onnxruntime {other:.3g}"


def _steps(ours: np.ndarray, theirs: np.ndarray | None, wanted: np.ndarray) -> str:
    """Return how a result of integers is wrong, by onnxruntime; empty where it is right."""
    assert theirs is not None
    if ours.shape != theirs.shape:
        return f"shape {ours.shape} in place of {theirs.shape}"
    if not ours.size:
        return ""
    step = (theirs.max() - theirs.min()) / 255 + 1e-6
    away = np.abs(ours.astype(np.float64) - theirs) / step
    if np.isnan(away).any() or (away > STEPS).mean() > 0.02 or away.max() > 10 * STEPS:
        return f"{(away > STEPS).mean():.1%} are more than {STEPS:g} steps off, at most {away.max():.3g}"
    return ""


# --- onnxruntime ------------------------------------------------------------------------------------------------------
def _theirs(model: bytes, feed: np.ndarray) -> np.ndarray | None:
    """Return what onnxruntime computes; None where it does not take the network: dilation beside "same", say."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"x": feed})[0])
    except Exception:  # whatever it raises, torch judges alone
        return None


def _is_finite(model: bytes) -> bool:
    """Return True where all parameters of the model are finite."""
    found = map(onnx.numpy_helper.to_array, onnx.load_from_string(model).graph.initializer)
    return all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in found)


class _Feeds(CalibrationDataReader):
    """Feeds that a quantizer looks at."""

    def __init__(self, feeds: Sequence[np.ndarray]) -> None:
        self._left = [feed for feed in feeds if feed.size]

    def get_next(self) -> dict[str, np.ndarray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next feed; empty at the end."""
        return {"x": self._left.pop()} if self._left else {}


def _quantized(net: Exported, seed: int) -> bytes:
    """Return the network as onnxruntime's quantizer writes it, in one of its forms."""
    chooser = SeededChooser(seed + 1)
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        before.write_bytes(net.model)
        quantize_static(
            before,
            after,
            _Feeds(net.feeds),
            quant_format=QuantFormat.QDQ if chooser.chance(70) else QuantFormat.QOperator,
            activation_type=chooser.pick((QuantType.QUInt8, QuantType.QInt8)),
            weight_type=chooser.pick((QuantType.QInt8, QuantType.QUInt8)),
            per_channel=chooser.chance(50),
            reduce_range=chooser.chance(50),
        )
        return after.read_bytes()


def main() -> None:
    """Read the command line, and try networks until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--nets", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--int8", action="store_true", help="quantized by onnxruntime")
    parser.add_argument("--output", type=Path, help="folder for the models that differ")
    parser.add_argument("--json", type=Path, help="file for the result")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    finds: list[Verdict] = []
    deadline, seed = time.monotonic() + 60 * given.minutes, given.seed
    while time.monotonic() < deadline and seed < given.seed + given.nets:
        verdict = _isolated(seed, lambda announce, seed=seed: tried(seed, given.int8, given.output, announce))
        counts[verdict.outcome] += 1
        if verdict.outcome in ("differs", "refused", "fails"):
            finds.append(verdict)
            print(f"seed {seed}: {verdict.outcome}: {verdict.message}\n    {'; '.join(verdict.layers)}", flush=True)
        seed += 1
        if given.json:
            facts = {"nets": seed - given.seed, "counts": counts, "finds": [asdict(find) for find in finds]}
            given.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    print(f"{seed - given.seed} networks: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}")
    sys.exit(1 if finds else 0)


def _isolated(seed: int, work: Callable[[Announce], Verdict]) -> Verdict:
    """Try a network in a process of its own, which may die."""
    verdict = run_isolated(work, SECONDS)
    if isinstance(verdict, Finished):
        return verdict.value
    if isinstance(verdict, Failed):
        return Verdict(seed, "fails", str(verdict.facts)[:300])
    outcome = "peer dies" if verdict.stage == PEER else "fails"
    return Verdict(seed, outcome, f"{verdict.reason} {verdict.last_words}"[:300])


if __name__ == "__main__":
    main()
