"""Campaign: graphs without end, in worker processes, so that a crash is a find and a hang is one too."""

from __future__ import annotations

import gc
import json
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import kernelyard as ky
from kernelyard.ir import to_text
from kernelyard.patterns import FusionPattern
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard_debug.isolation import Announce, Died, Failed, Finished, run_isolated
from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.configuration import Configuration, random_configuration
from kernelyard_fuzz.costs import Cost, worse
from kernelyard_fuzz.coverage import choose_favoured
from kernelyard_fuzz.errors import FoundError, FuzzError
from kernelyard_fuzz.graphs import Graph, Recipe, random_graph
from kernelyard_fuzz.oracles import Taken, check

BATCH = 500  # graphs of one worker process, which loads the compiler and opens its libraries again
SECONDS = 60  # of processor time for one graph; more is a hang
SLEEP = 600  # seconds for one graph; more is a deadlock
MEMORY = 8 << 30  # bytes that a worker may map beside what it begins with; more is a find, too
FACTS = "find.json"
TALLY = "campaign.json"
TIMERS = (signal.SIGPROF, signal.SIGALRM)
Costs: TypeAlias = Mapping[str, Cost]
CRASH, HANG, WORKER = "crash", "hang", "worker"


@dataclass(frozen=True)
class Find:
    """Record a failure. seed: makes the graph again. oracle: what was asked; kind: how it failed; place: a pass.

    message: for people. configuration: how the graph was compiled and run. favoured: of the recipe.
    """

    seed: int
    oracle: str
    kind: str
    message: str
    place: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    favoured: tuple[str, ...] = ()

    @property
    def signature(self) -> tuple[str, str, str, str]:
        """Finds of one signature are likely to have one cause."""
        return self.oracle, self.kind, self.place, "".join(c for c in self.message[:80] if not c.isdigit())


@dataclass
class Tally:
    """Count what a campaign did. costs: of the graphs, by seed and stage."""

    graphs: int = 0
    operators: int = 0
    seconds: float = 0.0
    finds: list[Find] = field(default_factory=list)
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs: dict[int, Costs] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add what another tally counted."""
        self.graphs += other.graphs
        self.operators += other.operators
        self.seconds += other.seconds
        self.finds += other.finds
        self.taken.update(other.taken)
        self.costs |= other.costs

    def to_json(self) -> dict[str, Any]:
        """Return the tally as JSON data."""
        taken: dict[str, dict[str, int]] = {}
        for (kind, name), count in sorted(self.taken.items()):
            taken.setdefault(kind, {})[name] = count
        return {
            "graphs": self.graphs,
            "operators": self.operators,
            "cpu_seconds": round(self.seconds, 2),
            "graphs_per_second": round(self.graphs / self.seconds, 2) if self.seconds else 0.0,
            "finds": [asdict(find) for find in self.finds],
            "taken": taken,
        }


def all_patterns() -> tuple[FusionPattern, ...]:
    """Return the patterns of every usable backend for the CPU."""
    backends = get_manager().active("backend", "cpu")
    return tuple(pattern for backend in backends for pattern in backend.patterns(ky.Target("cpu")))


def case_of_seed(seed: int, recipe: Recipe) -> tuple[Graph, Configuration, SeededChooser]:
    """Return the graph and configuration of a seed, and the chooser for what is drawn after them."""
    chooser = SeededChooser(seed)
    graph = random_graph(chooser, recipe)
    return graph, random_configuration(chooser, graph.is_small), chooser


def try_seed(
    seed: int, recipe: Recipe, taken: Taken, announce: Announce = lambda stage: None
) -> tuple[Graph, Find | None]:
    """Ask all oracles about the graph of a seed, in this process; return it and what was found."""
    graph, how, chooser = case_of_seed(seed, recipe)
    announce(json.dumps({"seed": seed, "configuration": asdict(how)}))
    try:
        check(graph, how, chooser, taken)
    except FoundError as found:
        return graph, Find(seed, found.oracle, found.kind, found.message, found.place, asdict(how))
    return graph, None


def try_seeds(seeds: Sequence[int], recipe: Recipe, before: Mapping[int, Costs] | None = None) -> Tally:
    """Try seeds in a worker process; where it dies, the seed that it was at is a find, and another goes on.

    before: costs by seed, as another version of the compiler had them: more is a find, too.
    """
    tally = Tally()
    while seeds:
        verdict = run_isolated(lambda announce, left=seeds: _work(left, recipe, before or {}, announce), 1e6)
        if isinstance(verdict, Finished):
            tally.add(verdict.value)
            break
        find = _of_verdict(verdict, seeds[0])
        done = seeds.index(find.seed) + 1
        tally.add(Tally(graphs=done, finds=[find]))
        seeds = seeds[done:]
    return tally


def _of_verdict(verdict: Failed | Died, first: int) -> Find:
    if isinstance(verdict, Failed):
        facts = verdict.facts
        seed = next((int(note.removeprefix("seed ")) for note in verdict.notes if note.startswith("seed ")), first)
        return Find(seed, WORKER, "error", f"{facts.get('error') or facts.get('code')}: {facts.get('message')}")
    stage = json.loads(verdict.stage) if verdict.stage else {"seed": first, "configuration": {}}
    kind = HANG if any(each.name in verdict.reason for each in TIMERS) else CRASH
    return Find(stage["seed"], "process", kind, f"{verdict.reason}\n{verdict.last_words}", "", stage["configuration"])


def _costlier(seed: int, before: Costs, after: Costs) -> Find | None:
    message = worse(before, after)
    return Find(seed, "costs", "worse", message) if message else None


def _limit() -> None:
    """Limit what this worker process maps, and have timers end it, in native code too."""
    for each in TIMERS:
        signal.signal(each, signal.SIG_DFL)
    limit = _measure_mapped_bytes() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _start_timers() -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(SLEEP)


def _work(seeds: Sequence[int], recipe: Recipe, before: Mapping[int, Costs], announce: Announce) -> Tally:
    _limit()
    gc.freeze()  # the collector looks no more at what the parent process had
    tally, taken, began = Tally(), Taken(), time.process_time()
    for seed in seeds:
        _start_timers()
        try:
            graph, find = try_seed(seed, recipe, taken, announce)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        tally.graphs += 1
        tally.operators += graph.operators
        tally.costs[seed] = taken.costs
        find = find or _costlier(seed, before.get(seed, {}), taken.costs)
        tally.finds += [find] if find else []
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    tally.seconds, tally.taken = time.process_time() - began, taken.counts
    return tally


def _measure_mapped_bytes() -> int:
    """Return the bytes of this process's address space; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def run_campaign(
    seed: int,
    seconds: float,
    recipe: Recipe | None = None,
    step: Callable[[Tally], None] = lambda tally: None,
    folder: Path | None = None,
) -> Tally:
    """Try seeds from `seed` on for so long; finds are written to `folder` as they come.

    What took part least so far is drawn more often in the next batch; a find keeps what that was. After each batch
    `campaign.json` has what was done: it stays where the campaign is ended from outside.
    """
    deadline, tally = time.monotonic() + seconds, Tally()
    recipe = recipe or Recipe(patterns=all_patterns())
    for first in _firsts(seed):
        if tally.graphs:
            recipe = replace(recipe, favoured=choose_favoured(tally.taken, recipe))
        batch = try_seeds(range(first, first + BATCH), recipe)
        favoured = tuple(sorted(recipe.favoured))
        batch.finds = [replace(find, favoured=favoured) for find in batch.finds]
        batch.costs.clear()  # nobody asks for those of so many graphs
        tally.add(batch)
        if folder is not None:
            for find in batch.finds:
                write_find(find, recipe, folder)
            _write_tally(tally, range(seed, first + BATCH), folder)
        step(tally)
        if time.monotonic() >= deadline:
            return tally
    raise AssertionError("seeds do not end")


def _write_tally(tally: Tally, seeds: range, folder: Path) -> None:
    """Write what was done so far: a campaign that somebody ends from outside says nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"first": seeds.start, "next": seeds.stop, **tally.to_json()}
    written = folder / f".{TALLY}"
    written.write_text(json.dumps(facts, indent=2), encoding="utf-8")
    written.replace(folder / TALLY)


def replay(folder: Path) -> Tally:
    """Try again what a find's folder holds, in a worker process. Raises: FuzzError for a folder that is none."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        seed, favoured = int(facts["seed"]), frozenset(map(str, facts["favoured"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FuzzError("this is no folder of a find", where=str(folder), found=error) from error
    return try_seeds(range(seed, seed + 1), Recipe(patterns=all_patterns(), favoured=favoured))


def _firsts(seed: int) -> Iterator[int]:
    while True:
        yield seed
        seed += BATCH


def write_find(find: Find, recipe: Recipe, folder: Path) -> Path:
    """Write the graph and the feeds of a find into a folder of its own, for `kernelyard_debug.load_case`.

    Where making the graph fails, hangs or crashes (that is the find then), the folder holds the facts alone: `replay`
    makes it again.
    """
    place = folder / f"seed_{find.seed}"
    place.mkdir(parents=True, exist_ok=True)
    (place / FACTS).write_text(json.dumps(asdict(find), indent=2), encoding="utf-8")
    remade = run_isolated(lambda announce: _remake(find.seed, recipe), 1e6)
    if isinstance(remade, Finished):
        text, feeds = remade.value
        (place / "model.ir").write_text(text, encoding="utf-8")
        np.savez(place / "feeds.npz", **feeds)  # pyright: ignore[reportArgumentType]
    return place


def _remake(seed: int, recipe: Recipe) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of a seed's graph and its feeds by name, in a worker process."""
    _limit()
    _start_timers()
    graph, _, _ = case_of_seed(seed, recipe)
    names = [param.name for param in graph.module["main"].params]  # pyright: ignore[reportAttributeAccessIssue]
    return to_text(graph.module), dict(zip(names, graph.feeds, strict=True))
