"""SeparateResults: a call whose results have nothing in common becomes a call for each of them.

The parts of a `split` can then be computed where they are read. What is better together FuseSiblings puts together
again.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.ir import Call, Expr, FunctionMutator, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.types import TensorType
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc
from kernelyard.transform.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.kernel_groups import callee, without_unused
from kernelyard.transform.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_base import Pass, PassContext


class SeparateResults(Pass):
    """Replace calls of PrimFuncs with several outputs that share no work by one call for each output."""

    name = "separate_results"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        separate = _Separate(module)
        changed = {}
        for name, function in module.entry_functions().items():
            new = separate.mutate(function)
            if new is not function:
                changed[name] = new
        if not changed:
            return module
        return without_unused(DeadCodeElimination()(module.with_functions({**changed, **separate.table.added})))


@dataclass(frozen=True)
class Part:
    """The part of a PrimFunc that makes one of its outputs; inputs: which of the function's inputs it reads."""

    function: PrimFunc
    inputs: tuple[int, ...]


def parts_of(function: PrimFunc) -> list[Part] | None:
    """Return a function for each output; None where two of them need the same block."""
    taken: set[int] = set()
    parts: list[Part] = []
    for output in function.outputs:
        blocks = _blocks_for(output, function)
        if not taken.isdisjoint(blocks):
            return None
        taken.update(blocks)
        parts.append(_part(function, output, [function.blocks[n] for n in sorted(blocks)]))
    return parts


def _blocks_for(output: Buffer, function: PrimFunc) -> set[int]:
    """Return the blocks that an output needs, by number."""
    needed, found = {output}, set[int]()
    for number in reversed(range(len(function.blocks))):
        block = function.blocks[number]
        if block.output in needed:
            needed |= block.reads
            found.add(number)
    return found


def _part(function: PrimFunc, output: Buffer, blocks: list[ComputeBlock]) -> Part:
    used = frozenset[Buffer]().union(*(block.reads for block in blocks))
    inputs = tuple(number for number, buffer in enumerate(function.inputs) if buffer in used)
    params = (*(function.inputs[number] for number in inputs), output)
    locals_ = tuple(buffer for buffer in function.locals if any(block.output == buffer for block in blocks))
    return Part(PrimFunc(params, tuple(blocks), 1, locals_, function.attrs), inputs)


class _Separate(FunctionMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__()
        self.module = module
        self.table = PrimFuncTable(module)
        self.known: dict[str, list[Part] | None] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            source = self.value_of(value.tuple_value)
            return source.fields[value.index] if isinstance(source, Tuple) else value
        function = callee(value, self.module)
        if function is None or len(function.outputs) < 2 or not isinstance(value, Call):
            return value
        name = value.args[0].name  # pyright: ignore[reportAttributeAccessIssue]
        if name not in self.known:
            self.known[name] = parts_of(function)
        parts = self.known[name]
        return value if parts is None else Tuple([self._call(var, value, name, part) for part in parts])

    def _call(self, var: Var, value: Call, name: str, part: Part) -> Expr:
        (output,) = part.function.outputs
        arguments = [value.args[1 + number] for number in part.inputs]
        type_ = TensorType(output.shape, output.dtype)
        return self.emit(call_tir(self.table.name_of(part.function, name), arguments, type_), var.name, var.origin)
