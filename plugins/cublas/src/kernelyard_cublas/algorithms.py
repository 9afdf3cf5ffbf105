"""Algorithms: which one carries out a problem, chosen once and kept: in the process, and with the artifact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

from kernelyard.errors import NoImplementationError
from kernelyard.runtime.api import Fields, corrupted
from kernelyard_cublas._enums import ALGORITHM_NBYTES
from kernelyard_cublas.descriptors import WORKSPACE_LIMIT, Descriptors
from kernelyard_cublas.lt_api import Heuristic, LtApi, LtError, Run
from kernelyard_cublas.problem import Problem

MEASURED = 16  # how many of the library's proposals are tried where they are to be measured


@dataclass(frozen=True, order=True)
class Use:
    """The key of a chosen algorithm: a kind of device ("sm_90"), a version of the library, and a problem."""

    device: str
    library: int
    problem: str


@dataclass(frozen=True)
class Choice:
    """The algorithm, and whether it was the fastest of several."""

    heuristic: Heuristic
    tuned: bool


class Algorithms:
    """The choices of a module. Safe to use from many threads."""

    def __init__(self) -> None:
        self._choices: dict[Use, Choice] = {}
        self._lock = Lock()

    def choose(
        self,
        api: LtApi,
        device: str,
        problem: Problem,
        descriptors: Descriptors,
        measure: Callable[[Heuristic], float] | None,
    ) -> Heuristic:
        """Return the algorithm for a problem, chosen before or now.

        measure: gives the seconds that one takes; None to trust the library's first choice.
        Raises: NoImplementationError where the library has none.
        """
        use = Use(device, api.version, problem.key())
        with self._lock:
            choice = self._choices.get(use)
        if choice is not None and (choice.tuned or measure is None):
            checked = api.check(descriptors.matmul, descriptors.layouts, choice.heuristic.algorithm)
            if checked is not None:
                return checked
        found = _proposals(api, problem, descriptors, 1 if measure is None else MEASURED)
        best = found[0] if measure is None else min(found, key=measure)
        with self._lock:
            self._choices[use] = Choice(best, measure is not None)
        return best

    def to_json(self) -> list[dict[str, Any]]:
        """Return the choices as JSON data, in an order that does not depend on when they were made."""
        with self._lock:
            choices = sorted(self._choices.items(), key=lambda item: item[0])
        return [
            {
                **asdict(use),
                "algorithm": choice.heuristic.algorithm.hex(),
                "workspace": choice.heuristic.workspace,
                "tuned": choice.tuned,
            }
            for use, choice in choices
        ]

    @staticmethod
    def from_json(entries: Iterable[tuple[Any, str]]) -> Algorithms:
        """Return the choices that `to_json` wrote, checked; what they are worth here is asked of the library.

        Raises: ArtifactCorruptedError.
        """
        made = Algorithms()
        for value, where in entries:
            fields = Fields(value, where)
            use = Use(fields.text("device"), fields.integer("library"), fields.text("problem"))
            workspace = fields.integer("workspace", 0, WORKSPACE_LIMIT)
            made._choices[use] = Choice(Heuristic(_algorithm(fields), workspace), fields.any("tuned") is True)
        return made


def _algorithm(fields: Fields) -> bytes:
    text = fields.text("algorithm")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != ALGORITHM_NBYTES:
        raise corrupted(f"{fields.where}.algorithm", text, f"{ALGORITHM_NBYTES} bytes")
    return data


def _proposals(api: LtApi, problem: Problem, descriptors: Descriptors, count: int) -> list[Heuristic]:
    found = list(api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, count))
    if not found:
        raise NoImplementationError(
            "cuBLASLt has no algorithm for a matmul",
            found=problem.key(),
            hint='compile with exclude_patterns=[...] for the pattern that the report names, or without "cublas"',
        )
    return found


def make_timer(api: LtApi, prepare: Callable[[Heuristic], Run], stream: int) -> Callable[[Heuristic], float]:
    """Return a timer of algorithms: the seconds of one call; an algorithm that fails comes last."""

    def measure(heuristic: Heuristic) -> float:
        try:
            return api.seconds(prepare(heuristic), stream)
        except LtError:
            return math.inf

    return measure
