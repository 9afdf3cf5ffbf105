"""The reference interpreter: runs any module from the operators' NumPy references alone.

It is the oracle of the tests, and the last resort of a program for which nothing generates code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.cached_property import cached_property
from kernelyard.dims import SymbolicDim
from kernelyard.errors import ExecutionError, InputNameError, InputTypeError, KernelyardError
from kernelyard.ir import (
    BaseFunction,
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    IRModule,
    Op,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.ir.control_flow import COLLECTED, IF, MAKE_CLOSURE, WHILE, is_control_flow
from kernelyard.ir.op import Attributes
from kernelyard.ir.scopes import Scopes, introduces_symbols
from kernelyard.ir.types import substitute, tensors_of
from kernelyard.runtime.abi.module import RuntimeModule, accepts_symbols
from kernelyard.runtime.abi.solve_symbols import solve_symbols, stack_items
from kernelyard.runtime.abi.spec import TensorSpec

Value: TypeAlias = "np.ndarray | tuple[Value, ...] | Closure"
Symbols: TypeAlias = "dict[str, int]"


@dataclass(frozen=True)
class Closure:
    """A function with its first arguments, and the sizes that were known where it was made."""

    function: GlobalVar
    captured: tuple[Value, ...]
    symbols: Symbols


def run(
    module: IRModule, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray], function: str = "main"
) -> list[np.ndarray]:
    """Return the outputs of a module's function.

    `inputs` are arrays in the order of the parameters, or by name ("input_names" of the function, else the
    parameters' own names). Symbolic dims are read off the inputs.
    Raises: InputNameError, InputTypeError, InputShapeError, ShapeError, ExecutionError.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("negative", b.input("x", (2,))))})
        >>> run(module, [np.ones(2, np.float32)])
        [array([-1., -1.], dtype=float32)]
    """
    entry = module[function]
    if isinstance(inputs, Mapping):
        inputs = _order_bindings(entry, inputs)
    return _flatten(call_function(entry, tuple(map(np.asarray, inputs)), module, {}))


def evaluate_attributes(attrs: Attributes, symbols: Mapping[str, int]) -> dict[str, Any]:
    """Replace symbolic dims in attributes by their values.

    Raises: ShapeError when a symbol has no value.
    """
    return {name: _evaluate(value, symbols) for name, value in attrs.items()}


def _evaluate(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, SymbolicDim):
        return dims.evaluate(value, symbols)
    return tuple(_evaluate(item, symbols) for item in value) if isinstance(value, tuple) else value


@singledispatch
def call_function(function: BaseFunction, args: Sequence[Value], module: IRModule, symbols: Symbols) -> Value:
    """Return the result of one of a module's functions; each kind of function registers how it is evaluated.

    `symbols` are the values of symbolic dims, which the caller's and the callee's types share.
    """
    raise ExecutionError(f"nothing evaluates functions of the kind {type(function).__name__}")


@call_function.register
def _(function: Function, args: Sequence[Value], module: IRModule, symbols: Symbols) -> Value:
    if len(args) != len(function.params):
        raise ExecutionError("wrong number of inputs", found=len(args), expected=len(function.params))
    symbols = dict(symbols)
    _bind_parameters(function, args, symbols)
    frame = _Frame(module, symbols, dict(zip(function.params, args, strict=True)))
    last_use = _find_last_uses(function)
    for index, binding in enumerate(function.bindings):
        frame.values[binding.var] = frame.evaluate(binding.value, binding.var)
        for var in last_use.get(index, ()):
            del frame.values[var]
    return frame.operand(function.result)


def _order_bindings(entry: BaseFunction, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    params = entry.params if isinstance(entry, Function) else ()
    names = entry.attrs.get("input_names") or [param.name for param in params]
    if set(names) != set(inputs):
        raise InputNameError("wrong input names", found=", ".join(inputs), expected=", ".join(names))
    return [inputs[name] for name in names]


def _bind_parameters(function: Function, args: Sequence[Value], symbols: Symbols) -> None:
    """Check the arguments against the parameters and read the symbolic dims off them."""
    specs: list[TensorSpec] = []
    arrays: list[np.ndarray] = []
    for param, arg in zip(function.params, args, strict=True):
        types, found = tensors_of(param.type), _flatten(arg)
        specs += [TensorSpec(type_.shape, type_.dtype, param.name) for type_ in types]
        arrays += found
    for spec, array in zip(specs, arrays, strict=True):
        if array.dtype != dtypes.to_numpy(spec.dtype):
            raise InputTypeError(
                "an input has the wrong dtype", where=spec.name, found=array.dtype.name, expected=spec.dtype
            )
    solve_symbols(specs, [array.shape for array in arrays], symbols)


def _find_last_uses(function: Function) -> dict[int, list[Var]]:
    """Return, for each binding, the variables that nothing after it needs."""
    last: dict[Var, int] = {}
    for index, binding in enumerate(function.bindings):
        last.update((operand, index) for operand in operands(binding.value) if isinstance(operand, Var))
        last.setdefault(binding.var, index)
    kept = {expr for expr in (function.result, *operands(function.result)) if isinstance(expr, Var)}
    dying: dict[int, list[Var]] = {}
    for var, index in last.items():
        if var not in kept:
            dying.setdefault(index, []).append(var)
    return dying


class _Frame:
    """The variables of one function call."""

    def __init__(self, module: IRModule, symbols: Symbols, values: dict[Var, Value]) -> None:
        self.module = module
        self.symbols = symbols
        self.values = values

    def operand(self, expr: Expr) -> Value:
        if isinstance(expr, Var):
            return self.values[expr]
        if isinstance(expr, Constant):
            return expr.data
        if isinstance(expr, Tuple):
            return tuple(map(self.operand, expr.fields))
        raise ExecutionError("expressions of this class cannot be evaluated", found=repr(expr))

    def evaluate(self, value: Expr, var: Var) -> Value:
        if isinstance(value, TupleGetItem):
            fields = self.operand(value.tuple_value)
            assert isinstance(fields, tuple)
            return fields[value.index]
        if not isinstance(value, Call):
            return self.operand(value)
        try:
            result = self.call(value)
        except KernelyardError as error:
            error.where = error.where or var.origin or f"%{var.name} = {value.op_name}(...)"
            raise
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise ExecutionError(
                f"{value.op_name} cannot be computed: {error}", where=var.origin or f"%{var.name}"
            ) from error
        self.check(value, result, var)
        return result

    def call(self, call: Call) -> Value:
        if is_control_flow(call):
            rules = {IF: self.call_if, WHILE: self.call_while, MAKE_CLOSURE: self.make_closure}
            return rules.get(call.op_name, self.invoke_closure)(call)
        if isinstance(call.op, GlobalVar):
            return self.call_global(call.op, call.args)
        if isinstance(call.args[0] if call.args else None, (GlobalVar, ExternFunc)):
            callee, *args = call.args
            return self.call_global(callee, args) if isinstance(callee, GlobalVar) else self.call_extern(call)
        return self.call_op(call.op, call)

    def call_if(self, call: Call) -> Value:
        then_branch, else_branch, condition, *args = call.args
        taken = then_branch if self.operand(condition) else else_branch
        return self.call_scoped(taken, tuple(map(self.operand, args)))

    def call_while(self, call: Call) -> Value:
        condition, body, *args = call.args
        values = tuple(map(self.operand, args))
        items: list[list[np.ndarray]] = [[] for _ in range(call.attrs[COLLECTED])]
        while self.call_scoped(condition, values):
            result = self.call_scoped(body, values)
            results = result if isinstance(result, tuple) else (result,)
            values = results[: len(values)]
            for collected, item in zip(items, results[len(values) :], strict=True):
                collected += _flatten(item)
        specs = [TensorSpec(t.shape, t.dtype) for t in tensors_of(call.type)][len(values) :]
        values += tuple(stack_items(*each, self.symbols) for each in zip(items, specs, strict=True))
        return values[0] if len(values) == 1 else values

    def make_closure(self, call: Call) -> Closure:
        function, *captured = call.args
        assert isinstance(function, GlobalVar)
        return Closure(function, tuple(map(self.operand, captured)), self.find_shared_symbols(function))

    def invoke_closure(self, call: Call) -> Value:
        closure, *args = map(self.operand, call.args)
        assert isinstance(closure, Closure)
        function = self.module[closure.function.name]
        return call_function(function, (*closure.captured, *args), self.module, closure.symbols)

    def call_scoped(self, callee: Expr, args: Sequence[Value]) -> Value:
        assert isinstance(callee, GlobalVar)
        return call_function(self.module[callee.name], args, self.module, self.find_shared_symbols(callee))

    def find_shared_symbols(self, callee: GlobalVar) -> Symbols:
        """Return those of the known symbols that a branch, a loop body or a closure shares."""
        shared = self.scopes.find_shared(callee.name)
        return {name: value for name, value in self.symbols.items() if name in shared}

    @cached_property
    def scopes(self) -> Scopes:
        return Scopes(self.module)

    def call_op(self, op: Op, call: Call) -> Value:
        if op.reference is None:
            raise ExecutionError(f"the operator {op.name} has no reference")
        return op.reference(*map(self.operand, call.args), **evaluate_attributes(call.attrs, self.symbols))

    def call_global(self, callee: GlobalVar, args: Sequence[Expr]) -> Value:
        return call_function(self.module[callee.name], tuple(map(self.operand, args)), self.module, self.symbols)

    def call_extern(self, call: Call) -> Value:
        """Return a function of an attached RuntimeModule: it fills outputs that the caller allocates."""
        callee, *args = call.args
        assert isinstance(callee, ExternFunc)
        outputs = [self.allocate(type_) for type_ in tensors_of(call.type)]
        function = self.external_module(callee.symbol).get_function(callee.symbol)
        named = {"symbols": self.symbols} if accepts_symbols(function) else {}
        function(*(np.asarray(a, order="C") for arg in args for a in _flatten(self.operand(arg))), *outputs, **named)
        return outputs[0] if isinstance(call.type, TensorType) else tuple(outputs)

    def external_module(self, symbol: str) -> RuntimeModule:
        modules: Sequence[RuntimeModule] = self.module.attrs.get("external_modules", ())
        for module in modules:
            if symbol in module.symbols():
                return module
        raise ExecutionError(f"no attached module has the function {symbol!r}")

    def allocate(self, type_: TensorType) -> np.ndarray:
        return np.empty([dims.evaluate(dim, self.symbols) for dim in type_.shape], dtypes.to_numpy(type_.dtype))

    def check(self, call: Call, result: Value, var: Var) -> None:
        """Check a result against the call's type, and define the symbols of its data-dependent sizes."""
        if introduces_symbols(call):
            specs = [TensorSpec(type_.shape, type_.dtype) for type_ in tensors_of(call.type)]
            shapes = [array.shape for array in _flatten(result)]
            solve_symbols(specs, shapes, self.symbols, may_leave_unknown=True)
        for type_, array in zip(tensors_of(call.type), _flatten(result), strict=True):
            if not self._has_shape(array, type_) or array.dtype != dtypes.to_numpy(type_.dtype):
                raise ExecutionError(
                    f"{call.op_name} computed a result that does not match its type",
                    where=var.origin or f"%{var.name}",
                    found=f"{array.shape} {array.dtype.name}",
                    expected=repr(substitute(type_, dict(self.symbols))),
                )

    def _has_shape(self, array: np.ndarray, type_: TensorType) -> bool:
        """Return True when all sizes are those of the type, as far as these are known here."""
        if array.shape == type_.shape:
            return True
        return array.ndim == type_.rank and all(
            dims.evaluate(dim, self.symbols) == size
            for dim, size in zip(type_.shape, array.shape, strict=True)
            if dims.symbols_of(dim) <= self.symbols.keys()
        )


def _flatten(value: Value) -> list[np.ndarray]:
    if isinstance(value, Closure):
        return []
    return [value] if isinstance(value, np.ndarray) else [array for item in value for array in _flatten(item)]
