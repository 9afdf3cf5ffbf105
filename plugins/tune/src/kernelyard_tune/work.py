"""Work: what is measured, as bytes that workers check, and what comes of it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernelyard.driver.measured_placement import Tuning
from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.abi.spec import read_json
from kernelyard.runtime.placement_decision import PlacementDecision
from kernelyard_tune.errors import MeasuringError, PoolError, TuneError


@dataclass(frozen=True)
class Limits:
    """Limit what a measuring process may take: seconds as a whole, and MB of address space (0: no limit)."""

    seconds: float = 1800.0
    megabytes: int = 0


@dataclass(frozen=True)
class Work:
    """Describe a measurement: a model, and which of its candidates.

    model: the text of the imported module (`kernelyard.ir.to_text`). how: arguments of `compile`. share: (i, n) takes
    every n-th candidate from the i-th on, beside the default. names: of the candidates to take; None: by the share.
    """

    model: str
    how: Mapping[str, Any]
    tuning: Tuning
    share: tuple[int, int] = (0, 1)
    names: tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def is_part(self) -> bool:
        """True where other work measures the other candidates."""
        return self.share != (0, 1)

    def part(self, number: int, count: int) -> Work:
        """Return the work of one of several workers."""
        return replace(self, share=(number, count))

    def final(self, names: tuple[str, ...]) -> Work:
        """Return the work that compares the candidates that are left."""
        return replace(self, share=(0, 1), names=names)

    def to_bytes(self) -> bytes:
        """Return the work as JSON."""
        sizes = [dict(each) for each in self.tuning.sets_of_sizes]
        tuning = {"effort": self.tuning.effort, "threads": self.tuning.threads, "sizes": sizes}
        feeds = {name: base64.b64encode(_npy(value)).decode() for name, value in self.tuning.feeds.items()}
        limits = {"seconds": self.limits.seconds, "megabytes": self.limits.megabytes}
        chosen = {"share": list(self.share), "names": self.names}
        data = {
            "model": self.model,
            "how": dict(self.how),
            "tuning": tuning,
            "feeds": feeds,
            "limits": limits,
            **chosen,
        }
        return json.dumps(data).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Work:
        """Read what `to_bytes` made, whose digest is known to be right."""
        found = json.loads(data)
        feeds = {
            name: np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
            for name, text in found["feeds"].items()
        }
        tuning = Tuning(**found["tuning"], feeds=feeds, remember=False)
        names = None if found["names"] is None else tuple(found["names"])
        first, count = found["share"]
        return Work(found["model"], found["how"], tuning, (first, count), names, Limits(**found["limits"]))


def digest_of_work(data: bytes) -> str:
    """Return the SHA-256 of work, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_work(data: bytes, digest: str) -> None:
    """Raises: PoolError for work that is not what was sent."""
    if (found := digest_of_work(data)) != digest:
        raise PoolError("work is not what was sent: its digest differs", found=found, expected=digest)


def read_answer(answer: bytes, digest: str) -> PlacementDecision:
    """Return the decision that a worker answers with.

    Raises: PoolError for what is no answer to work of this digest; TuneError, MeasuringError that the worker met.
    """
    try:
        found = read_json(answer, "a worker's answer")
        if not isinstance(found, dict) or found.get("work") != digest:
            raise PoolError("a worker answers with something else", expected=f"an answer to the work {digest}")
        if "error" in found:
            raise _error_of(found["error"])
        return PlacementDecision.from_json(found.get("decision"))
    except ArtifactCorruptedError as error:
        raise PoolError(f"a worker's answer cannot be read: {error.message}", found=error.found) from error


def _error_of(facts: Mapping[str, Any]) -> TuneError:
    parts = {name: facts.get(name) for name in ("where", "found", "expected", "hint")}
    kind = MeasuringError if facts.get("code") == MeasuringError.code else TuneError
    return kind(str(facts.get("message")), **parts)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()
