"""PlacementDecision: a measured placement as data, which a compile applies, and which is saved with the artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from kernelyard.records import record
from kernelyard.runtime.abi.spec import Fields, corrupted, is_int
from kernelyard.runtime.text_table import aligned, fold

SCHEMA = 1
MAX_SECONDS = 1e9

# How a decision says who gets what backends accept; `kernelyard.placement.policy` has the policies.
LEAST_COST, TAKE_ALL, ASSIGNED = "least-cost", "take-all", "assigned"
POLICIES = (LEAST_COST, TAKE_ALL, ASSIGNED)

# Facts of a run, which a compile cannot know: they tell decisions apart and hinder none from being applied.
OF_RUNS = ("threads", "sizes", "effort")
BACKEND = "backend "  # the fact "backend NAME" is what is installed of it


@record
class Timing:
    """A placement that was measured: the median seconds of a call, and its ratio to the chosen one's, in turns with it.

    An exact tie is 1; 1.25 takes a quarter longer.
    """

    name: str
    seconds: float
    ratio: float


@record
class PlacementDecision:
    """Which backends run what, and the measurements that say so.

    name: of the chosen candidate. backends: in the order in which they are offered the model. policy: one of
    `POLICIES`. assigned: for "assigned", the backend of each operator by `node_key`; what is not named is generated.
    timings: all candidates, the chosen one first, then from quick to slow. facts: the model, machine, packages, threads
    and sizes that it holds for.

    Example:
        >>> decision = PlacementDecision("default", ("dnnl",), timings=(Timing("default", 1e-3, 1.0),))
        >>> PlacementDecision.from_json(decision.to_json()) == decision
        True
    """

    name: str
    backends: tuple[str, ...]
    policy: str = TAKE_ALL
    assigned: Mapping[str, str] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A digest of the facts: what the decision is remembered by."""
        return digest_of(self.facts)

    @property
    def runner_up(self) -> Timing | None:
        """The quickest of the others, None where there is no other."""
        return min(self.timings[1:], key=lambda timing: timing.ratio, default=None)

    @property
    def margin(self) -> float:
        """How much longer the runner-up takes, as a part of the chosen one's time; negative inside the noise."""
        return self.runner_up.ratio - 1 if self.runner_up is not None else 0.0

    def misfits(self, facts: Mapping[str, str]) -> tuple[str, ...]:
        """Return what hinders the decision from being applied where these facts hold, in words.

        Packages of backends that it does not use do not matter.
        """
        unused = {name for name in self.facts if name.startswith(BACKEND) and name[len(BACKEND) :] not in self.backends}
        checked = [name for name in self.facts if name not in OF_RUNS and name not in unused]
        return tuple(
            f"{name}: {facts.get(name, 'none')}, measured with {self.facts[name]}"
            for name in checked
            if facts.get(name) != self.facts[name]
        )

    @property
    def summary(self) -> str:
        """One line: what was chosen, its time, and by how much."""
        if not self.timings:
            return f"placement: {self.name}"
        chosen, second = self.timings[0], self.runner_up
        line = f"placement: {self.name}, measured {amount_of_time(chosen.seconds)} a call"
        if second is None:
            return line
        return f"{line}; runner-up {second.name} {amount_of_time(second.seconds)} ({100 * self.margin:+.1f} %)"

    def lines(self, width: int | None = None) -> list[str]:
        """Return the summary, and a table of all that was measured."""
        rows = [("candidate", "a call", "to the chosen")]
        rows += [(each.name, amount_of_time(each.seconds), f"{each.ratio:.3f}") for each in self.timings]
        return [*fold(self.summary, width), *(aligned(rows, width) if self.timings else [])]

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON data; `from_json` reads it back."""
        timings = [{"name": each.name, "seconds": each.seconds, "ratio": each.ratio} for each in self.timings]
        return {
            "name": self.name,
            "backends": list(self.backends),
            "policy": self.policy,
            "assigned": dict(sorted(self.assigned.items())),
            "timings": timings,
            "facts": dict(sorted(self.facts.items())),
        }

    @staticmethod
    def from_json(value: Any) -> PlacementDecision:
        """Read a decision, checking everything. Raises: ArtifactCorruptedError."""
        fields = Fields(value, "placement")
        policy = fields.text("policy")
        if policy not in POLICIES:
            raise corrupted("placement.policy", policy, " or ".join(POLICIES))
        return PlacementDecision(
            fields.text("name"),
            fields.texts("backends"),
            policy,
            fields.strings("assigned"),
            fields.each("timings", lambda item, where: _timing(Fields(item, where))),
            fields.strings("facts"),
        )


def amount_of_time(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> amount_of_time(0.00123), amount_of_time(2.5e-5)
        ('1.23 ms', '25 us')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def digest_of(facts: Mapping[str, str]) -> str:
    """Return a SHA-256 of facts in hexadecimal, whatever their order."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()


def placements_to_json(decisions: Iterable[PlacementDecision]) -> dict[str, Any]:
    """Return decisions as the data of one file."""
    return {"schema": SCHEMA, "placements": [decision.to_json() for decision in decisions]}


def placements_from_json(value: Any) -> tuple[PlacementDecision, ...]:
    """Read what `placements_to_json` made. Raises: ArtifactCorruptedError."""
    fields = Fields(value, "placements")
    if fields.integer("schema") != SCHEMA:
        raise corrupted("placements.schema", fields.any("schema"), str(SCHEMA))
    return fields.each("placements", lambda item, _: PlacementDecision.from_json(item))


def merged(*groups: Sequence[PlacementDecision]) -> tuple[PlacementDecision, ...]:
    """Return the decisions of all groups, one for each key: the last counts, and stays in the place of the first."""
    return tuple({decision.key: decision for group in groups for decision in group}.values())


def _timing(fields: Fields) -> Timing:
    return Timing(fields.text("name"), _number(fields, "seconds"), _number(fields, "ratio"))


def _number(fields: Fields, key: str) -> float:
    value = fields.any(key)
    if not (isinstance(value, float) or is_int(value)) or not 0 <= value <= MAX_SECONDS:
        raise corrupted(f"{fields.where}.{key}", value, "a positive number")
    return float(value)
