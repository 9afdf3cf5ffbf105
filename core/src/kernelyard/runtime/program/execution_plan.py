"""ExecutionPlan: the shapes and the memory layout of a program's registers, for one set of input shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import le
from types import MappingProxyType

from kernelyard import dims
from kernelyard.dims import DimTable
from kernelyard.errors import InputShapeError, ShapeError
from kernelyard.runtime.abi.memory import align
from kernelyard.runtime.abi.solve_symbols import DimValues, solve_symbols
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program.memory_plan import Lifetime, MemoryPlan, MemoryPlanner
from kernelyard.runtime.program.program import Jump, Program, Step, Transfer
from kernelyard.runtime.program.shape_table import ShapeTable, misfit

Shapes = tuple[tuple[int, ...], ...]
FixedSizes = tuple[tuple["int | None", ...], ...]  # of each input, a size that code is compiled for, None for any
NOTHING: Mapping[str, int] = MappingProxyType({})
GROWTH = 4  # a buffer that outgrew its slot is given 1/GROWTH of its size as slack


class ProgramMemory:
    """Places a program's inputs and buffers in an arena, for one set of sizes after the other.

    A placement serves all sizes that fit into it. Buffers that outgrow their slots are given slack, so that sizes that
    grow from call to call, such as the KV cache of a decoder, are placed again only now and then.
    roots: for each register, the one whose bytes it shows. types: the registers' shapes. checks: the dims of the
    program's checks, in pairs.
    """

    def __init__(self, program: Program) -> None:
        self.roots = tuple(map(program.root, range(len(program.registers))))
        self.types = ShapeTable(program)
        self.checks = DimTable([dim for check in program.checks for dim in (check.left, check.right)])
        spans = spans_of(program)
        self.registers = tuple(spans)
        self._spans = tuple(spans.values())
        self._planner = MemoryPlanner()
        self._placed: tuple[list[int], MemoryPlan] | None = None  # places of so many bytes

    def plan(self, nbytes: Sequence[int]) -> MemoryPlan:
        """Return the offsets of `registers`, which take so many bytes each."""
        sizes = [align(each) for each in nbytes]  # a slot is as large
        if self._placed is not None:
            places, plan = self._placed
            if all(map(le, sizes, places)):
                return plan
            sizes = [
                place if size <= place else size + size // GROWTH for size, place in zip(sizes, places, strict=True)
            ]
        plan = self._planner.plan([Lifetime(size, *span) for size, span in zip(sizes, self._spans, strict=True)])
        self._placed = sizes, plan
        return plan


class ExecutionPlan:
    """Specialization of a program for concrete input shapes: symbol values, shapes, memory offsets.

    known: sizes of symbols that do not follow from the inputs alone. values: of the symbolic dims. shapes: one per
    register. offsets: where inputs and buffers lie, by register, in an arena of `arena_nbytes`; registers whose
    lifetimes are disjoint share bytes. memory: of the program, where it has been planned for other sizes. is_empty: a
    symbol is 0, and all results are empty. Then no step is run: code is compiled for sizes of 1 and more.
    Raises: InputShapeError for shapes that the inputs cannot have, and where a symbol is 0 and a result is not empty;
    ShapeError naming the step that cannot work on them.
    """

    def __init__(
        self,
        program: Program,
        shapes: Shapes,
        known: Mapping[str, int] = NOTHING,
        memory: ProgramMemory | None = None,
    ) -> None:
        memory = memory or ProgramMemory(program)
        self.program = program
        self.input_shapes = shapes
        self.roots = memory.roots
        self.values: dict[str, int] = {name: known[name] for name in program.symbols if name in known}
        solve_symbols(program.inputs, shapes, self.values, least=0)
        _check_sizes(program, memory.checks, self.values)
        rows = memory.types.at(self.values)
        self.shapes = [row.shape for row in rows]
        self.is_empty = 0 in self.values.values()
        if self.is_empty:
            self._check_empty()
        placed = memory.plan([rows[register].nbytes for register in memory.registers])
        self.offsets = dict(zip(memory.registers, placed.offsets, strict=True))
        self.arena_nbytes = placed.nbytes

    @property
    def result_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the results."""
        return [self.shapes[result] for result in self.program.results]

    def _check_empty(self) -> None:
        for spec, shape in zip(self.program.outputs, self.result_shapes, strict=True):
            if dims.product(shape) != 0:
                sizes = [name for name, value in self.values.items() if value == 0]
                raise InputShapeError(
                    "the inputs are empty, but not all results are",
                    where=f"output {spec.name!r}" if spec.name else None,
                    found=f"{', '.join(f'{name} = 0' for name in sizes)}; {spec!r} would be of shape {shape}",
                    expected="sizes of at least 1",
                    hint=f"for such inputs, compile the model with the fixed size 0 in place of {sizes[0]}",
                )


def spans_of(program: Program) -> dict[int, tuple[int, int]]:
    """Return the live ranges (first and last time) of inputs and buffers, by register.

    Times are positions in the program; inputs are live before all steps, results until after them.
    """
    roots = tuple(map(program.root, range(len(program.registers))))
    kinds = [register.kind for register in program.registers]
    spans = {number: [-1, -1] for number, kind in enumerate(kinds) if kind == "input"}
    for now, each in enumerate(program.order):
        read, written = _uses(each)
        for register in written:  # a step that is jumped over may have written it before
            spans.setdefault(roots[register], [now, now])[1] = now
        for register in read:
            if roots[register] in spans:
                spans[roots[register]][1] = now
    for register in program.results:
        if roots[register] in spans:
            spans[roots[register]][1] = len(program.order)
    loops = [(jump.target, jump.place) for jump in program.jumps if jump.target <= jump.place]
    for begin, end in sorted(loops, key=lambda loop: loop[1] - loop[0]):  # inner ones first
        for span in spans.values():
            _lengthen(span, begin, end)
    return {register: (first, last) for register, (first, last) in spans.items()}


def _uses(each: Step | Jump | Transfer) -> tuple[Sequence[int], Sequence[int]]:
    """Return the registers that are read, and those that are written."""
    if isinstance(each, Jump):
        return (each.condition,) if each.condition >= 0 else (), ()
    if isinstance(each, Transfer):
        return (each.source,) if each.source >= 0 else (), (each.target,)
    return each.inputs, each.outputs


def _lengthen(span: list[int], begin: int, end: int) -> None:
    """Let what an iteration has from the one before, or leaves behind the loop, exist for all of the loop."""
    first, last = span
    if first < begin <= last <= end:
        span[1] = end
    elif begin <= first <= end < last:
        span[0] = begin


def _check_sizes(program: Program, table: DimTable, values: Mapping[str, int]) -> None:
    with suppress(ShapeError):  # what follows says where
        found = table(values)
        if found[::2] == found[1::2]:
            return
    known = DimValues(values)
    for check in program.checks:
        try:
            left, right = known(check.left), known(check.right)
        except ShapeError as error:
            raise misfit(check.where, values, error.message) from error
        if left != right and check.bound is not None:
            raise _out_of_bounds(program, check.bound[0], values)
        if left != right:
            raise misfit(check.where, values, f"{check.left} is {left}, but {check.right} is {right}")


def _out_of_bounds(program: Program, symbol: str, values: Mapping[str, int]) -> InputShapeError:
    low, high = program.size_bounds[symbol]
    return InputShapeError(
        f"the size {symbol} is out of its bounds",
        where=", ".join(f"input {each.name!r}" for each in program.inputs if _has(each, symbol)) or None,
        found=f"{symbol} = {values[symbol]}",
        expected=f"{low} to {high}" if high is not None else f"at least {low}",
        hint="compile the model with wider bounds, or without",
    )


def _has(spec: TensorSpec, symbol: str) -> bool:
    return any(symbol in dims.symbols_of(dim) for dim in spec.shape)
