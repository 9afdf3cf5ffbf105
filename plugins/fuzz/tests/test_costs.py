"""Oracles of what is lost without a wrong result: a rewrite, a pattern, a reason."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.transform.simplify import canonicalize
from kernelyard_fuzz.campaign import all_patterns, try_seeds
from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.configuration import Configuration, random_configuration
from kernelyard_fuzz.costs import Cost, worse
from kernelyard_fuzz.drawn_patterns import check_drawn
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.graphs import Graph, Recipe, graph_of_seed
from kernelyard_fuzz.oracles import Taken, check

RECIPE = Recipe(patterns=all_patterns())


def transposed_twice() -> Graph:
    b = FunctionBuilder()
    x = b.op("permute_dims", b.input("x", (2, 3, 4)), axes=(1, 2, 0))
    module = IRModule({"main": b.function(b.op("permute_dims", x, axes=(1, 0, 2)))})
    return Graph(module, (np.ones((2, 3, 4), np.float32),))


def test_a_rewrite_that_is_lost_costs_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Taken(), Taken()
    check(transposed_twice(), Configuration(()), SeededChooser(0), before)
    monkeypatch.setitem(canonicalize._RULES, "permute_dims", ())
    check(transposed_twice(), Configuration(()), SeededChooser(0), after)
    assert worse(before.costs, before.costs) == ""
    assert worse(before.costs, after.costs).startswith("simplify: Cost(left=2")
    assert worse(after.costs, before.costs) == ""


def test_a_reason_that_is_another_is_found() -> None:
    """A check that is lost lets a group pass to the next, which refuses it: nothing else shows that."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (3,)), b.input("y", (3,))))})
    check(Graph(module, (np.ones(3, np.float32),) * 2), Configuration(("dnnl",)), SeededChooser(0), taken := Taken())
    (stage,) = (stage for stage in taken.costs if stage.startswith("declined by dnnl"))
    assert taken.costs[stage] == Cost(1)
    other = {("declined by dnnl: other" if name == stage else name): cost for name, cost in taken.costs.items()}
    assert worse(taken.costs, other).startswith("declined by dnnl: other: Cost(left=1")
    assert worse(taken.costs, {name: cost for name, cost in taken.costs.items() if name != stage}) == ""


def test_what_costs_more_than_before_is_a_find() -> None:
    tally = try_seeds([3, 4], RECIPE)
    assert set(tally.costs) == {3, 4}
    assert try_seeds([3, 4], RECIPE, tally.costs).finds == []
    cheap = {3: tally.costs[3], 4: dict.fromkeys(tally.costs[4], Cost(0))}
    (find,) = try_seeds([3, 4], RECIPE, cheap).finds
    assert (find.seed, find.oracle, find.kind) == (4, "costs", "worse")


def test_a_group_whose_values_are_used_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.patterns.legality._leak", lambda match: None)

    def draw_from_many() -> None:
        for seed in range(100):
            check_drawn(SeededChooser(seed), graph_of_seed(seed, RECIPE).module)

    with pytest.raises(FoundError, match=r"legal in place of (leaking-intermediate|cycle)"):
        draw_from_many()


def test_small_graphs_are_compiled() -> None:
    """One pattern and what is around it: most of what a check lets pass shows when it is run."""
    small = [graph for seed in range(200) if (graph := graph_of_seed(seed, RECIPE)).is_small]
    assert 40 <= len(small) <= 110
    assert all(random_configuration(SeededChooser(seed), is_small=True).compiled for seed in range(10))
    sizes = [graph.operators for graph in small]
    assert max(sizes) < 25
    assert sum(sizes) / len(sizes) < 8
