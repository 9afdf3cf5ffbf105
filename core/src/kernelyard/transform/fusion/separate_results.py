"""SeparateResults: a call whose results have nothing in common becomes a call for each of them.

The parts of a `split` can then be computed where they are read. What is better together FuseSiblings puts together
again. Results that nobody reads go: a sort whose values alone are wanted then need not keep their places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.expr import operands
from kernelyard.ir.visitor import result_vars
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.visitor import rename_buffers
from kernelyard.transform.fusion.kernel_groups import callee, remove_unused_kernels
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination


class SeparateResults(Pass):
    """Replace calls of PrimFuncs with several outputs that share no work by one call for each output."""

    name = "separate_results"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        separate = _Separate(module)
        changed = {}
        for name, function in module.entry_functions().items():
            separate.read = _results_read(function)
            new = separate.mutate(function)
            if new is not function:
                changed[name] = new
        if not changed:
            return module
        return remove_unused_kernels(DeadCodeElimination()(module.with_functions({**changed, **separate.table.added})))


@dataclass(frozen=True)
class Part:
    """A PrimFunc that makes some of another's outputs; inputs, outputs: which of the other's it reads and makes."""

    function: PrimFunc
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def parts_of(function: PrimFunc, read: frozenset[int] | None = None) -> list[Part] | None:
    """Return functions that make the outputs that are read, all if that is not said: one for each, or a single one
    where two of them need the same block; None where that is the function itself.
    """
    wanted = tuple(n for n in range(function.num_outputs) if read is None or n in read)
    taken: set[int] = set()
    for number in wanted:
        blocks = _blocks_for((number,), function)
        if not taken.isdisjoint(blocks):
            return None if len(wanted) == function.num_outputs else [_part(function, wanted)]
        taken.update(blocks)
    return [_part(function, (number,)) for number in wanted]


def _blocks_for(outputs: tuple[int, ...], function: PrimFunc) -> set[int]:
    """Return the blocks that some outputs need, by number."""
    needed, found, before = {function.outputs[number] for number in outputs}, set[int](), -1
    while len(found) > before:  # a step of a loop reads what the one before it has written, further below
        before = len(found)
        for number, block in reversed([*enumerate(function.blocks)]):
            if block.output in needed:
                needed |= block.reads
                found.add(number)
    return found


def _part(function: PrimFunc, outputs: tuple[int, ...]) -> Part:
    blocks = [function.blocks[number] for number in sorted(_blocks_for(outputs, function))]
    used = frozenset[Buffer]().union(*(block.reads for block in blocks))
    inputs = tuple(number for number, buffer in enumerate(function.inputs) if buffer in used)
    kept = tuple(function.outputs[number] for number in outputs)
    inside = {block.output: replace(block.output, scope="local") for block in blocks if block.output not in kept}
    params = (*(function.inputs[number] for number in inputs), *kept)
    renamed = tuple(rename_buffers(block, inside) for block in blocks)
    part = PrimFunc(params, renamed, len(kept), tuple(inside.values()), function.attrs)
    return Part(part, inputs, outputs)


def _results_read(function: Function) -> dict[Var, frozenset[int]]:
    """Return which fields are read of each tuple of which only fields are."""
    fields: dict[Var, set[int]] = {}
    whole: set[Expr] = set(result_vars(function))
    for binding in function.bindings:
        if isinstance(binding.value, TupleGetItem) and isinstance(binding.value.tuple_value, Var):
            fields.setdefault(binding.value.tuple_value, set()).add(binding.value.index)
        else:
            whole.update(operands(binding.value))
    return {var: frozenset(numbers) for var, numbers in fields.items() if var not in whole}


class _Separate(FunctionMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__()
        self.module = module
        self.table = PrimFuncTable(module)
        self.known: dict[tuple[str, frozenset[int] | None], list[Part] | None] = {}
        self.read: dict[Var, frozenset[int]] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            source = self.value_of(value.tuple_value)
            return source.fields[value.index] if isinstance(source, Tuple) else value
        function = callee(value, self.module)
        if function is None or len(function.outputs) < 2 or not isinstance(value, Call):
            return value
        name = value.args[0].name  # pyright: ignore[reportAttributeAccessIssue]
        key = name, self.read.get(var)
        if key not in self.known:
            self.known[key] = parts_of(function, key[1])
        parts = self.known[key]
        if parts is None:
            return value
        made = {number: one for part in parts for number, one in self._call(var, value, name, part).items()}
        unread = next(iter(made.values()))
        return Tuple([made.get(number, unread) for number in range(function.num_outputs)])

    def _call(self, var: Var, value: Call, name: str, part: Part) -> dict[int, Expr]:
        """Emit the call of a part; return what it makes, by the number of the result."""
        arguments = [value.args[1 + number] for number in part.inputs]
        type_ = part.function.result_type
        call = call_tir(self.table.name_of(part.function, name), arguments, type_)
        result = self.emit(call, var.name, var.origin)
        if len(part.outputs) == 1:
            return {part.outputs[0]: result}
        items = (self.emit(TupleGetItem(result, place), var.name, var.origin) for place in range(len(part.outputs)))
        return dict(zip(part.outputs, items, strict=True))
