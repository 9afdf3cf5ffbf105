"""Functions end where a size becomes known: what follows is a function of its own, which knows the size by then."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.ir.expr import replace_operands
from kernelyard.ir.lambda_lifting import free_variables
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.purity import Purity
from kernelyard.ir.scopes import Scopes, attribute_symbols, introduces_symbols
from kernelyard.ir.types import TupleType, symbols_of
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class OutlineContinuations(Pass):
    """Moves what comes after a binding that introduces symbols to a private function, which is called last.

    Done where a later value uses such a symbol and does not come from the value that introduces it. Passes that move or
    group bindings look at operands alone, and after this one that is enough. Values that do not wait for the size stay
    where they are, beside what they may be fused with.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.dims import symbol
        >>> from kernelyard.ir import FunctionBuilder, TensorType, get_op
        >>> b = FunctionBuilder()
        >>> found = Call(get_op("nonzero"), [b.input("x", (8,))], type_=TensorType((1, symbol("k") - 1), "int64"))
        >>> _ = b.bind(found)
        >>> module = IRModule({"main": b.function(b.op("shape_tensor", dims=(symbol("k") - 1,)))})
        >>> outlined = OutlineContinuations()(module)
        >>> [binding.value.op_name for binding in outlined["main"].bindings]
        ['nonzero', 'main_rest']
    """

    name = "outline_continuations"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        for name, function in module.entry_functions().items():
            while True:
                last = _find_split(function)
                if last is None:
                    break
                function, last = _with_waiting_last(function, last, Purity(module))
                rest_name = module.fresh_name(f"{name}_rest")
                head, rest = _split(function, last, rest_name, Scopes(module))
                module = module.with_functions({name: head, rest_name: rest})
                name, function = rest_name, rest
        return module


def _find_split(function: Function) -> int | None:
    """Return the number of the first binding whose new symbols a later call uses that does not come from it."""
    known = symbols_of(param.type for param in function.params)
    for index, binding in enumerate(function.bindings):
        new = symbols_of([binding.var.type]) - known
        if new and introduces_symbols(binding.value):
            known |= new
            if _is_used_without(binding.var, new, function.bindings[index + 1 :]):
                return index
    return None


def _is_used_without(source: Var, symbols: frozenset[str], later: Sequence[Binding]) -> bool:
    from_it = {source}
    for binding in later:
        if not from_it.isdisjoint(_read(binding.value)):
            from_it.add(binding.var)
        elif symbols & (symbols_of([binding.var.type]) | attribute_symbols(binding.value)):
            return True
    return False


def _with_waiting_last(function: Function, last: int, purity: Purity) -> tuple[Function, int]:
    """Return the function with those bindings behind binding number `last` moved before it that do not wait for it, or
    for other sizes, and that binding's new number. What has an effect is not moved.
    """
    known = symbols_of(each.type for each in (*function.params, *(each.var for each in function.bindings[:last])))
    waiting = {function.bindings[last].var}
    moved: list[Binding] = []
    rest: list[Binding] = []
    for binding in function.bindings[last + 1 :]:
        value = binding.value
        sizes = symbols_of([binding.var.type]) | attribute_symbols(value)
        waits = not sizes <= known or not waiting.isdisjoint(_read(value))
        if not waits and purity.is_pure(value) and not introduces_symbols(value):
            moved.append(binding)
        else:
            waiting.add(binding.var)
            rest.append(binding)
    kept = _find_constant_bindings(moved, rest)
    moved, rest = [each for each in moved if each not in kept], [*kept, *rest]
    if not moved:
        return function, last
    bindings = [*function.bindings[:last], *moved, function.bindings[last], *rest]
    return Function(function.params, bindings, function.result, function.attrs), last + len(moved)


def _find_constant_bindings(moved: Sequence[Binding], rest: Sequence[Binding]) -> list[Binding]:
    """Return those of `moved` that are made of constants alone, and that `rest` reads, but not the others."""
    fixed: set[Var] = set()
    for binding in moved:
        given = operands(binding.value)
        if given and all(isinstance(each, Constant) or each in fixed for each in given):
            fixed.add(binding.var)
    wanted = {var for binding in rest for var in _read(binding.value)}
    for binding in reversed(moved):
        if binding.var not in fixed:
            fixed.difference_update(_read(binding.value))
        elif binding.var in wanted:
            wanted.update(_read(binding.value))
    return [binding for binding in moved if binding.var in fixed & wanted]


def _split(function: Function, last: int, rest_name: str, scopes: Scopes) -> tuple[Function, Function]:
    """Return the function up to binding number `last` and a call of the rest; and the rest."""
    head, tail = list(function.bindings[: last + 1]), function.bindings[last + 1 :]
    read = dict.fromkeys([head[-1].var, *free_variables(Function((), tail, function.result))])
    read |= dict.fromkeys(_sources(function, head, Function(tuple(read), tail, function.result), scopes))
    params: list[Var] = []
    args: list[Expr] = []
    bindings: list[Binding] = []
    replaced: dict[Expr, Expr] = {}
    for var in read:
        fields = _fields(var, head)
        inner = [Var(var.name, field.type, var.origin) for field in fields]
        params += inner
        args += fields
        if fields == [var]:
            replaced[var] = inner[0]
        else:
            bindings.append(Binding(Var(var.name, var.type), Tuple(inner)))
            replaced[var] = bindings[-1].var
    bindings += [Binding(binding.var, replace_operands(binding.value, replaced)) for binding in tail]
    rest = Function(params, bindings, replace_operands(function.result, replaced), {PRIVATE: True})
    call = Var("rest", rest.result_type)
    head.append(Binding(call, Call(GlobalVar(rest_name), args, type_=rest.result_type)))
    return Function(function.params, head, _result(call, head), function.attrs), rest


def _sources(function: Function, head: Sequence[Binding], rest: Function, scopes: Scopes) -> list[Var]:
    """Return variables of `head` that tell the sizes which the rest uses and cannot read off its own parameters.

    A kernel's call does not say which sizes its code reads: its caller has to know them.
    """
    wanted = frozenset[str]().union(*(unknown for _, unknown in scopes.unknown_by_binding(rest)))
    found: list[Var] = []
    for var in (*function.params, *(binding.var for binding in head)):
        defined = symbols_of([var.type]) & wanted
        if defined:
            found.append(var)
            wanted -= defined
    return found


def _read(value: Expr) -> list[Var]:
    return [operand for operand in (value, *operands(value)) if isinstance(operand, Var)]


def _fields(var: Var, head: list[Binding]) -> list[Var]:
    """Return the tensors of a variable, taken out of it at the end of `head` where it is a tuple."""
    if not isinstance(var.type, TupleType):
        return [var]
    items = [TupleGetItem(var, index) for index in range(len(var.type.fields))]
    fields = [Var(f"{var.name}_{index}", item.type, var.origin) for index, item in enumerate(items)]
    head += [Binding(field, item) for field, item in zip(fields, items, strict=True)]
    return fields


def _result(call: Var, head: list[Binding]) -> Expr:
    if not isinstance(call.type, TupleType):
        return call
    fields: Sequence[Var] = _fields(call, head)
    return Tuple(fields)
