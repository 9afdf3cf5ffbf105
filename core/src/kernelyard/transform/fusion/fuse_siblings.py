"""FuseSiblings: kernels over the same points or rows become one kernel with several results.

FuseOps fuses a call into what reads it, and so leaves apart what has no reader in common: several functions of one
tensor, a function and its input that others need too, small kernels that have nothing to do with each other.

One kernel with several results is one call and one parallel region in place of several, and reads once what its parts
have in common. Two kernels become one where its loops are as good for each as their own were (`tir.common_loops`), and

- they read the same elements, or one reads what the other has just written: memory is read once less, at any size;
- or both are small, so that starting a kernel is a good part of what it takes (`SMALL_BYTES`).

No kernel grows beyond `MOST_OPERATIONS`, however small its parts.

Recurrences of as many steps that do not depend on each other, such as the two directions of a layer, become one kernel
as well: code generators may give each a thread of its own, where the steps of one keep only one thread busy.

Other sums of products stay alone. A map of what they have just made could be stored beside it, but the tiles that are
stored twice cost as much as, and for convolutions up to a quarter more than, a pass over memory that is still in cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kernelyard import dims
from kernelyard.cached_property import cached_property
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.ir import (
    BaseFunction,
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    TupleGetItem,
    TupleType,
    Var,
    operands,
    uses,
)
from kernelyard.ir.purity import Purity
from kernelyard.ir.types import symbols_of
from kernelyard.ir.visitor import result_vars
from kernelyard.runtime.report_words import SYMBOL_SIZE
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.common_loops import (
    ElementwiseLoops,
    bytes_moved,
    may_run_together,
    may_share_rows,
    run_well_together,
    shares_loads,
    with_common_axes,
)
from kernelyard.tir.op_pattern import cost, is_contraction
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.tir.visitor import rename_buffers
from kernelyard.transform.fusion.kernel_groups import callee, group_function, group_name, is_primitive
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

SMALL_BYTES = 1 << 18  # a kernel moves so many in about the time in which one is started
WINDOW = 32  # calls in a row among which siblings are looked for: results of far ones would be kept for long
MOST_TENSORS = 16  # of one kernel
MOST_OPERATIONS = 1024  # of one kernel, by their `cost`: LLVM's time grows with the square of a kernel's length

# What a step makes and needs: variables, and symbols by name.
_Value: TypeAlias = "Var | str"


class FuseSiblings(Pass):
    """Group kernels that are better one kernel with several results; FuseTIR then makes it.

    Runs after FuseTIR, on calls of PrimFuncs. Option `fuse_siblings.small_bytes`: what independent kernels may move, at
    most, to be put together; symbols count as in the report.
    """

    name = "fuse_siblings"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        small = int(context.option("fuse_siblings.small_bytes", SMALL_BYTES))
        purity, names = Purity(module), FreshNames(module.functions)
        changed: dict[str, BaseFunction] = {}
        for name, function in module.entry_functions().items():
            if is_primitive(function):
                continue
            steps = _Steps(_steps_of(function, module, purity), small)
            if steps.merge():
                fused, parts = _rebuilt(function, steps.order, names)
                changed |= {name: fused, **parts}
        return module.with_functions(changed) if changed else module


@dataclass(eq=False)
class _Kernel:
    """Functions that a step calls, and their blocks over buffers that stand for variables."""

    functions: tuple[PrimFunc, ...]
    blocks: tuple[ComputeBlock, ...]

    @cached_property
    def loops(self) -> ElementwiseLoops:
        """The blocks as one loop nest, if they are elementwise over the same points."""
        return ElementwiseLoops(self.blocks)

    @cached_property
    def tensors(self) -> frozenset[Buffer]:
        used = {buffer for block in self.blocks for buffer in (block.output, *block.reads)}
        return frozenset(buffer for buffer in used if buffer.scope == "global")

    @cached_property
    def operations(self) -> int:
        return sum(cost(*block.expressions) for block in self.blocks)

    @cached_property
    def steps(self) -> Dim | None:
        """How many steps the recurrence has; None where the blocks are none."""
        return next((block.step_axis.extent for block in self.blocks if block.step_axis), None)

    def feeds(self, reader: _Kernel) -> bool:
        """Return True when another kernel reads what this one writes."""
        written = {block.output for block in self.blocks}
        return any(not block.reads.isdisjoint(written) for block in reader.blocks)

    @cached_property
    def bytes_moved(self) -> int:
        moved = bytes_moved(self.blocks)
        try:
            return dims.evaluate(moved, dict.fromkeys(dims.symbols_of(moved), SYMBOL_SIZE))
        except ShapeError:  # no possible size for every symbol here
            return sys.maxsize


@dataclass(eq=False)
class _Step:
    """Bindings that run as one: a call with the items of its result, later the calls of a group."""

    bindings: list[Binding]
    makes: set[_Value]
    needs: set[_Value]
    has_effect: bool = False
    kernel: _Kernel | None = None


@dataclass
class _Steps:
    """A function's steps, in an order in which they may run."""

    order: list[_Step]
    small: int
    merged: bool = field(default=False, init=False)

    def merge(self) -> bool:
        """Put together what is better together; True when something was."""
        position = 0
        while position < len(self.order):
            found = self._partner_of(position)
            position = position + 1 if found is None else self._put_together(found, position)
        return self.merged

    def _partner_of(self, position: int) -> int | None:
        """Return the nearest step before one that it may run with."""
        kernel = self.order[position].kernel
        if kernel is None:
            return None
        for other in range(position - 1, max(position - WINDOW, 0) - 1, -1):
            if self.order[other].has_effect:
                return None
            candidate = self.order[other].kernel
            if candidate is not None and self._fits(candidate, kernel) and not self._is_between(other, position):
                return other
        return None

    def _fits(self, first: _Kernel, second: _Kernel) -> bool:
        if first.steps != second.steps or len(first.tensors | second.tensors) > MOST_TENSORS:
            return False
        if first.steps is not None:
            return not first.feeds(second)
        if first.operations + second.operations > MOST_OPERATIONS:
            return False
        common = not first.tensors.isdisjoint(second.tensors)
        is_small = max(first.bytes_moved, second.bytes_moved) <= self.small
        if not (common or is_small):
            return False
        one, other = first.loops, second.loops
        if one.points is None or one.points != other.points:
            return common and may_share_rows(first.blocks, second.blocks)
        is_better = is_small or shares_loads(one, other)
        return is_better and may_run_together(one, other) and run_well_together(one, other)

    def _steps_that_need(self, first: int, second: int) -> list[_Step]:
        """Return the steps between two that need, perhaps by way of others, what the first makes."""
        made = set(self.order[first].makes)
        found: list[_Step] = []
        for step in self.order[first + 1 : second]:
            if step.needs & made:
                found.append(step)
                made |= step.makes
        return found

    def _is_between(self, first: int, second: int) -> bool:
        """Return True when a step has to run after the first and before the second."""
        needs = self.order[second].needs
        return any(step.makes & needs for step in self._steps_that_need(first, second))

    def _put_together(self, first: int, second: int) -> int:
        """Make two steps one, which runs where all it needs is there; returns its position."""
        late = self._steps_that_need(first, second)
        early = [step for step in self.order[first + 1 : second] if step not in late]
        together = _together(self.order[first], self.order[second])
        self.order[first : second + 1] = [*early, together, *late]
        self.merged = True
        return first + len(early)


def _together(first: _Step, second: _Step) -> _Step:
    assert first.kernel is not None
    assert second.kernel is not None
    a, b = first.kernel, second.kernel
    kernel = _Kernel((*a.functions, *b.functions), (*a.blocks, *b.blocks))
    makes = first.makes | second.makes
    bindings = [*first.bindings, *second.bindings]
    return _Step(bindings, makes, (first.needs | second.needs) - makes, kernel=kernel)


# --- a function as steps ------------------------------------------------------------------------------------------
def _steps_of(function: Function, module: IRModule, purity: Purity) -> list[_Step]:
    steps: list[_Step] = []
    maker: dict[Var, _Step] = {}
    known = set(symbols_of(param.type for param in function.params))
    for binding in function.bindings:
        value = binding.value
        source = value.tuple_value if isinstance(value, TupleGetItem) else None
        if isinstance(source, Var) and source in maker:  # an item goes with its tuple
            step = maker[binding.var] = maker[source]
            step.bindings.append(binding)
            step.makes.add(binding.var)
            continue
        # Sizes that this value decides are known from here on only.
        symbols = symbols_of([binding.var.type])
        own = symbols - known
        known |= own
        step = _Step([binding], {binding.var, *own}, {*_vars_of(binding), *(symbols - own)})
        step.has_effect = not purity.is_pure(value)
        steps.append(step)
        maker[binding.var] = step
    buffers = _Buffers(function, module)
    for step in steps:
        step.kernel = buffers.kernel_of(step)
        if step.kernel is not None:
            step.needs |= {name for f in step.kernel.functions for name in f.symbols} - step.makes
    return steps


def _vars_of(binding: Binding) -> list[Var]:
    return [operand for operand in operands(binding.value) if isinstance(operand, Var)]


class _Buffers:
    """The buffers that stand for a function's variables and constants."""

    def __init__(self, function: Function, module: IRModule) -> None:
        self.users = uses(function)
        self.returned = set(result_vars(function))
        self.module = module
        self.of: dict[Expr, Buffer] = {}
        self.calls = 0
        self._blocks: dict[int, tuple[ComputeBlock, ...] | None] = {}  # by id: equal functions are one object

    def kernel_of(self, step: _Step) -> _Kernel | None:
        """Return the PrimFunc that a step calls, if its results are read one by one."""
        call, *items = step.bindings
        function = callee(call.value, self.module)
        blocks = self._blocks_of(function) if function is not None else None
        if function is None or blocks is None or not isinstance(call.value, Call):
            return None
        if len(function.outputs) > 1 and (call.var in self.returned or len(items) < len(self.users[call.var])):
            return None
        results = {0: call.var} if len(function.outputs) == 1 else {}
        results |= {b.value.index: b.var for b in items if isinstance(b.value, TupleGetItem)}
        self.calls += 1
        own = (*function.locals, *function.outputs)
        new = {buffer: replace(buffer, name=f"c{self.calls}_{buffer.name}") for buffer in own}
        self.of |= {var: new[function.outputs[number]] for number, var in results.items()}
        new.update(zip(function.inputs, map(self._buffer, call.value.args[1:]), strict=True))
        return _Kernel((function,), tuple(rename_buffers(block, new) for block in blocks))

    def _blocks_of(self, function: PrimFunc) -> tuple[ComputeBlock, ...] | None:
        """Return the blocks with their axes by position; None for contractions without steps, which stay alone."""
        if id(function) not in self._blocks:
            stays_alone = any(is_contraction(block) and not block.step_axis for block in function.blocks)
            self._blocks[id(function)] = None if stays_alone else tuple(map(with_common_axes, function.blocks))
        return self._blocks[id(function)]

    def _buffer(self, expr: Expr) -> Buffer:
        if expr not in self.of:
            type_ = expr.tensor_type
            self.of[expr] = Buffer(f"v{len(self.of)}", type_.shape, type_.dtype)
        return self.of[expr]


# --- steps become a function again --------------------------------------------------------------------------------
def _rebuilt(function: Function, steps: Sequence[_Step], names: FreshNames) -> tuple[Function, dict[str, Function]]:
    """Return the function with its steps in their order, and the groups that it calls."""
    wanted = set(result_vars(function))
    for step in steps:
        wanted.update(var for binding in step.bindings for var in _vars_of(binding) if var not in step.makes)
    bindings: list[Binding] = []
    groups: dict[str, Function] = {}
    for step in steps:
        results = [binding.var for binding in step.bindings if binding.var in wanted]
        if step.kernel is None or len(step.kernel.functions) == 1 or not results:
            bindings += step.bindings
            continue
        group, arguments = group_function(step.bindings, results)
        name = names.unique(group_name(step.kernel.functions))
        groups[name] = group
        bindings += _calls_of(name, arguments, results)
    return Function(function.params, bindings, function.result, function.attrs), groups


def _calls_of(name: str, arguments: Sequence[Expr], results: Sequence[Var]) -> Iterator[Binding]:
    if len(results) == 1:
        yield Binding(results[0], Call(GlobalVar(name), arguments, type_=results[0].type))
        return
    type_ = TupleType(tuple(result.type for result in results))
    origin = "; ".join(dict.fromkeys(result.origin for result in results if result.origin))
    both = Var("siblings", type_, origin)
    yield Binding(both, Call(GlobalVar(name), arguments, type_=type_))
    for number, result in enumerate(results):
        yield Binding(result, TupleGetItem(both, number))
