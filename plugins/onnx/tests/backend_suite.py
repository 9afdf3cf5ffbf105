"""ONNX's own tests of engines, run through `kernelyard_onnx.backend`, and the page that lists what fails.

    python plugins/onnx/tests/backend_suite.py          run all, and compare with docs/onnx-coverage.md
    python plugins/onnx/tests/backend_suite.py --write  run all, and write that page
    python plugins/onnx/tests/backend_suite.py --listed run those that the page lists, and compare or --write as well
    python plugins/onnx/tests/backend_suite.py -k conv  run those with a name that contains "conv", and print what fails

Tests run in a copy of this process, which has made them: one that crashes, or hangs, fails, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "onnx-coverage.md"
CATEGORIES = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")
CONFIGURATIONS = {"auto": "auto", "none": ""}  # backends: all that there are; none but the code generator
TEST_SECONDS = 120
MAX_REASON = 160
# Why numbers differ, where that is as it should be: the test (a pattern), and what the page says of it.
NOTES = {
    r"bernoulli|training_dropout": "the expected random numbers are those of NumPy's generator",
    r"dft_inverse": "the expected zeros carry 2e-7 of rounding, ours 6e-15",
    r"downsample_scales_\w+_align_corners": "positions follow from the sizes, as in onnxruntime",
    r"causal_fp16": "two float16 numbers differ by one unit in the last place or two",
    r"loop16_seq_none": "the runner cannot compare scalars in a sequence",
    r"fullymasked|nan_robustness|structural_empty|gqa_rank4_mask": "oneDNN's largest of -inf alone is no -inf",
}


Tests = Mapping[str, tuple[str, unittest.TestCase]]  # by name: its category, and what runs it


@dataclass(frozen=True)
class Result:
    """How one test went: `reason` is empty where it passed."""

    category: str
    name: str
    reason: str
    seconds: float


def all_tests() -> Tests:
    """Every test for the processor. ONNX computes what is expected, which takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test import BackendTest

        from kernelyard_onnx.backend import KernelyardBackend

        cases = BackendTest(KernelyardBackend, __name__).test_cases
    return {
        f"{category}.{name.removesuffix('_cpu')}": (category, case(name))
        for category in CATEGORIES
        for case in [cases[f"OnnxBackend{category}Test"]]
        for name in sorted(vars(case))
        if name.endswith("_cpu")
    }


def run_here(tests: Tests, names: Sequence[str], out: Path) -> None:
    """Run tests one after the other; a line of JSON before and after each."""
    with out.open("a", encoding="utf-8", buffering=1) as file:
        for name in names:
            file.write(json.dumps({"begins": name}) + "\n")
            result, began = unittest.TestResult(), time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tests[name][1].run(result)
            problems = [text for _, text in (*result.errors, *result.failures)]
            reason = reason_of(problems[0]) if problems else "skipped" if result.skipped else ""
            file.write(json.dumps({"ends": name, "reason": reason, "seconds": time.perf_counter() - began}) + "\n")


def reason_of(trace: str) -> str:
    """One line that says why a test failed, without what differs from run to run."""
    lines = trace.rstrip().splitlines()
    at = max(
        (i for i, line in enumerate(lines) if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Warning)?:", line)), default=-1
    )
    text = " ".join(" ".join(line.split()) for line in lines[at:])
    if text.startswith("AssertionError"):
        what = re.search(
            r"Output \d+ has incorrect shape|Not equal to tolerance|Arrays are not equal|Items are not equal", text
        )
        return f"AssertionError: {what.group(0) if what else text[16:]}"[:MAX_REASON]
    listed = re.search(r"not supported: .* where: (.+?): node ", text)
    if listed:
        return f"refused: {listed.group(1)}"[:MAX_REASON]
    text = re.sub(r"0x[0-9a-f]+", "", text).replace("|", "/")
    kind, _, message = text.partition(": ")
    return f"{kind.rpartition('.')[2]}: {message}"[:MAX_REASON]


def run_apart(tests: Tests, names: Sequence[str], backends: str) -> dict[str, Result]:
    """Run tests in processes of their own, a new one after each crash or hang."""
    found: dict[str, Result] = {}
    waiting = list(names)
    with tempfile.TemporaryDirectory() as folder:
        while waiting:
            out = Path(folder, "results")
            out.write_text("")
            ended = _run_child(tests, waiting, out, backends)
            began = ""
            for line in out.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                began = entry.get("begins", began)
                if "ends" in entry:
                    found[began] = Result(began.partition(".")[0], began, entry["reason"], entry["seconds"])
            if began and began not in found:
                found[began] = Result(began.partition(".")[0], began, f"the process ended: {ended}", 0.0)
            left = [name for name in waiting if name not in found]
            if len(left) == len(waiting):
                raise RuntimeError(f"the tests do not start: {ended}")
            waiting = left
    return found


def _run_child(tests: Tests, names: Sequence[str], out: Path, backends: str) -> str:
    """How a child that runs tests ended; it is ended when it writes nothing for too long."""
    errors = out.with_name("errors")
    child = multiprocessing.get_context("fork").Process(target=_be_child, args=(tests, names, out, errors, backends))
    child.start()
    size, since = 0, time.monotonic()
    while child.exitcode is None:
        child.join(0.2)
        if out.stat().st_size != size:
            size, since = out.stat().st_size, time.monotonic()
        elif time.monotonic() - since > TEST_SECONDS:
            child.kill()
            child.join()
            return "it took too long"
    return f"exit code {child.exitcode}: {errors.read_text(encoding='utf-8', errors='replace')[-500:]}"


def _be_child(tests: Tests, names: Sequence[str], out: Path, errors: Path, backends: str) -> None:
    os.environ["KERNELYARD_ONNX_BACKENDS"] = backends
    with open(os.devnull, "wb") as nothing, errors.open("wb") as file:
        os.dup2(nothing.fileno(), 1)
        os.dup2(file.fileno(), 2)
    run_here(tests, names, out)


def page(results: dict[str, dict[str, Result]]) -> str:
    """The page: totals, then each failure with its reason."""
    import onnx

    lines = [
        "# ONNX's own tests",
        "",
        f"The tests for engines that onnx {onnx.__version__} ships, run through `kernelyard_onnx.backend` by ONNX's own",
        "runner, none left out: with all backends (*auto*), and with none but the code generator (*none*).",
        "`make test-onnx` runs them and compares with this page; it is written by",
        "`python plugins/onnx/tests/backend_suite.py --write`.",
        "",
        "| tests | count | pass (auto) | pass (none) |",
        "|---|---:|---:|---:|",
    ]
    names = list(results["auto"])
    for category in (*CATEGORIES, "all"):
        of = [name for name in names if category in ("all", name.partition(".")[0])]
        passed = [sum(not each[name].reason for name in of) for each in results.values()]
        lines.append(f"| {category} | {len(of)} | {passed[0]} | {passed[1]} |")
    lines += ["", "## What fails", "", "| test | backends | reason |", "|---|---|---|"]
    for name in names:
        note = "".join(f"; {text}" for pattern, text in NOTES.items() if re.search(pattern, name))
        reasons = {which: each[name].reason + note for which, each in results.items() if each[name].reason}
        if len(set(reasons.values())) == 1 and len(reasons) == len(results):
            lines.append(f"| {name} | both | {next(iter(reasons.values()))} |")
        else:
            lines += [f"| {name} | {which} | {reason} |" for which, reason in reasons.items()]
    return "\n".join(lines) + "\n"


def listed_tests() -> set[str]:
    """The tests that the page says fail."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return set(re.findall(r"^\| (\w+\.\w+) \|", text, re.MULTILINE))


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 when the page is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("-k", dest="part", default="")
    parser.add_argument("-b", dest="which", choices=[*CONFIGURATIONS], default="")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # of libraries, which are loaded from now on
    tests = all_tests()
    every = [name for name in tests if re.search(given.part, name)]
    listed = listed_tests()
    names = [name for name in every if name in listed] if given.listed else every
    results: dict[str, dict[str, Result]] = {}
    for which, backends in CONFIGURATIONS.items():
        if given.which in ("", which):
            began = time.monotonic()
            found = run_apart(tests, names, backends)
            results[which] = {name: found.get(name) or Result(name.partition(".")[0], name, "", 0.0) for name in every}
            passed = sum(not each.reason for each in found.values())
            print(f"{which}: {passed} of {len(names)} pass, {time.monotonic() - began:.0f} s", flush=True)
    if given.part or given.which:
        for which, each in results.items():
            print(*(f"{which} {r.name}: {r.reason}" for r in each.values() if r.reason), sep="\n")
        return 0
    text = page(results)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    same = text == PAGE.read_text(encoding="utf-8")
    print("docs/onnx-coverage.md is up to date" if same else f"docs/onnx-coverage.md differs from\n{text}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
