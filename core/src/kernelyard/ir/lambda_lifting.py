"""Lambda lifting: a function that reads variables of the function around it gets them as parameters."""

from __future__ import annotations

from kernelyard.ir.expr import Binding, Expr, Function, Var, operands, replace_operands


def free_variables(function: Function) -> tuple[Var, ...]:
    """Return the variables that a function reads and does not bind, in order of first use."""
    bound = {*function.params, *(binding.var for binding in function.bindings)}
    values = (*(binding.value for binding in function.bindings), function.result)
    read = (operand for value in values for operand in operands(value) if isinstance(operand, Var))
    return tuple(dict.fromkeys(var for var in read if var not in bound))


def lift(function: Function) -> tuple[Function, tuple[Var, ...]]:
    """Return the function with its free variables as first parameters, and these variables."""
    free = free_variables(function)
    inner: dict[Expr, Var] = {var: Var(var.name, var.type, var.origin) for var in free}
    bindings = [Binding(b.var, replace_operands(b.value, inner)) for b in function.bindings]
    params = [*inner.values(), *function.params]
    return Function(params, bindings, replace_operands(function.result, inner), function.attrs), free
