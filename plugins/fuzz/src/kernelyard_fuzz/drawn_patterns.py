"""Oracle of matching: patterns drawn from a graph match where a plain search says so, and nowhere else.

A pattern is made of a value and of what it is computed from, down to a random depth. Then something of it is another
one in half of the cases: an attribute, an operator, a result of several, a number, two operands of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, IRModule, Op, TupleGetItem, Var, get_op
from kernelyard.patterns import Matcher, is_const, is_op, is_var, wildcard
from kernelyard.patterns.language.constructors import is_expr
from kernelyard.patterns.language.pattern import (
    AttrPattern,
    CallPattern,
    ConstantPattern,
    DtypePattern,
    ExprPattern,
    OrPattern,
    Pattern,
    TupleGetItemPattern,
    VarPattern,
)
from kernelyard.patterns.language.pattern_parts import walk
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.legal import Uses, check_legal
from kernelyard_fuzz.spliced import check_match

DEEPEST = 3  # calls below each other
DRAWN = 4  # patterns of one graph
OTHER_OPS = ("add", "subtract", "multiply", "nn.relu", "negative", "tanh", "maximum")
SCALAR = 8  # elements of a constant that is named by its number, at most
Values = Mapping[Var, Expr]
Known = Mapping[Pattern, Expr]


def check_drawn(chooser: Chooser, module: IRModule) -> None:
    """Match patterns drawn from a graph. Raises: FoundError."""
    main = module["main"]
    assert isinstance(main, Function)
    uses = Uses.of(main)
    values = uses.values
    roots = [var for var, value in values.items() if isinstance(value, (Call, TupleGetItem)) and _is_plain(value)]
    matcher = Matcher(main)
    for _ in range(DRAWN if roots else 0):
        root = chooser.pick(roots)
        pattern = _Drawing(chooser, values).draw(root, DEEPEST)
        if any(isinstance(part, CallPattern) and part.quotients for part in walk(pattern)):
            continue  # a product over a number has other forms, too
        wanted = next(fits(pattern, root, values, {}), None)
        found = matcher.match(pattern, root)
        if (wanted is None) != (found is None):
            raise FoundError("drawn pattern", "values", f"{'no match' if found is None else 'a match'} of {root!r}")
        if found is not None:
            check_match("drawn", root, found, values)
            check_legal("drawn", found, uses)


def _is_plain(value: Expr) -> bool:
    return not isinstance(value, Call) or isinstance(value.op, Op)


# --- drawing ----------------------------------------------------------------------------------------------------------
class _Drawing:
    """One pattern that is drawn, and the parts that stand for values so far."""

    def __init__(self, chooser: Chooser, values: Values) -> None:
        self.chooser, self.values = chooser, values
        self.parts: dict[Expr, Pattern] = {}
        self.changes = 1 if chooser.chance(50) else 0  # that are left

    def draw(self, expr: Expr, depth: int) -> Pattern:
        """Return a pattern of a value; mostly the same one for the same value."""
        if expr in self.parts and self.chooser.chance(80):
            return self.parts[expr]
        if self.parts and self._changes(10):
            return self.chooser.pick(list(self.parts.values()))  # two operands of one part
        made = self.parts[expr] = self._draw_new(expr, depth)
        return made

    def _changes(self, percent: int) -> bool:
        """Return True where something is to be another one."""
        if not self.changes or not self.chooser.chance(percent):
            return False
        self.changes -= 1
        return True

    def _draw_new(self, expr: Expr, depth: int) -> Pattern:
        value = self.values.get(expr) if isinstance(expr, Var) else None
        if isinstance(expr, Constant):
            return self._constant(expr)
        if value is None or depth == 0 or not _is_plain(value) or self.chooser.chance(15):
            return self.chooser.pick((wildcard, wildcard, is_var, lambda: is_expr(expr)))()
        if isinstance(value, TupleGetItem):
            index = value.index + 1 if self._changes(40) else value.index
            return self.draw(value.tuple_value, depth)[None if self.chooser.chance(10) else index]
        return self._call(value, depth) if isinstance(value, Call) else wildcard()

    def _call(self, call: Call, depth: int) -> Pattern:
        assert isinstance(call.op, Op)
        operands = [self.draw(arg, depth - 1) for arg in call.args]
        if len(operands) == 2 and self.chooser.chance(20):
            operands.reverse()
        if self._changes(20):
            made: Pattern = CallPattern((self._other_op(call, len(operands)),), tuple(operands), False)
        else:
            made = self._with_attribute(call, self._of_operands(call, operands))
        if self.chooser.chance(15):
            made = is_op(self.chooser.pick(("nn.relu", "tanh")))(wildcard()) | made
        return made

    def _other_op(self, call: Call, count: int) -> str:
        """Return the name of another operator of as many operands, where one is known."""
        others = [each for each in OTHER_OPS if len(get_op(each).inputs) == count and each != call.op_name]
        return self.chooser.pick(others) if others else call.op_name

    def _of_operands(self, call: Call, operands: list[Pattern]) -> Pattern:
        """Return a call of these operands, or of all but the last, where the others are mostly free."""
        if len(operands) > 1 and self.chooser.chance(15):
            return CallPattern((call.op_name,), tuple(operands[:-1]), self.chooser.chance(70))
        return CallPattern((call.op_name,), tuple(operands), False)

    def _with_attribute(self, call: Call, made: Pattern) -> Pattern:
        if not call.attrs or not self.chooser.chance(60):
            return made
        name = self.chooser.pick(tuple(call.attrs))
        return AttrPattern(made, ((name, "another" if self._changes(30) else call.attrs[name]),))

    def _constant(self, constant: Constant) -> Pattern:
        data = constant.data
        if data.dtype.kind in "iuf" and 0 < data.size <= SCALAR and self.chooser.chance(50):
            return is_const(float(data.reshape(-1)[0]) + (1 if self._changes(30) else 0))
        if self._changes(30):
            return is_expr(Constant(np.zeros_like(data)))
        return self.chooser.pick((is_const, wildcard, is_var, lambda: is_expr(constant)))()


# --- the plain search -------------------------------------------------------------------------------------------------
def fits(pattern: Pattern, expr: Expr, values: Values, known: Known) -> Iterator[Known]:
    """Yield, for each way in which a pattern matches a value, what its parts stand for.

    known: what parts stand for already: a part that occurs twice stands for one value.
    """
    if pattern in known:
        if _is_same(known[pattern], expr):
            yield known
        return
    value = values.get(expr, expr) if isinstance(expr, Var) else expr
    for found in _PARTS.get(type(pattern), _anything)(pattern, expr, value, values, known):
        yield {**found, pattern: expr}


def _anything(pattern: Pattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    yield known


def _var(pattern: Pattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    return iter([known] if isinstance(expr, Var) else [])


def _expr(pattern: ExprPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    return iter([known] if _is_same(pattern.expr, expr) else [])


def _number(pattern: ConstantPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    if not isinstance(expr, Constant):
        return
    wanted = pattern.value
    if wanted is None or (expr.data.size and np.allclose(expr.data.astype(np.float64), wanted, pattern.rtol, 0.0)):
        yield known


def _either(pattern: OrPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    yield from fits(pattern.left, expr, values, known)
    yield from fits(pattern.right, expr, values, known)


def _item(pattern: TupleGetItemPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    if isinstance(value, TupleGetItem) and (pattern.index is None or pattern.index == value.index):
        yield from fits(pattern.tuple_value, value.tuple_value, values, known)


def _attribute(pattern: AttrPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    if isinstance(value, Call) and all(name in value.attrs and value.attrs[name] == v for name, v in pattern.attrs):
        yield from fits(pattern.pattern, expr, values, known)


def _dtype(pattern: DtypePattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    if expr.tensor_type.dtype in pattern.dtypes:
        yield from fits(pattern.pattern, expr, values, known)


def _call(pattern: CallPattern, expr: Expr, value: Expr, values: Values, known: Known) -> Iterator[Known]:
    if not isinstance(value, Call) or not isinstance(value.op, Op) or value.op_name not in (pattern.ops or ()):
        return
    more = len(value.args) - len(pattern.args)
    if more < 0 or (more and not pattern.varargs):
        return
    operands = value.args[: len(pattern.args)]
    yield from _all(pattern.args, operands, values, known)
    if value.op.commutative and len(operands) == 2:
        yield from _all(pattern.args, operands[::-1], values, known)


def _all(patterns: Sequence[Pattern], exprs: Sequence[Expr], values: Values, known: Known) -> Iterator[Known]:
    if not patterns:
        yield known
        return
    for found in fits(patterns[0], exprs[0], values, known):
        yield from _all(patterns[1:], exprs[1:], values, found)


def _is_same(one: Expr, other: Expr) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return one.type == other.type and one.data.tobytes() == other.data.tobytes()
    return one is other


_PARTS: Mapping[type[Pattern], Callable[..., Iterator[Known]]] = {
    VarPattern: _var,
    ExprPattern: _expr,
    ConstantPattern: _number,
    OrPattern: _either,
    TupleGetItemPattern: _item,
    AttrPattern: _attribute,
    DtypePattern: _dtype,
    CallPattern: _call,
}
