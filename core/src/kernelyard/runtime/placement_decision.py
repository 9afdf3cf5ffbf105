"""PlacementDecision: a measured placement as data, which a compile applies, and which is saved with the artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from kernelyard.dims import MAX_DIM
from kernelyard.records import record
from kernelyard.runtime.abi.spec import Fields, corrupted, is_int
from kernelyard.runtime.text_table import align_rows, fold

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
    """Say which backends run what, with the measurements behind it.

    name: of the chosen candidate. backends: in the order in which they are offered the model. policy: one of
    `POLICIES`. assigned: for "assigned", the backend of each operator by `node_key`; what is not named is generated.
    timings: all candidates, the chosen one first, then from quick to slow. facts: the model, machine, packages, threads
    and sizes that it holds for. untried: candidates that there was no time for. by_size: the placements at all sizes
    that were measured, if more than one was; the decision itself is the placement of most of them. sizes: of the
    symbols, in a decision that is one of `by_size`.

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
    sizes: Mapping[str, int] = field(default_factory=dict)
    by_size: tuple[PlacementDecision, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def placement(self) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]:
        """Return what a compile applies; it is equal for decisions that place everything alike."""
        return self.backends, self.policy, tuple(sorted(self.assigned.items()))

    @property
    def used_backends(self) -> frozenset[str]:
        """The backends of the decision, at whatever sizes."""
        return frozenset(self.backends).union(*(each.backends for each in self.by_size))

    @property
    def key(self) -> str:
        """A digest of the facts: what the decision is remembered by."""
        return digest_of(self.facts)

    @property
    def runner_up(self) -> Timing | None:
        """The fastest of the others, None where there is no other."""
        return min(self.timings[1:], key=lambda timing: timing.ratio, default=None)

    @property
    def margin(self) -> float:
        """How much longer the runner-up takes, as a part of the chosen one's time; negative inside the noise."""
        return self.runner_up.ratio - 1 if self.runner_up is not None else 0.0

    def misfits(self, facts: Mapping[str, str]) -> tuple[str, ...]:
        """Return what hinders the decision from being applied where these facts hold, in words.

        Packages of backends that it does not use do not matter.
        """
        used = self.used_backends
        unused = {name for name in self.facts if name.startswith(BACKEND) and name[len(BACKEND) :] not in used}
        checked = [name for name in self.facts if name not in OF_RUNS and name not in unused]
        return tuple(
            f"{name}: {facts.get(name, 'none')}, measured with {self.facts[name]}"
            for name in checked
            if facts.get(name) != self.facts[name]
        )

    @property
    def summary(self) -> str:
        """One line: what was chosen, its time, and by how much."""
        if self.by_size:
            chosen = dict.fromkeys(each.name for each in self.by_size)
            return f"placement: {' or '.join(chosen)}, as measured at {len(self.by_size)} sizes"
        if not self.timings:
            return f"placement: {self.name}"
        chosen, second = self.timings[0], self.runner_up
        line = f"placement: {self.name}, measured {amount_of_time(chosen.seconds)} a call"
        if second is None:
            return line
        return f"{line}; runner-up {second.name} {amount_of_time(second.seconds)} ({100 * self.margin:+.1f} %)"

    def lines(self, width: int | None = None) -> list[str]:
        """Return the summary, and a table of all that was measured; of several sizes, the choice at each."""
        if self.by_size:
            rows = [("at sizes near", "placement", "a call", "runner-up", "")]
            rows += [(sizes_text(each.sizes), *_choice(each)) for each in self.by_size]
            return [*fold(self.summary, width), *align_rows(rows, width), *self._untried_lines(width)]
        rows = [("candidate", "a call", "to the chosen")]
        rows += [(each.name, amount_of_time(each.seconds), f"{each.ratio:.3f}") for each in self.timings]
        return [
            *fold(self.summary, width),
            *(align_rows(rows, width) if self.timings else []),
            *self._untried_lines(width),
        ]

    def _untried_lines(self, width: int | None) -> list[str]:
        return fold(f"not tried: {', '.join(self.untried)}", width) if self.untried else []

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
            **({"sizes": dict(sorted(self.sizes.items()))} if self.sizes else {}),
            **({"untried": list(self.untried)} if self.untried else {}),
            **({"by_size": [each.to_json() for each in self.by_size]} if self.by_size else {}),
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
            read_sizes(Fields(fields.any("sizes"), f"{fields.where}.sizes")) if "sizes" in fields else {},
            fields.each("by_size", _read_sized) if "by_size" in fields else (),
            fields.texts("untried") if "untried" in fields else (),
        )


def amount_of_time(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> amount_of_time(0.00123), amount_of_time(2.5e-5)
        ('1.23 ms', '25 us')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes of symbols for people.

    Example:
        >>> sizes_text({"n": 1, "m": 64})
        'n=1, m=64'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def read_sizes(fields: Fields) -> dict[str, int]:
    """Read sizes by symbol. Raises: ArtifactCorruptedError."""
    value = fields.value
    if not isinstance(value, dict) or not all(is_int(size) and 0 <= size <= MAX_DIM for size in value.values()):
        raise corrupted(fields.where, value, "sizes by symbol")
    return dict(value)


def read_sets_of_sizes(fields: Fields) -> list[dict[str, int]]:
    """Read the member "sizes", a list of sizes by symbol; none where it is missing. Raises: ArtifactCorruptedError."""
    return [read_sizes(sizes) for sizes in fields.each("sizes", Fields)] if "sizes" in fields else []


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


def merge_decisions(*groups: Sequence[PlacementDecision]) -> tuple[PlacementDecision, ...]:
    """Return the decisions of all groups, one for each key: the last counts, and stays in the place of the first."""
    return tuple({decision.key: decision for group in groups for decision in group}.values())


def _choice(decision: PlacementDecision) -> tuple[str, str, str, str]:
    """Return the name, the time, the runner-up and the margin of a decision, for a table."""
    seconds = amount_of_time(decision.timings[0].seconds) if decision.timings else ""
    if decision.runner_up is None:
        return decision.name, seconds, "", ""
    return decision.name, seconds, decision.runner_up.name, f"{100 * decision.margin:+.1f} %"


def _read_sized(item: Any, where: str) -> PlacementDecision:
    fields = Fields(item, where)
    if "by_size" in fields:
        raise corrupted(f"{where}.by_size", fields.any("by_size"), "the placement at one size")
    return PlacementDecision.from_json(item)


def _timing(fields: Fields) -> Timing:
    return Timing(fields.text("name"), _read_number(fields, "seconds"), _read_number(fields, "ratio"))


def _read_number(fields: Fields, key: str) -> float:
    value = fields.any(key)
    if not (isinstance(value, float) or is_int(value)) or not 0 <= value <= MAX_SECONDS:
        raise corrupted(f"{fields.where}.{key}", value, "a positive number")
    return float(value)
