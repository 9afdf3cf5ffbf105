"""The process that carries out cases: questions on stdin, verdicts on its first stdout, one JSON line each."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from kernelyard.plugins.sandbox.worker_process import private_streams
from kernelyard.testing.conformance.bench import Bench, Declined, Differs, NothingToRun
from kernelyard.testing.conformance.cases import Case, all_cases
from kernelyard.testing.conformance.claims import read_claims

OUTCOME_OF = {Declined: "declined", Differs: "differs", NothingToRun: "nothing"}


def examine(case: Case, bench: Bench) -> dict[str, Any]:
    """Run a case; return its outcome (passed, declined, differs, nothing, error), a message and seconds."""
    start = time.perf_counter()
    outcome, message = "passed", ""
    try:
        case.run(bench)
    except (Declined, Differs, NothingToRun) as found:
        outcome, message = OUTCOME_OF[type(found)], str(found)
    except BaseException as error:  # a plugin may raise anything, SystemExit included; that fails this case alone
        outcome, message = "error", f"{type(error).__name__}: {error}"
    return {"outcome": outcome, "message": message, "seconds": time.perf_counter() - start}


def main(backend: str, timeout: float, device: str = "") -> None:
    """Answer until stdin ends."""
    questions, answers = private_streams()
    cases, bench = all_cases(backend, read_claims(backend)), Bench(backend, timeout, device)
    for line in questions:
        print(json.dumps(examine(cases[json.loads(line)], bench)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:4])
