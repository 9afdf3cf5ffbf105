"""Attack every parser with damaged inputs, and count what is no error of ours.

    python benchmarks/fuzz_parsers.py [PARSER ...] [--inputs 100000] [--seed 0] [--output FOLDER]

Whole inputs are made by our own writers, then damaged: bits, bytes, numbers, words, pieces of another one. Members of
an artifact are damaged behind right digests, too. A parser returns, or raises an error of the tree (KernelyardError);
another exception, a crash, 10 s of processor time for one input, and 1 GiB beyond what the process began with are
finds, written to the folder. Parsers take turns in processes of their own. Exits with 1 where something was found.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.damaged import damaged
from peers.parsers import Parser, parsers

from kernelyard.errors import KernelyardError
from kernelyard_debug.isolation import Announce, Failed, Finished, run_isolated

BATCH = 1000
SECONDS = 10
MEMORY = 1 << 30
TIMERS = (signal.SIGPROF, signal.SIGALRM)


@dataclass(frozen=True)
class Find:
    """Record an input that a parser did not take: its number makes it again."""

    parser: str
    number: int
    message: str


@dataclass
class Result:
    """Count what one parser did. outcomes: "read", or the code of an error."""

    outcomes: Counter[str]
    finds: list[Find]

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.outcomes.total() + len(self.finds)


def input_of(parser: Parser, number: int, seed: int) -> bytes:
    """Return the damaged input of a number."""
    return damaged(random.Random(f"{seed} {parser.name} {number}"), parser)


def outcome(parse: Callable[[bytes], object], data: bytes) -> str:
    """Return "read" or the code of an error of ours. Raises: what else the parser does."""
    try:
        parse(data)
    except KernelyardError as error:
        return error.code
    return "read"


def attack(parser: Parser, numbers: range, seed: int) -> Result:
    """Give inputs to a parser in a worker; where one ends it, that is a find, and another goes on."""
    result, start = Result(Counter(), []), numbers.start
    while start < numbers.stop:
        verdict = run_isolated(lambda say, first=start: _work(parser, range(first, numbers.stop), seed, say), 1e6)
        if isinstance(verdict, Finished):
            outcomes, finds = verdict.value
            result.outcomes.update(outcomes)
            result.finds += finds
            break
        if isinstance(verdict, Failed):
            raise SystemExit(f"{parser.name}: {verdict.facts}")
        number, outcomes, finds = json.loads(verdict.stage)
        result.outcomes.update(outcomes)
        result.finds += [Find(*each) for each in finds]
        result.finds.append(Find(parser.name, number, f"{verdict.reason} {verdict.last_words[-300:]}"))
        start = number + 1
    return result


def _work(parser: Parser, numbers: range, seed: int, say: Announce) -> tuple[Counter[str], list[Find]]:
    for each in TIMERS:
        signal.signal(each, signal.SIG_DFL)
    limit = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    finds: list[Find] = []
    for number in numbers:
        say(json.dumps([number, outcomes, [[f.parser, f.number, f.message] for f in finds]]))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            outcomes[outcome(parser.parse, input_of(parser, number, seed))] += 1
        except Exception as error:  # an error of another kind is what is looked for
            finds.append(Find(parser.name, number, f"{type(error).__name__}: {error}"[:500]))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return outcomes, finds


def run(chosen: Sequence[Parser], inputs: int, seed: int, folder: Path) -> int:
    """Attack parsers in turn and print what became of it; return the number of finds."""
    share, found = -(-inputs // len(chosen)), 0
    for parser in chosen:
        whole = [outcome(parser.parse, each) for each in parser.seeds]
        if set(whole) != {"read"}:
            raise SystemExit(f"{parser.name} does not read what is whole: {whole}")
        total, start = Result(Counter(), []), time.process_time()
        for first in range(0, share, BATCH):
            each = attack(parser, range(first, min(first + BATCH, share)), seed)
            total.outcomes.update(each.outcomes)
            total.finds += each.finds
        codes = ", ".join(f"{name} {count}" for name, count in total.outcomes.most_common())
        seconds = time.process_time() - start
        print(f"{parser.name}: {total.inputs} inputs, {len(total.finds)} finds; {codes}; {seconds:.0f} s", flush=True)
        for find in total.finds:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{find.parser}_{find.number}").write_bytes(input_of(parser, find.number, seed))
            print(f"  {find.number}: {find.message}")
        found += len(total.finds)
    return found


def main() -> None:
    """See the module's text."""
    known = parsers()
    argument = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    argument.add_argument("parsers", nargs="*", help=f"of {', '.join(known)}")
    argument.add_argument("--inputs", type=int, default=100_000)
    argument.add_argument("--seed", type=int, default=0)
    argument.add_argument("--output", type=Path, default=Path("parser_finds"))
    given = argument.parse_args()
    chosen = [known[name] for name in given.parsers or known]
    sys.exit(1 if run(chosen, given.inputs, given.seed, given.output) else 0)


if __name__ == "__main__":
    main()
