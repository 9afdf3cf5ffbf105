"""Main of a process that measures one piece of work: on given processors, within limits.

`python -m kernelyard_tune.measuring_process LIMITS`, the work on stdin, the answer on stdout. A model can crash what
runs it; this process is what it crashes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any


def main() -> None:
    """Measure, and write the answer."""
    _limit(json.loads(sys.argv[1]))
    from kernelyard.plugins.worker_process import private_streams

    questions, answers = private_streams()
    answer = json.dumps(_measured(questions.read().encode()))
    answers.write(answer)
    answers.flush()


def _limit(limits: dict[str, Any]) -> None:
    """Bind this process to its processors, and limit its memory and its time: should its parent die, it ends too."""
    os.sched_setaffinity(0, limits["processors"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits["megabytes"]:
        nbytes = limits["megabytes"] * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
    signal.setitimer(signal.ITIMER_REAL, limits["seconds"] + 1)  # its default action ends native code, too


def _measured(data: bytes) -> dict[str, Any]:
    from kernelyard.errors import KernelyardError
    from kernelyard_tune.errors import MeasuringError
    from kernelyard_tune.work import digest_of_work

    digest = digest_of_work(data)
    try:
        return {"work": digest, "decision": _decision(data)}
    except KernelyardError as error:
        return {"work": digest, "error": error.to_json()}
    except MemoryError:
        return {"work": digest, "error": MeasuringError("nothing was measured: it needs more memory").to_json()}


def _decision(data: bytes) -> dict[str, Any]:
    import kernelyard.ops  # noqa: F401  the vocabulary that the text is read with
    from kernelyard.driver.compile import request_to_tune
    from kernelyard.ir import parse_module
    from kernelyard_tune.candidates import shared, whole_candidates
    from kernelyard_tune.tuner import measured
    from kernelyard_tune.work import Work

    work = Work.from_bytes(data)
    request = request_to_tune(parse_module(work.model), work.tuning, **work.how)
    candidates = shared(whole_candidates(request.session), work.share, work.names)
    return measured(request, candidates, mixes=not work.is_part).decision.to_json()


if __name__ == "__main__":
    main()
