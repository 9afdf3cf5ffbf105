"""Schedule rules: each takes the loops of a stage and answers with a plan, or declines; the first plan wins."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.plugins.codegen_api import Buffer, Declined, Stage, first_that_applies
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.loops import Loops, loops_of
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules.block_products import block_products
from kernelyard_native_cpu.schedule.rules.byte_products import byte_products
from kernelyard_native_cpu.schedule.rules.conv import conv
from kernelyard_native_cpu.schedule.rules.dequantize_matmul import dequantize_matmul
from kernelyard_native_cpu.schedule.rules.elementwise import elementwise
from kernelyard_native_cpu.schedule.rules.fallback import fallback
from kernelyard_native_cpu.schedule.rules.gemv import gemv
from kernelyard_native_cpu.schedule.rules.general_reduction import general_reduction
from kernelyard_native_cpu.schedule.rules.matmul import matmul
from kernelyard_native_cpu.schedule.rules.reduction import reduction
from kernelyard_native_cpu.schedule.rules.scan import scan
from kernelyard_native_cpu.schedule.rules.sort import sort
from kernelyard_native_cpu.schedule.rules.transpose import transpose

Rule = Callable[[Loops], Plan | Declined]
RULES: tuple[Rule, ...] = (
    sort,
    scan,
    byte_products,
    block_products,
    dequantize_matmul,
    gemv,
    matmul,
    conv,
    general_reduction,
    reduction,
    transpose,
    elementwise,
    fallback,
)


def make_plan(stage: Stage, outer: frozenset[str], private: dict[Buffer, int], machine: Machine) -> Plan:
    """Return the plan of a stage inside loops over the `outer` axes; `private`: leading axes that buffers are kept
    without.
    """
    plan, _ = first_that_applies(RULES, loops_of(stage, outer, private, machine))
    return plan
