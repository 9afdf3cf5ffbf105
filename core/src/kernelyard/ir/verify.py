"""The verifier: what every module must satisfy, between any two passes. The error shows the lines around the fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kernelyard.errors import KernelyardError, VerifyError
from kernelyard.ir.control_flow import is_control_flow, misfit_of, operands_after_functions
from kernelyard.ir.expr import (
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.ir.module import PRIVATE, IRModule
from kernelyard.ir.op import Op
from kernelyard.ir.printer import function_lines
from kernelyard.ir.scopes import Scopes, introduces_symbols
from kernelyard.ir.types import FunctionType, TensorType, TupleType, Type, leaves_of, symbols_of, tensors_of

LINES_AROUND = 2
CALLEE_CLASSES: dict[str, type[Expr]] = {"call_tir": GlobalVar, "call_dps_packed": ExternFunc}


def verify(module: IRModule) -> IRModule:
    """Check every graph-level function of a module; the module is returned, so that calls can be chained.

    Checked: variables are bound once and before they are read; operands are variables or constants; attributes and
    types are what the operators' declarations say; called functions exist and take what they are given; results are
    variables, constants or a flat tuple of them; the symbols of an entry function occur in its parameters or are
    introduced by a binding before (those of a private function may be its callers').
    Raises: VerifyError.
    """
    scopes = Scopes(module)
    for name, function in module.graph_functions().items():
        _FunctionVerifier(module, name, function, scopes).verify()
    return module


@runtime_checkable
class _LoopFunction(Protocol):
    """The part of a loop-level function (PrimFunc) that the verifier reads."""

    @property
    def inputs(self) -> Sequence[_Buffer]: ...

    @property
    def result_type(self) -> Type: ...


class _Buffer(Protocol):
    shape: tuple
    dtype: str


class _FunctionVerifier:
    def __init__(self, module: IRModule, name: str, function: Function, scopes: Scopes) -> None:
        self.module = module
        self.name = name
        self.function = function
        self.scopes = scopes
        self.defined: set[Var] = set()
        self.known_symbols = symbols_of(param.type for param in function.params) | scopes.free(name)
        self.line = 0

    def verify(self) -> None:
        for param in self.function.params:
            self.define(param)
        for binding in self.function.bindings:
            self.line += 1
            self.check_value(binding.value)
            if binding.value.type != binding.var.type:
                raise self.fault(
                    f"{binding.var!r} is declared with another type than its value",
                    found=repr(binding.value.type),
                    expected=repr(binding.var.type),
                )
            self.define(binding.var)
            if introduces_symbols(binding.value):
                self.known_symbols |= symbols_of([binding.var.type])
        self.line += 1
        self.check_result()
        self.check_symbols()

    def define(self, var: Var) -> None:
        if not isinstance(var, Var):
            raise self.fault("only variables can be bound", found=type(var).__name__)
        if var in self.defined:
            raise self.fault(f"{var!r} is bound twice")
        self.defined.add(var)

    # --- values -------------------------------------------------------------------------------------------------------
    def check_value(self, value: Expr) -> None:
        if isinstance(value, Call):
            self.check_call(value)
        elif isinstance(value, (Tuple, TupleGetItem)):
            for operand in operands(value):
                self.check_atom(operand)
            self.check_structure(value)
        else:
            self.check_atom(value)

    def check_atom(self, expr: Expr) -> None:
        if isinstance(expr, Constant):
            return
        if not isinstance(expr, Var):
            raise self.fault(
                "an operand is not a variable or a constant",
                found=type(expr).__name__,
                hint="bind it to a variable of its own first",
            )
        if expr not in self.defined:
            raise self.fault(f"{expr!r} is read before it is bound", hint="bindings are read from top to bottom")

    def check_structure(self, value: Tuple | TupleGetItem) -> None:
        if isinstance(value, Tuple):
            expected: Type = TupleType(tuple(field.type for field in value.fields))
        else:
            of = value.tuple_value.type
            if not isinstance(of, TupleType) or not 0 <= value.index < len(of.fields):
                raise self.fault("the index is out of the tuple's range", found=f"index {value.index} of {of!r}")
            expected = of.fields[value.index]
        self.check_type(value.type, expected)

    def check_call(self, call: Call) -> None:
        special = CALLEE_CLASSES.get(call.op.name) if isinstance(call.op, Op) else None
        arguments = call.args[1:] if special else call.args
        if is_control_flow(call):
            arguments = operands_after_functions(call)
        if special and not isinstance(call.args[0], special):
            raise self.fault(f"the first operand of {call.op.name} must be a {special.__name__}")
        for argument in arguments:
            self.check_atom(argument)
        if isinstance(call.op, GlobalVar):
            self.check_callee(call.op, call, arguments)
        elif special is GlobalVar:
            self.check_callee(call.args[0], call, arguments)
        elif is_control_flow(call):
            self.check_control_flow(call)
        elif not special:
            self.check_op_call(call.op, call)

    def check_control_flow(self, call: Call) -> None:
        misfit = misfit_of(call, self.module, self.known_symbols)
        if misfit is not None:
            raise self.fault(misfit.message, found=misfit.found, expected=misfit.expected)

    def check_op_call(self, op: Op, call: Call) -> None:
        try:
            attrs = op.check_attributes(call.attrs)
            inferred = call.type if op.opaque_type else op.infer_type([arg.tensor_type for arg in call.args], attrs)
        except KernelyardError as error:
            raise self.fault(error.message, found=error.found, expected=error.expected, hint=error.hint) from error
        self.check_type(call.type, inferred)

    def check_type(self, stated: Type, inferred: Type) -> None:
        if stated != inferred:
            raise self.fault(
                "the declared type differs from the inferred type",
                found=repr(stated),
                expected=repr(inferred),
                hint="rebuild the call, or run the pass infer_types",
            )

    # --- calls of the module's functions ------------------------------------------------------------------------------
    def check_callee(self, callee: Expr, call: Call, arguments: Sequence[Expr]) -> None:
        assert isinstance(callee, GlobalVar)
        if callee.name not in self.module:
            known = ", ".join(f"@{name}" for name in self.module) or "none"
            raise self.fault(f"the module has no function {callee!r}", expected=known)
        function = self.module[callee.name]
        if isinstance(function, Function) and isinstance(call.op, GlobalVar):
            self.check_signature(callee, [p.type for p in function.params], function.result_type, call, arguments)
        elif isinstance(function, _LoopFunction) and isinstance(call.op, Op):
            self.check_loop_function(callee, function, call, arguments)
        else:
            wanted = "call_tir" if isinstance(call.op, GlobalVar) else "a plain call"
            raise self.fault(f"{callee!r} is called with the wrong kind of call", expected=wanted)

    def check_signature(
        self, callee: GlobalVar, params: list[Type], result: Type, call: Call, arguments: Sequence[Expr]
    ) -> None:
        given = [argument.type for argument in arguments]
        if given != params:
            raise self.fault(
                f"{callee!r} is called with arguments of the wrong types", found=repr(given), expected=repr(params)
            )
        if call.type != result:
            raise self.fault(
                f"{callee!r} must return the type of the call", found=repr(call.type), expected=repr(result)
            )

    def check_loop_function(
        self, callee: GlobalVar, function: _LoopFunction, call: Call, arguments: Sequence[Expr]
    ) -> None:
        """Check calls of loop-level functions; as their symbols may have other names, only known dims are compared."""
        given = [tensor for argument in arguments for tensor in tensors_of(argument.type)]
        params = [TensorType(tuple(buffer.shape), buffer.dtype) for buffer in function.inputs]
        pairs = ((given, params), (tensors_of(call.type), tensors_of(function.result_type)))
        for found, expected in pairs:
            if len(found) != len(expected) or not all(map(_may_be_equal, found, expected)):
                raise self.fault(
                    f"{callee!r} has another signature than its call", found=repr(found), expected=repr(expected)
                )

    # --- results ------------------------------------------------------------------------------------------------------
    def check_result(self) -> None:
        result = self.function.result
        fields = result.fields if isinstance(result, Tuple) else (result,)
        for field in fields:
            if not isinstance(field, (Var, Constant)):
                raise self.fault(
                    "a result is not a variable, a constant or a flat tuple of them", found=type(field).__name__
                )
            self.check_atom(field)
        if isinstance(result, Tuple):
            self.check_structure(result)
        if not self.function.attrs.get(PRIVATE):
            self.check_ends([*self.function.params, result])

    def check_ends(self, values: Sequence[Expr]) -> None:
        """Check that parameters and results of entry functions are tensors."""
        for value in values:
            if any(isinstance(leaf, FunctionType) for leaf in leaves_of(value.type)):
                raise self.fault(
                    "only private functions take and return closures",
                    found=repr(value.type),
                    hint="invoke the closure, and return its result",
                )

    def check_symbols(self) -> None:
        """Check that each symbol occurs in a parameter: no other could be solved."""
        attrs = self.function.attrs
        if "Composite" in attrs or "Codegen" in attrs or attrs.get(PRIVATE):
            return
        for index, unknown in self.scopes.unknown_by_binding(self.function):
            self.line = index + 1
            known = symbols_of(param.type for param in self.function.params)
            raise self.fault(
                "a dimension uses a symbol that occurs in no parameter",
                found=", ".join(sorted(unknown)),
                expected=", ".join(sorted(known)) or "no symbols",
            )

    # --- errors -------------------------------------------------------------------------------------------------------
    def fault(
        self, message: str, *, found: object = None, expected: object = None, hint: str | None = None
    ) -> VerifyError:
        """Return the error, with the lines around the current one; `>` marks the line of the fault."""
        lines = function_lines(self.name, self.function)
        first = max(self.line - LINES_AROUND, 0)
        shown = [
            f"{'>' if number == self.line else ' '} {number + 1:>4} | {lines[number]}"
            for number in range(first, min(self.line + LINES_AROUND + 1, len(lines)))
        ]
        where = "\n".join([f"@{self.name}, line {self.line + 1}{self._origin()}", *shown])
        return VerifyError(message, where=where, found=found, expected=expected, hint=hint)

    def _origin(self) -> str:
        if not 1 <= self.line <= len(self.function.bindings):
            return ""
        origin = self.function.bindings[self.line - 1].var.origin
        return f", from {origin}" if origin else ""


def _may_be_equal(left: TensorType, right: TensorType) -> bool:
    if left.dtype != right.dtype or left.rank != right.rank:
        return False
    pairs = zip(left.shape, right.shape, strict=True)
    return all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)
