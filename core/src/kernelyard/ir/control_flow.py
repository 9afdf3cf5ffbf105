"""Check the operands of `if`, `while` and closures: private functions of the module and their signatures.

`if(@then, @else, condition, operands...)` is the result of one branch; `while(@condition, @body, operands...)` gives
the body its own results again for as long as the condition holds. Both are those of StableHLO, with functions in place
of regions (https://openxla.org/stablehlo/spec#if, #while). A body may give more than it takes: the attribute
`collected` is how many of its last results do not go into the next turn, but are stacked, as those of a scan are.

`make_closure(@function, captured...)` is a value of a function type: the function with its first arguments given.
`invoke_closure(closure, operands...)` gives it the others. It can be handed on like any value between functions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.ir.expr import Call, Expr, Function, GlobalVar
from kernelyard.ir.module import PRIVATE, IRModule
from kernelyard.ir.op import Op
from kernelyard.ir.scopes import fits
from kernelyard.ir.types import FunctionType, TensorType, TupleType, Type, substitute, tensors_of

IF = "if"
WHILE = "while"
MAKE_CLOSURE = "make_closure"
INVOKE_CLOSURE = "invoke_closure"
# With how many functions of the module come before the other operands.
CONTROL_FLOW = {IF: 2, WHILE: 2, MAKE_CLOSURE: 1, INVOKE_CLOSURE: 0}
COLLECTED = "collected"
BOOL = TensorType((), "bool")


@dataclass(frozen=True)
class Misfit:
    """A rejected call: the problem, the value found, the value expected."""

    message: str
    found: object = None
    expected: object = None


def is_control_flow(value: Expr) -> bool:
    """Return True for branches and loops, and for what makes and invokes closures."""
    return isinstance(value, Call) and isinstance(value.op, Op) and value.op.name in CONTROL_FLOW


def operands_after_functions(call: Call) -> tuple[Expr, ...]:
    """Return the operands of a control-flow call that are values."""
    return call.args[CONTROL_FLOW[call.op_name] :]


def misfit_of(call: Call, module: IRModule, known: Collection[str]) -> Misfit | None:
    """Return the first fault of a control-flow call, or None; `known` are the symbols defined at the call."""
    count = CONTROL_FLOW[call.op_name]
    callees = [arg for arg in call.args[:count] if isinstance(arg, GlobalVar)]
    if len(callees) != count:
        what = "operand of {} must be a function" if count == 1 else "two operands of {} must be functions"
        return Misfit(f"the first {what.format(call.op_name)} of the module", repr(call.args[:count]))
    functions: list[Function] = []
    for callee in callees:
        function = module.functions.get(callee.name)
        if not isinstance(function, Function):
            return Misfit(f"the module has no graph-level function {callee!r}")
        functions.append(function)
    rules = {IF: _if, WHILE: _while, MAKE_CLOSURE: _make_closure, INVOKE_CLOSURE: _invoke_closure}
    return rules[call.op_name](call, functions, known)


def _if(call: Call, branches: Sequence[Function], known: Collection[str]) -> Misfit | None:
    condition, *args = call.args[2:]
    if condition.type != BOOL:
        return Misfit("the condition must be a bool scalar", repr(condition.type), repr(BOOL))
    for name, branch in zip(call.args, branches, strict=False):
        bound: dict[str, Dim] = {}
        misfit = _arguments(repr(name), branch, args, known, bound)
        if misfit is None and not _fits(call.type, substitute(branch.result_type, bound), known):
            misfit = Misfit(f"{name!r} must return the type of the call", repr(branch.result_type), repr(call.type))
        if misfit is not None:
            return misfit
    return None


def _while(call: Call, functions: Sequence[Function], known: Collection[str]) -> Misfit | None:
    condition, body = functions
    params = [param.type for param in body.params]
    results = body.result_type.fields if isinstance(body.result_type, TupleType) else (body.result_type,)
    if not 0 <= call.attrs[COLLECTED] == len(results) - len(params):
        found = f"{len(params)} parameters, {len(results)} results"
        return Misfit(f"{call.args[1]!r} returns the wrong number of values", found, f"{call.attrs[COLLECTED]} more")
    items = [tensor for item in results[len(params) :] for tensor in tensors_of(item)]
    for name, function in zip(call.args, functions, strict=False):
        misfit = _arguments(repr(name), function, call.args[2:], known, {})
        if misfit is not None:
            return misfit
    if condition.result_type != BOOL:
        return Misfit(f"{call.args[0]!r} must return a bool scalar", repr(condition.result_type), repr(BOOL))
    if not _fits(as_one(params), as_one(results[: len(params)]), known):
        return Misfit(f"{call.args[1]!r} must return the types of its parameters", repr(body.result_type), repr(params))
    return _stacks(call, as_one([*params, *items]), len(items), known)


def _stacks(call: Call, given: Type, collected: int, known: Collection[str]) -> Misfit | None:
    """Return the fault of a loop's stated type, or None; its stacked results have one more axis than the body's."""
    stated = list(tensors_of(call.type))
    flat = [TensorType(t.shape[1:], t.dtype) if t.rank else t for t in stated[len(stated) - collected :]]
    expected = tensors_of(given)
    if len(stated) == len(expected) and isinstance(call.type, TupleType) == isinstance(given, TupleType):
        one = TupleType((*stated[: len(stated) - collected], *flat))
        if all(t.rank for t in stated[len(stated) - collected :]) and _fits(one, TupleType(expected), known):
            return None
    return Misfit(f"{call.args[1]!r} must return the type of the call", repr(call.type), repr(given))


def _make_closure(call: Call, functions: Sequence[Function], known: Collection[str]) -> Misfit | None:
    (function,) = functions
    if not isinstance(call.type, FunctionType):
        return Misfit("a closure must have a function type", repr(call.type))
    if not function.attrs.get(PRIVATE):
        return Misfit(f"{call.args[0]!r} is no private function", expected=f"the attribute {PRIVATE!r}")
    captured, params = call.args[1:], [param.type for param in function.params]
    own = FunctionType(tuple(params[len(captured) :]), function.result_type)
    given, taken = (TupleType(tuple(types)) for types in ((a.type for a in captured), params[: len(captured)]))
    bound: dict[str, Dim] = {}
    if len(captured) > len(params) or not _fits(taken, given, known, bound):
        return Misfit(f"{call.args[0]!r} cannot capture values of these types", repr(given.fields), repr(taken.fields))
    if substitute(own, bound) != call.type:
        return Misfit(f"{call.args[0]!r} has another signature than the closure", repr(own), repr(call.type))
    return None


def _invoke_closure(call: Call, functions: Sequence[Function], known: Collection[str]) -> Misfit | None:
    closure = call.args[0].type if call.args else None
    if not isinstance(closure, FunctionType):
        return Misfit("the callee of invoke_closure must be a closure", repr(closure), "a value of a function type")
    given, taken = TupleType(tuple(arg.type for arg in call.args[1:])), TupleType(closure.params)
    bound: dict[str, Dim] = {}
    if not _fits(taken, given, known, bound):
        return Misfit("the closure is called with arguments of the wrong types", repr(given.fields), repr(taken.fields))
    if not _fits(call.type, substitute(closure.result, bound), known):
        return Misfit("the closure must return the type of the call", repr(closure.result), repr(call.type))
    return None


def _arguments(
    name: str, function: Function, args: Sequence[Expr], known: Collection[str], bound: dict[str, Dim]
) -> Misfit | None:
    given, taken = TupleType(tuple(a.type for a in args)), TupleType(tuple(p.type for p in function.params))
    if len(given.fields) == len(taken.fields) and _fits(taken, given, known, bound):
        return None
    return Misfit(f"{name} is called with arguments of the wrong types", repr(given.fields), repr(taken.fields))


def _fits(declared: Type, given: Type, known: Collection[str], bound: dict[str, Dim] | None = None) -> bool:
    return fits(declared, given, known, {} if bound is None else bound)


def as_one(types: Sequence[Type]) -> Type:
    """Return the type of one value, or of the tuple of several."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))
