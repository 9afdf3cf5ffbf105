"""Composite functions: a match lifted into a function of its own, with typed attributes and named operands.

The attribute "captures" says where each captured operand is: {"weight": (0, 1)} is operand 1 of binding 0, and
{"convolution": (0, -1)} is the value of binding 0. Codegen reads them with `captured_operands`; nothing is looked up
by a variable's name, and the pattern need not be matched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard.ir.expr import Binding, Call, Constant, Expr, Function, Tuple, Var, operands, with_operands
from kernelyard.ir.op import Op
from kernelyard.ir.printer import attribute_text
from kernelyard.patterns.matching.match_result import Match

COMPOSITE = "Composite"
SINGLE_OP = "single_op"  # True: one operator, which a rule accepted by itself
CAPTURES = "captures"
CODEGEN = "Codegen"
GLOBAL_SYMBOL = "global_symbol"
RESERVED_ATTRIBUTES = (COMPOSITE, CAPTURES, CODEGEN, GLOBAL_SYMBOL)


@dataclass(frozen=True)
class Lifted:
    """A function made of some bindings, and the operands to call it with."""

    function: Function
    arguments: tuple[Expr, ...]


def lift(
    bindings: Sequence[Binding],
    inputs: Sequence[Expr],
    outputs: Sequence[Var],
    attrs: Mapping[str, Any],
) -> Lifted:
    """Return a function of `inputs` that computes `bindings` and returns `outputs` (a tuple when there are several).

    inputs: the operands (Var, or Constant to lift as well) that become parameters. Variables of the new function are
    new.
    """
    fresh: dict[Expr, Expr] = {}
    params: list[Var] = []
    for operand in inputs:
        name, origin = (operand.name, operand.origin) if isinstance(operand, Var) else ("constant", "")
        params.append(Var(name, operand.type, origin))
        fresh[operand] = params[-1]
    moved: list[Binding] = []
    for binding in bindings:
        new = [fresh.get(operand, operand) for operand in operands(binding.value)]
        var = Var(binding.var.name, binding.var.type, binding.var.origin)
        moved.append(Binding(var, with_operands(binding.value, new)))
        fresh[binding.var] = var
    results = [fresh[output] for output in outputs]
    result = results[0] if len(results) == 1 else Tuple(results)
    return Lifted(Function(params, moved, result, attrs), tuple(inputs))


def composite_of(match: Match, name: str, attrs: Mapping[str, Any], bind_constants: bool) -> Lifted:
    """Return the composite function of a match in a function without aliases (`remove_aliases`).

    Constants stay inside unless `bind_constants` is False.
    """
    inputs = [operand for operand in match.inputs if isinstance(operand, Var) or not bind_constants]
    captures = {capture: _index_of(expr, match) for capture, expr in match.captures.items()}
    everything = {COMPOSITE: name, **({CAPTURES: captures} if captures else {}), **attrs}
    return lift(match.bindings, inputs, [match.root], everything)


def _index_of(expr: Expr, match: Match) -> tuple[int, int]:
    for i, binding in enumerate(match.bindings):
        if binding.var is expr:
            return i, -1
    for i, binding in enumerate(match.bindings):
        for j, operand in enumerate(operands(binding.value)):
            if operand is expr:
                return i, j
    raise AssertionError(f"captured {expr!r} is neither in the group nor read by it")


def captured_operands(composite: Function) -> dict[str, Expr]:
    """Map each capture of a composite to its value inside it: a parameter, a constant or a bound variable."""
    found: dict[str, Expr] = {}
    for name, (binding, operand) in composite.attrs.get(CAPTURES, {}).items():
        bound = composite.bindings[binding]
        found[name] = bound.var if operand < 0 else operands(bound.value)[operand]
    return found


def op_names(function: Function) -> tuple[str, ...]:
    """Return the names of the ops that a function calls, in order; calls of other functions are not counted."""
    values = (binding.value for binding in function.bindings)
    return tuple(value.op.name for value in values if isinstance(value, Call) and isinstance(value.op, Op))


def structural_key(function: Function) -> tuple[object, ...]:
    """Return a key that is equal for functions with the same computation and attributes, whatever their variable names.

    Constants count by their content.
    """
    numbers: dict[Expr, int] = {param: i for i, param in enumerate(function.params)}
    lines: list[object] = [tuple(param.type for param in function.params)]
    for binding in function.bindings:
        lines.append((_head(binding.value), tuple(_reference(o, numbers) for o in operands(binding.value))))
        numbers[binding.var] = len(numbers)
    result = function.result if isinstance(function.result, Tuple) else Tuple([function.result])
    lines.append((type(function.result).__name__, tuple(_reference(o, numbers) for o in result.fields)))
    lines.append(attribute_text(dict(sorted(function.attrs.items()))))
    return tuple(lines)


def _head(value: Expr) -> tuple[object, ...]:
    if isinstance(value, Call):
        attrs = attribute_text(dict(value.attrs)) if value.attrs else ""
        return type(value.op), value.op_name, attrs, value.type
    return type(value), getattr(value, "index", None), value.type


def _reference(operand: Expr, numbers: Mapping[Expr, int]) -> object:
    if isinstance(operand, Constant):
        return operand.digest
    return numbers[operand] if operand in numbers else repr(operand)
