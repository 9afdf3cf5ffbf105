"""Value numbering of a function: the same operator or function, operands and attributes give the same result."""

from __future__ import annotations

from collections.abc import Hashable

from kernelyard.ir.expr import Call, Constant, Expr, ExternFunc, Function, GlobalVar, TupleGetItem, Var, operands
from kernelyard.ir.op import Op
from kernelyard.ir.purity import Purity
from kernelyard.ir.visitor import FunctionMutator

_SAMPLES = 64  # numbers of a constant that are looked at before all are


def merge_equal_values(function: Function, purity: Purity) -> Function:
    """Return the function with each value that equals one bound before replaced by it; the same object when there is
    none.

    Operands of commutative operators may be swapped. What has effects is left alone.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> x = b.input("x", (2,))
        >>> f = b.function(b.op("add", b.op("tanh", x), b.op("tanh", x)))
        >>> [binding.value.op_name for binding in merge_equal_values(f, Purity(IRModule())).bindings]
        ['tanh', 'add']
    """
    return _Merger(purity).mutate(function)


class _Merger(FunctionMutator):
    def __init__(self, purity: Purity) -> None:
        super().__init__()
        self._purity = purity
        self._known: dict[Hashable, Var] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, (Call, TupleGetItem)) or not self._purity.is_pure(value):
            return value
        key = (type(value), _head(value), _operand_keys(value), value.type)
        known = self._known.setdefault(key, var)
        return value if known is var else known


class _Content:
    """A constant that is compared by its content: by all of it only where a sample agrees."""

    def __init__(self, constant: Constant) -> None:
        data = constant.data
        self._constant = constant
        self._sample = (constant.type, data.flat[:: max(1, data.size // _SAMPLES)].tobytes())

    def __hash__(self) -> int:
        return hash(self._sample)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content) or self._sample != other._sample:
            return False
        return self._constant is other._constant or self._constant.digest == other._constant.digest

    def __repr__(self) -> str:  # orders operands: the same for equal contents
        return repr(self._sample)


def _head(value: Call | TupleGetItem) -> Hashable:
    if isinstance(value, TupleGetItem):
        return value.index
    # Attribute values are compared as they are written: 1, 1.0 and True are different, and so are 0.0 and -0.0.
    return (type(value.op), value.op.name, tuple((name, repr(item)) for name, item in value.attrs.items()))


def _operand_keys(value: Expr) -> tuple[Hashable, ...]:
    keys = [_operand_key(operand) for operand in operands(value)]
    if isinstance(value, Call) and isinstance(value.op, Op) and value.op.commutative:
        keys.sort(key=repr)
    return tuple(keys)


def _operand_key(operand: Expr) -> tuple[str, Hashable]:
    if isinstance(operand, Constant):
        return ("constant", _Content(operand))
    if isinstance(operand, GlobalVar):
        return ("function", operand.name)
    if isinstance(operand, ExternFunc):
        return ("extern", operand.symbol)
    return ("value", id(operand))
