"""FunctionBuilder: how frontends, passes and tests write functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.dims import Dim
from kernelyard.ir.control_flow import COLLECTED, IF, INVOKE_CLOSURE, MAKE_CLOSURE, WHILE
from kernelyard.ir.expr import Binding, Call, Callee, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from kernelyard.ir.lambda_lifting import lift
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.op import NO_ATTRIBUTES, Attributes, get_op
from kernelyard.ir.types import FunctionType, TensorType, Type


class FunctionBuilder:
    """Collects bindings in order and names variables uniquely.

    lifted: the functions that `closure` made; they belong into the module beside the function.

    Example:
        >>> import kernelyard.ops
        >>> b = FunctionBuilder()
        >>> x = b.input("x", (4, 8))
        >>> y = b.op("nn.relu", x)
        >>> f = b.function(y)
        >>> f.result_type
        Tensor[(4, 8), float32]
    """

    def __init__(self) -> None:
        self.lifted: dict[str, Function] = {}
        self.params: list[Var] = []
        self.bindings: list[Binding] = []
        # How many numbers each name was tried with, so that many equal names stay linear.
        self._names: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Var:
        """Add a parameter."""
        return self.parameter(TensorType(tuple(shape), dtype), name)

    def parameter(self, type_: Type, name: str = "p") -> Var:
        """Add a parameter of any type."""
        var = Var(self._fresh(name), type_)
        self.params.append(var)
        return var

    def bind(self, value: Expr, name: str = "lv", origin: str = "") -> Var:
        """Bind a value to a new variable."""
        var = Var(self._fresh(name), value.type, origin)
        self.bindings.append(Binding(var, value))
        return var

    def op(self, name: str, *args: Expr | np.ndarray | float | int, origin: str = "", **attrs: Any) -> Var:
        """Bind a call of the op of that name; arrays and numbers become constants.

        A number takes the dtype of the first tensor argument.
        """
        tensors = [arg for arg in args if isinstance(arg, Expr)]
        dtype = tensors[0].tensor_type.dtype if tensors else "float32"
        return self.bind(Call(get_op(name), [_as_expr(arg, dtype) for arg in args], attrs), origin=origin)

    def call(
        self, callee: Callee, args: Sequence[Expr], type_: Type | None = None, attrs: Attributes = NO_ATTRIBUTES
    ) -> Var:
        """Bind a call of an op or of a module function."""
        return self.bind(Call(callee, args, attrs, type_))

    def call_function(self, name: str, args: Sequence[Expr], type_: Type) -> Var:
        """Bind a call of the module's function `name`, whose result type is `type_`."""
        return self.call(GlobalVar(name), args, type_)

    def if_(self, condition: Expr, then_branch: str, else_branch: str, args: Sequence[Expr], type_: Type) -> Var:
        """Bind the result of the module's function `then_branch` or `else_branch`, given `args`."""
        branches = GlobalVar(then_branch), GlobalVar(else_branch)
        return self.bind(Call(get_op(IF), [*branches, condition, *args], type_=type_))

    def while_(self, condition: str, body: str, args: Sequence[Expr], type_: Type, collected: int = 0) -> Var:
        """Bind what the module's function `body` makes of `args` again and again, while `condition` holds for them.

        The last `collected` results of the body are stacked instead of going into the next turn.
        """
        functions = GlobalVar(condition), GlobalVar(body)
        return self.bind(Call(get_op(WHILE), [*functions, *args], {COLLECTED: collected}, type_))

    def make_closure(self, name: str, captured: Sequence[Expr], type_: FunctionType) -> Var:
        """Bind the module's private function `name` with its first arguments given."""
        return self.bind(Call(get_op(MAKE_CLOSURE), [GlobalVar(name), *captured], type_=type_))

    def invoke_closure(self, closure: Expr, args: Sequence[Expr], type_: Type | None = None) -> Var:
        """Bind what a closure gives for `args`; `type_`: with other names for its sizes than the closure's own type."""
        stated = type_ or (closure.type.result if isinstance(closure.type, FunctionType) else closure.type)
        return self.bind(Call(get_op(INVOKE_CLOSURE), [closure, *args], type_=stated))

    def closure(self, name: str, inner: FunctionBuilder, *results: Expr) -> Var:
        """Bind a function that is written inside this one, by a builder of its own, and may read this one's variables.

        It is lifted: `lifted` has a private function of that name, with a parameter more for each variable that it
        reads of those around it.

        Example:
            >>> import kernelyard.ops
            >>> from kernelyard.ir import IRModule
            >>> b, inner = FunctionBuilder(), FunctionBuilder()
            >>> x, y = b.input("x", (2,)), inner.input("y", (2,))
            >>> add_x = b.closure("add_x", inner, inner.op("add", x, y))
            >>> module = IRModule({"main": b.function(b.invoke_closure(add_x, [x])), **b.lifted})
            >>> module["add_x"].params
            (%x, %y)
        """
        function = inner.function(*results, attrs={PRIVATE: True})
        lifted, captured = lift(function)
        self.lifted |= {**inner.lifted, name: lifted}
        type_ = FunctionType(tuple(param.type for param in function.params), function.result_type)
        return self.make_closure(name, captured, type_)

    def tuple(self, *fields: Expr) -> Var:
        """Bind a tuple."""
        return self.bind(Tuple(fields))

    def get(self, tuple_value: Expr, index: int) -> Var:
        """Bind one field of a tuple."""
        return self.bind(TupleGetItem(tuple_value, index))

    def function(self, *results: Expr, attrs: Mapping[str, Any] = NO_ATTRIBUTES) -> Function:
        """Return the finished function; several results are returned as a tuple."""
        result = results[0] if len(results) == 1 else Tuple(results)
        return Function(self.params, self.bindings, result, attrs)

    def _fresh(self, wanted: str) -> str:
        name = wanted
        while name in self._names:
            self._names[wanted] += 1
            name = f"{wanted}_{self._names[wanted]}"
        self._names[name] = 0
        return name


def _as_expr(value: Expr | np.ndarray | float | int, dtype: str) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float)):
        from kernelyard.dtypes import to_numpy

        return Constant(np.asarray(value, to_numpy(dtype)))
    return Constant(value)
