"""Random graphs of every kind of operator, fused and compiled by native-cpu alone, against the operators' references.

A failing graph is made as small as it goes, and printed as a module.
"""

from __future__ import annotations

from random import getrandbits

import numpy as np
import pytest
from fused_graphs import fused_graphs
from graph_builder import FusedGraph
from hypothesis import HealthCheck, Phase, given, seed, settings

import kernelyard as ky

BATCHES, EXAMPLES = 8, 260
MACHINES = (None, None, "x86-64-v3", "x86-64")  # in turn; None: this one
# The same graphs in every run but a campaign.
SETTINGS = settings(
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs(batch: int, campaign: int | None) -> None:
    target = ky.Target("cpu", mcpu=MACHINES[batch % len(MACHINES)])
    seen: list[int] = []  # how many kernels each graph became
    together: list[int] = []  # how many of them have several results

    @seed(getrandbits(64) if campaign is not None else batch)
    @settings(SETTINGS, max_examples=EXAMPLES)
    @given(fused_graphs())
    def check(graph: FusedGraph) -> None:
        exe = ky.compile(graph.module, target=target, backends=[], strict=True)
        seen.append(len(exe.report.kernels))
        together.append(sum(len(step.outputs) > 1 for step in exe.programs["main"].steps))
        for number, case in enumerate(graph.cases):
            found = exe(*case.inputs)
            results = found if isinstance(found, tuple) else (found,)
            graph.check(number, [np.asarray(result) for result in results])

    check()
    assert len(seen) >= EXAMPLES * 0.98
    assert sum(seen) > 1.5 * len(seen)  # kernels: graphs are not trivial
    assert sum(map(bool, together)) > 0.05 * len(seen)  # kernels of several results are not rare
