"""Expressions of the graph-level IR, in A-normal form: every value is bound to a variable exactly once.

A `Function` is a list of bindings and a result; a binding's value is a `Call`, a `Tuple`, a `TupleGetItem` or a
plain value (`Var`, `Constant`). Branches and bodies of loops are functions of the module, which the operators `if` and
`while` take as operands. Expressions compare by identity; nothing is changed after it is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.errors import IRError
from kernelyard.ir.op import NO_ATTRIBUTES, Attributes, Op
from kernelyard.ir.types import TensorType, TupleType, Type
from kernelyard.runtime.abi.memory import give_back_pages

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


class Expr:
    """Base of all expressions; `type` is always known."""

    type: Type

    @property
    def tensor_type(self) -> TensorType:
        """The type, which must be a tensor's.

        Raises: IRError.
        """
        if not isinstance(self.type, TensorType):
            raise IRError("a tensor is needed here", found=repr(self.type))
        return self.type


class Var(Expr):
    """A variable. `name` is a label for people: identity is the object's own. `origin` says where it came from
    (the model's node), for messages."""

    def __init__(self, name: str, type_: Type, origin: str = "") -> None:
        self.name = name
        self.type = type_
        self.origin = origin

    def __repr__(self) -> str:
        return f"%{self.name}"


class Constant(Expr):
    """A tensor that is known at compile time; `data` is made read-only."""

    _ahead: Future[str] | None = None

    def __init__(self, data: np.ndarray | np.generic | float | int | bool) -> None:
        array = np.asarray(data)
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        self.data: np.ndarray = array
        self.type = TensorType(tuple(array.shape), dtypes.from_numpy(array.dtype))

    @cached_property
    def digest(self) -> str:
        """The name of the content: equal constants have equal digests."""
        return self._ahead.result() if self._ahead is not None else self._hash()

    def hash_ahead(self, executor: Executor) -> None:
        """Have an executor compute the digest, for `digest` to wait for, unless that has begun already."""
        if self._ahead is None and "digest" not in self.__dict__:
            self._ahead = executor.submit(self._hash)

    def _hash(self) -> str:
        header = f"{self.tensor_type.dtype}{self.data.shape}".encode()
        content = hashlib.sha256(header)
        content.update(np.ascontiguousarray(self.data).reshape(-1).view(np.uint8).data)  # no copy of large weights
        give_back_pages(self.data)
        return content.hexdigest()

    def __repr__(self) -> str:
        return f"Constant({self.type!r})"


class GlobalVar(Expr):
    """A reference to a function of the module, by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.type = TupleType(())

    def __repr__(self) -> str:
        return f"@{self.name}"


class ExternFunc(Expr):
    """A function of an attached RuntimeModule, by symbol."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.type = TupleType(())

    def __repr__(self) -> str:
        return f"extern {self.symbol}"


class Tuple(Expr):
    """Several values as one."""

    def __init__(self, fields: Sequence[Expr]) -> None:
        self.fields = tuple(fields)
        self.type = TupleType(tuple(field.type for field in self.fields))


class TupleGetItem(Expr):
    """One field of a tuple."""

    def __init__(self, tuple_value: Expr, index: int) -> None:
        if not isinstance(tuple_value.type, TupleType) or not 0 <= index < len(tuple_value.type.fields):
            raise IRError("the index is out of the tuple's range", found=f"index {index} of {tuple_value.type!r}")
        self.tuple_value = tuple_value
        self.index = index
        self.type = tuple_value.type.fields[index]


Callee: TypeAlias = "Op | GlobalVar"


class Call(Expr):
    """An operator, or a function of the module, applied to arguments.

    The type of an op call is inferred; calls of functions and of ops with `opaque_type` state it (`type_`).
    Raises: AttributeTypeError, TypeInferenceError, IRError.
    """

    def __init__(
        self, op: Callee, args: Sequence[Expr], attrs: Attributes = NO_ATTRIBUTES, type_: Type | None = None
    ) -> None:
        self.op = op
        self.args = tuple(args)
        if isinstance(op, Op):
            _check_arity(op, len(self.args))
            self.attrs: Attributes = op.check_attributes(attrs)
            if not op.opaque_type:
                type_ = op.infer_type([arg.tensor_type for arg in self.args], self.attrs)
        else:
            self.attrs = MappingProxyType(dict(attrs))
        if type_ is None:
            raise IRError("the result type of this call must be given", where=repr(op))
        self.type = type_

    @property
    def op_name(self) -> str:
        """The operator's or function's name, for messages and indexes."""
        return self.op.name


def _check_arity(op: Op, count: int) -> None:
    least, most = op.arity
    if count < least or (most is not None and count > most):
        raise IRError(f"{op.name} has the wrong number of arguments", found=count, expected=op.arity_text)


class Binding:
    """`var = value`."""

    __slots__ = ("value", "var")

    def __init__(self, var: Var, value: Expr) -> None:
        self.var = var
        self.value = value


class BaseFunction:
    """Base of the functions of a module: a graph-level `Function` or a loop-level `PrimFunc` (kernelyard.tir)."""

    attrs: Mapping[str, Any]


class Function(BaseFunction):
    """A graph-level function: parameters, bindings in order, one result expression (a Var, Constant or Tuple).

    Attributes used by the core: "Composite" (pattern name), "Codegen" (backend name) with "global_symbol", and
    "private" (True for a function that only functions of its module call).
    """

    def __init__(
        self, params: Sequence[Var], bindings: Sequence[Binding], result: Expr, attrs: Mapping[str, Any] = NO_ATTRIBUTES
    ) -> None:
        self.params = tuple(params)
        self.bindings = tuple(bindings)
        self.result = result
        self.attrs = MappingProxyType(dict(attrs))

    @property
    def result_type(self) -> Type:
        return self.result.type

    def with_attrs(self, **attrs: Any) -> Function:
        """Return the same function with attributes added or replaced."""
        return Function(self.params, self.bindings, self.result, {**self.attrs, **attrs})


def operands(value: Expr) -> tuple[Expr, ...]:
    """Return the expressions that a binding's value reads, GlobalVars and ExternFuncs included as they stand."""
    if isinstance(value, Call):
        return value.args
    if isinstance(value, Tuple):
        return value.fields
    if isinstance(value, TupleGetItem):
        return (value.tuple_value,)
    return (value,) if isinstance(value, (Var, Constant)) else ()


def with_operands(value: Expr, new: Sequence[Expr]) -> Expr:
    """Rebuild `value` with other operands; infer its type again unless the type is stated."""
    if isinstance(value, Call):
        return Call(value.op, new, value.attrs, value.type)
    if isinstance(value, Tuple):
        return Tuple(new)
    if isinstance(value, TupleGetItem):
        return TupleGetItem(new[0], value.index)
    return new[0] if new else value


def replace_operands(value: Expr, new: Mapping[Expr, Expr]) -> Expr:
    """Replace the operands of `value`; return `value` itself if none changes."""
    old = operands(value)
    for operand in old:
        if operand in new:
            return with_operands(value, [new.get(each, each) for each in old])
    return value
