"""Main of a process that measures, a question on each line of stdin, an answer on each of stdout.

Each piece of work is measured in a child of its own, on given processors, within a limit of memory. A child begins with
everything imported and the plugins active, which takes a new process more than a second of a processor. A model can
crash what runs it; the child is what it crashes, and this process ends as the child did.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from kernelyard.plugins.sandbox.worker_process import leave_no_core_file, private_streams

PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Answer questions: the processors, the limit of memory, and the work."""
    leave_no_core_file()
    questions, answers = private_streams()
    _prepare()
    for line in questions:
        child = os.fork()
        if child == 0:
            _answer(json.loads(line), answers)
        if status := _status(child, questions):
            _end_with(status)


def _prepare() -> None:
    """Import what every measurement needs, and activate the plugins."""
    import kernelyard.ops  # noqa: F401  the vocabulary that the text is read with
    import kernelyard_tune.tuner  # noqa: F401
    from kernelyard.driver.compile import request_to_tune
    from kernelyard.driver.measured_placement import Tuning
    from kernelyard.ir import FunctionBuilder, IRModule

    b = FunctionBuilder()
    request_to_tune(IRModule({"main": b.function(b.op("abs", b.input("x", (1,))))}), Tuning())


def _answer(question: dict[str, Any], answers: TextIO) -> NoReturn:
    """Measure in this process, a child, and end it."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it must not outlive its parent
        os.sched_setaffinity(0, question["processors"])
        answers.write(json.dumps(_measure(question["work"].encode(), question["megabytes"])) + "\n")
        answers.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _status(child: int, questions: TextIO) -> int:
    """Wait for the end of a child, which comes at once where nobody waits for the answer; return its status."""
    handle = os.pidfd_open(child)
    events = select.poll()
    events.register(handle, select.POLLIN)
    events.register(questions, 0)  # of this pipe, that its other end is closed
    if handle not in dict(events.poll()):
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _end_with(status: int) -> NoReturn:
    """End as the child did."""
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _measure(data: bytes, megabytes: int) -> dict[str, Any]:
    from kernelyard.errors import KernelyardError
    from kernelyard_tune.errors import MeasuringError
    from kernelyard_tune.work import digest_of_work

    digest = digest_of_work(data)
    try:
        if megabytes:
            _limit_memory(megabytes * 1_000_000)
        return {"work": digest, "decision": _decision(data)}
    except KernelyardError as error:
        return {"work": digest, "error": error.to_json()}
    except MemoryError:
        return {"work": digest, "error": MeasuringError("nothing was measured: it needs more memory").to_json()}


def _limit_memory(nbytes: int) -> None:
    """Limit this process's address space. Raises: MemoryError where it has more already.

    Without memory for its first step, a thread never says that it has begun, and who starts it waits for that.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    if pages * resource.getpagesize() > nbytes:
        raise MemoryError
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def _decision(data: bytes) -> dict[str, Any]:
    from kernelyard.driver.compile import request_to_tune
    from kernelyard.ir import parse_module
    from kernelyard_tune.candidates import select_share, whole_candidates
    from kernelyard_tune.tuner import measure_candidates
    from kernelyard_tune.work import Work

    work = Work.from_bytes(data)
    request = request_to_tune(parse_module(work.model), work.tuning, **work.how)
    candidates = select_share(whole_candidates(request.session), work.share, work.names)
    return measure_candidates(request, candidates, mixes=not work.is_part).decision.to_json()
