"""The templates of a graph's plans: which to try for new sizes, and when to trace another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelyard.errors import CodegenError
from kernelyard.runtime.api import CacheInfo, MemoryPlanner
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.plan import Plan, lower_operations
from kernelyard_dnnl.plan_template import PlanTemplate
from kernelyard_dnnl.speculation import Speculation
from kernelyard_dnnl.trace import TracedSizes, TracedSpeculation
from kernelyard_dnnl.traced import NotTraceableError, Tape

# Conditions divide the sizes into regions, each with a template of its own. Tracing takes about as long as lowering
# twice, so that it has to be of use: nothing is traced before so many sets of sizes, which three more are to pay for,
# nor after so many regions in a row that were met once.
FIRST_TRACED_SET = 4
MOST_TEMPLATES = 8
MOST_MISSES = 4


class GraphTemplates:
    """The templates of one graph for one number of threads, the one that was of use last before the others."""

    def __init__(self) -> None:
        self._templates: list[PlanTemplate] = []
        self._misses = 0  # since one was of use
        self._made = self._traced = 0

    def plan(self, values: Mapping[str, int], packed: PackedConstants, planner: MemoryPlanner) -> Plan | None:
        """Return the plan for these values of the symbolic dims; None where no template makes it."""
        for template in self._templates:
            plan = template.plan(values, packed, planner)
            if plan is not None:
                self._templates.remove(template)
                self._templates.insert(0, template)
                self._misses, self._made = 0, self._made + 1
                return plan
        return None

    def info(self) -> CacheInfo:
        """Return the counts: plans that were made, lowerings that were to be traced, and templates."""
        return CacheInfo(self._made, self._traced, len(self._templates), MOST_TEMPLATES)

    def may_grow(self, sets: int) -> bool:
        """Return whether another template may be of use, after so many sets of sizes."""
        return sets >= FIRST_TRACED_SET and len(self._templates) < MOST_TEMPLATES and self._misses < MOST_MISSES

    def trace(
        self,
        make_lowering: Callable[[TracedSizes, Speculation], Lowering],
        values: Mapping[str, int],
        threads: int,
        answers: Speculation,
    ) -> bool:
        """Add the template of a lowering for these values; False where it cannot be traced."""
        tape = Tape()
        self._misses, self._traced = self._misses + 1, self._traced + 1
        try:
            lowering = make_lowering(TracedSizes(tape, values), TracedSpeculation(answers))
            self._templates.insert(0, PlanTemplate(tape, lower_operations(lowering), threads))
        except (NotTraceableError, CodegenError, StatusError, TypeError):
            self._misses = MOST_MISSES
            return False
        return True
