"""FuseOps: neighbouring loop-level calls become groups, each one function that FuseTIR turns into one kernel.

A call joins the group of its consumers when all of them are in one group: then nothing outside can stand between, so
that groups stay convex by construction and one sweep over the bindings, from the last to the first, finds them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelyard.ir import BaseFunction, Binding, Call, Function, GlobalVar, IRModule, Var, uses
from kernelyard.ir.visitor import result_vars
from kernelyard.tir.expr import Load
from kernelyard.tir.inline import CHEAP
from kernelyard.tir.op_pattern import (
    ANCHOR,
    BROADCAST,
    ELEMENTWISE,
    OPAQUE,
    REDUCTION,
    buffers_read,
    classify,
    cost,
    reads_once,
    reads_prefix,
    reads_transposed,
)
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.transform.fusion.kernel_groups import callee, group_function, group_name, is_primitive
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

MAX_DEPTH = 64


class FuseOps(Pass):
    """Group `call_tir`s whose PrimFuncs can become one; groups are functions with the attribute "Primitive".

    Elementwise, broadcast and injective functions go into their consumers; reductions, matmuls and convolutions take
    the elementwise functions that follow them; reductions over rows and what reads them row by row stay together.
    What transposes rows that are reduced stays a kernel of its own.
    Option `fuse_ops.max_depth`: the most calls in one group.
    """

    name = "fuse_ops"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        limit = int(context.option("fuse_ops.max_depth", MAX_DEPTH))
        changed: dict[str, BaseFunction] = {}
        names = FreshNames(module.functions)
        for name, function in module.entry_functions().items():
            if is_primitive(function):
                continue
            groups = _Grouping(function, module, limit).groups()
            if groups:
                fused, parts = _extract(function, groups, names)
                changed |= {name: fused, **parts}
        return module.with_functions(changed)


@dataclass(eq=False)
class _Node:
    """A `call_tir` binding."""

    binding: Binding
    call: Call
    function: PrimFunc
    kind: str
    budget: float = math.inf  # operations that what is computed here on the way may cost: it is repeated
    is_row: bool = False  # its last axis is reduced in the group's kernel

    @property
    def cost(self) -> int:
        return cost(*(expr for block in self.function.blocks for expr in block.expressions))

    def reads_of(self, var: Var) -> list[tuple[ComputeBlock, Load]]:
        """Return the loads of a variable in this call's function."""
        return [
            read
            for argument, buffer in zip(self.call.args[1:], self.function.inputs, strict=True)
            if argument is var
            for read in buffers_read(self.function, buffer)
        ]


@dataclass(eq=False)
class _Group:
    """Calls that become one function, the last of them first."""

    nodes: list[_Node] = field(default_factory=list)

    @property
    def has_anchor(self) -> bool:
        return any(node.kind == ANCHOR for node in self.nodes)


class _Grouping:
    def __init__(self, function: Function, module: IRModule, limit: int) -> None:
        self.limit = limit
        self.users = uses(function)
        self.returned = set(result_vars(function))
        self.nodes: dict[Var, _Node] = {}
        self.group_of: dict[_Node, _Group] = {}  # and not in the node: a cycle would keep weights until it is collected
        for binding in function.bindings:
            primfunc = callee(binding.value, module)
            if primfunc is not None and len(primfunc.outputs) == 1:  # groups hand on one tensor from call to call
                assert isinstance(binding.value, Call)
                kind = str(primfunc.attrs.get("op_pattern") or classify(primfunc))
                self.nodes[binding.var] = _Node(binding, binding.value, primfunc, kind)

    def groups(self) -> list[_Group]:
        """Return the groups of more than one call."""
        for node in reversed(self.nodes.values()):
            group = self.group_of[node] = self._group_to_join(node) or _Group()
            group.nodes.append(node)
        found = dict.fromkeys(self.group_of[node] for node in self.nodes.values())
        return [group for group in found if len(group.nodes) > 1]

    def _group_to_join(self, node: _Node) -> _Group | None:
        var = node.binding.var
        users = [self.nodes.get(binding.var) for binding in self.users[var]]
        if node.kind == OPAQUE or var in self.returned or not users:
            return None
        consumers = [user for user in users if user is not None]
        groups = {self.group_of[user] for user in consumers}
        if len(consumers) < len(users) or len(groups) != 1:
            return None
        (group,) = groups
        if len(group.nodes) >= self.limit:
            return None
        return group if self._may_join(node, consumers, group) else None

    def _may_join(self, node: _Node, consumers: Sequence[_Node], group: _Group) -> bool:
        reads = [(user, block, load) for user in consumers for block, load in user.reads_of(node.binding.var)]
        budget = _budget(consumers, reads)
        if node.kind == ANCHOR:
            return budget == math.inf and not group.has_anchor and all(_is_epilogue(*read) for read in reads)
        if node.kind == REDUCTION:
            return budget == math.inf and all(_shares_rows(*read) for read in reads)
        is_row = any(_reduces_last_axis(*read) for read in reads)
        if node.cost > budget or not _may_precede(node, consumers, is_row):
            return False
        node.budget, node.is_row = budget - node.cost, is_row
        return True


def _budget(consumers: Sequence[_Node], reads: Sequence[tuple[_Node, ComputeBlock, Load]]) -> float:
    """Return the cost limit, in operations, of a call fused into its consumers: infinite if none repeats it."""
    budget = min(user.budget for user in consumers)
    is_repeated = not all(reads_once(load, block) or _shares_rows(user, block, load) for user, block, load in reads)
    return min(budget, CHEAP) if is_repeated else budget


def _may_precede(node: _Node, consumers: Sequence[_Node], is_row: bool) -> bool:
    """Return True when a function is as good inside its consumers as by itself: products take none in, and rows that
    are reduced none that transposes."""
    if is_row and any(map(reads_transposed, node.function.blocks)):
        return False
    return all(user.kind != ANCHOR for user in consumers)


def _reduces_last_axis(user: _Node, block: ComputeBlock, load: Load) -> bool:
    """Return True when the consumer, or what it is fused into, reduces the axis along which a buffer is contiguous."""
    axes, last = block.reduce_axes, load.indices[-1:]
    if user.is_row:
        axes = block.spatial_axes[-1:]
    return any((axis.axis,) == last and axis.extent != 1 for axis in axes)


def _is_epilogue(user: _Node, block: ComputeBlock, load: Load) -> bool:
    """Return True when the consumer works on the element just computed."""
    return (
        user.kind in (ELEMENTWISE, BROADCAST)
        and load.indices == tuple(axis.axis for axis in block.spatial_axes)
        and load.buffer.shape == block.output.shape
    )


def _shares_rows(user: _Node, block: ComputeBlock, load: Load) -> bool:
    """Return True when the consumer works on the row just reduced, so that both run in one loop over rows."""
    return user.kind in (ELEMENTWISE, BROADCAST, REDUCTION) and reads_prefix(
        load, [axis.axis for axis in block.spatial_axes]
    )


# --- groups become functions -------------------------------------------------------------------------------------
def _extract(function: Function, groups: Sequence[_Group], names: FreshNames) -> tuple[Function, dict[str, Function]]:
    group_of = {node.binding.var: group for group in groups for node in group.nodes}
    parts: dict[str, Function] = {}
    bindings: list[Binding] = []
    for binding in function.bindings:
        group = group_of.get(binding.var)
        if group is None:
            bindings.append(binding)
        elif binding is group.nodes[0].binding:
            nodes = group.nodes[::-1]
            part, arguments = group_function([node.binding for node in nodes], [binding.var])
            name = names.unique(group_name(node.function for node in nodes))
            parts[name] = part
            bindings.append(Binding(binding.var, Call(GlobalVar(name), arguments, type_=binding.var.type)))
    return Function(function.params, bindings, function.result, function.attrs), parts
