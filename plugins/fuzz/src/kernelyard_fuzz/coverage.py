"""Coverage: which passes, patterns, operators and twins took part in a campaign, and which never did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kernelyard.legalize.registry import has_rule
from kernelyard.transform.compile_pipeline import default_pipeline
from kernelyard_fuzz.graphs import Recipe
from kernelyard_fuzz.twins import RULES

# Passes that see nothing to do in these graphs: they are for what only frontends write, or for other targets.
UNSEEN = frozenset({"flatten_entry_tuples", "invoke_known_closures", "outline_continuations", "infer_types"})


def find_never_taken(taken: Counter[tuple[str, str]], recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    """Return what never took part, by kind: passes of the pipeline, patterns, operators in generated kernels, twins.

    Codes of declines have no list of their own: what plugins answer is known when they do.
    """
    passes = {point.rpartition(".")[2] for point in default_pipeline().points if "." in point}
    all_of = {
        "pass": passes - UNSEEN,
        "pattern": {pattern.name for pattern in recipe.patterns},
        "kernel": _list_generated_ops(recipe),
        "twin": set(RULES),
    }
    return {kind: tuple(sorted(name for name in names if not taken[kind, name])) for kind, names in all_of.items()}


def choose_favoured(taken: Counter[tuple[str, str]], recipe: Recipe) -> frozenset[str]:
    """Return names of patterns and operators that graphs should have more of: the rarest, a tenth of all.

    What never took part has a third of these places, in turn: some of it cannot here, such as products of bytes on a
    processor without instructions for them, and would keep the places from all others.
    """
    names = [("pattern", pattern.name) for pattern in recipe.patterns]
    names += [("kernel", name) for name in sorted(_list_generated_ops(recipe))]
    never = [name for name in names if not taken[name]]
    rare = sorted((name for name in names if taken[name]), key=lambda name: taken[name])
    places = max(len(names) // 10, 1)
    known = rare[: places - min(len(never), places // 3)]
    turn = taken["oracle", "reference"] % max(len(never), 1)  # graphs so far
    unknown = [*never[turn:], *never[:turn]][: places - len(known)]
    return frozenset(name for _, name in known + unknown)


def _list_generated_ops(recipe: Recipe) -> set[str]:
    """Return the operators that can be in a generated kernel; others are run by their references."""
    return {op.name for op in recipe.ops if has_rule(op.name)}
