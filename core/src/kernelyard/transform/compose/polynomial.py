"""Polynomials with numeric coefficients, and how arithmetic in a function is read as one.

Recognisers compare normal forms instead of spellings: `0.5 * x * (1 + e)`, `x * (e / 2 + 0.5)` and every other way of
writing it are the polynomial `{("x",): 0.5, ("e", "x"): 0.5}` of the values called "x" and "e".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from kernelyard.ir import Call, Expr, FunctionMutator, Var
from kernelyard.transform.pass_infra.rewrite_rule import uniform_value

Monomial: TypeAlias = "tuple[str, ...]"
Polynomial: TypeAlias = "Mapping[Monomial, float]"

MAX_NODES = 24
MAX_TERMS = 12
MAX_DEGREE = 6

ONE: Monomial = ()
# How far a coefficient may be from the exact one, relatively: models are written with some 5 to 7 digits, in the dtype.
TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}

ARITHMETIC = ("add", "subtract", "multiply", "divide", "negative", "square", "power")


def scalar(value: float) -> Polynomial:
    """Return the constant polynomial."""
    return {ONE: value} if value else {}


def add(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return the sum of two polynomials."""
    total = dict(left)
    for monomial, coefficient in right.items():
        total[monomial] = total.get(monomial, 0.0) + coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return the product of two polynomials."""
    total: dict[Monomial, float] = {}
    for a, x in left.items():
        for b, y in right.items():
            monomial = tuple(sorted(a + b))
            total[monomial] = total.get(monomial, 0.0) + x * y
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def is_close(found: Polynomial | None, expected: Polynomial, dtype: str) -> bool:
    """Return True when both have the same monomials, and coefficients that agree to the accuracy of written
    constants."""
    if found is None or found.keys() != expected.keys():
        return False
    tolerance = TOLERANCES.get(dtype, 0.0)
    return all(abs(found[m] - c) <= tolerance * abs(c) for m, c in expected.items())


def constant_of(polynomial: Polynomial) -> float | None:
    """Return the value of a constant polynomial, None for others."""
    return polynomial.get(ONE, 0.0) if all(monomial == ONE for monomial in polynomial) else None


class PolynomialReader:
    """Reads expressions as polynomials of `atoms`.

    `leaf` is asked for everything that is neither an atom, nor a number, nor arithmetic; None means "not a polynomial".
    One reader visits a bounded number of bindings, so that a pass that tries every binding stays linear.
    """

    def __init__(
        self,
        mutator: FunctionMutator,
        atoms: Mapping[Expr, str],
        leaf: Callable[[PolynomialReader, Expr], Polynomial | None] | None = None,
    ) -> None:
        self._mutator = mutator
        self._atoms = atoms
        self._leaf = leaf
        self._known: dict[Expr, Polynomial | None] = {}

    def read(self, expr: Expr) -> Polynomial | None:
        """Return the polynomial that `expr` computes."""
        if expr in self._atoms:
            return {(self._atoms[expr],): 1.0}
        value = uniform_value(expr)
        if value is not None:
            return scalar(float(value))
        if not isinstance(expr, Var):
            return None
        if expr not in self._known:
            if len(self._known) >= MAX_NODES:
                return None
            self._known[expr] = None
            self._known[expr] = self._read_value(expr)
        return self._known[expr]

    def read_call(self, call: Call) -> Polynomial | None:
        """Return the polynomial of a call that is not bound yet."""
        operation = _OPERATIONS.get(call.op_name)
        operands = [self.read(arg) for arg in call.args] if operation else []
        known = [operand for operand in operands if operand is not None]
        if operation is None or len(known) != len(operands):
            return None
        return _limit_terms(operation(*known))

    def _read_value(self, var: Var) -> Polynomial | None:
        value = self._mutator.value_of(var)
        result = self.read_call(value) if isinstance(value, Call) else None
        return result if result is not None or self._leaf is None else self._leaf(self, var)


def _limit_terms(polynomial: Polynomial | None) -> Polynomial | None:
    if polynomial is None or len(polynomial) > MAX_TERMS or any(len(m) > MAX_DEGREE for m in polynomial):
        return None
    return polynomial if all(np.isfinite(c) for c in polynomial.values()) else None


def _divide(left: Polynomial, right: Polynomial) -> Polynomial | None:
    divisor = constant_of(right)
    return multiply(left, scalar(1 / divisor)) if divisor else None


def _power(base: Polynomial, exponent: Polynomial) -> Polynomial | None:
    times = constant_of(exponent)
    if times not in (1.0, 2.0, 3.0, 4.0):
        return None
    result = base
    for _ in range(int(times) - 1):
        result = multiply(result, base)
    return result


_OPERATIONS: dict[str, Callable[..., Polynomial | None]] = {
    "add": add,
    "subtract": lambda a, b: add(a, multiply(b, scalar(-1.0))),
    "multiply": multiply,
    "divide": _divide,
    "negative": lambda a: multiply(a, scalar(-1.0)),
    "square": lambda a: multiply(a, a),
    "power": _power,
}


def arithmetic_leaves(mutator: FunctionMutator, roots: tuple[Expr, ...]) -> tuple[list[Var], list[Var]]:
    """Return the variables below some expressions: those bound to arithmetic, and those that it is applied to.

    Nearest first, bounded in number. A variable bound to arithmetic may be an operand of a larger formula as well as
    its base, so callers try both.
    """
    inner: list[Var] = []
    leaves: list[Var] = []
    waiting, seen = list(roots), set()
    while waiting and len(seen) < MAX_NODES:
        expr = waiting.pop(0)
        if not isinstance(expr, Var) or expr in seen:
            continue
        seen.add(expr)
        value = mutator.value_of(expr)
        if isinstance(value, Call) and value.op_name in ARITHMETIC:
            inner.append(expr)
            waiting.extend(value.args)
        else:
            leaves.append(expr)
    return inner, leaves
