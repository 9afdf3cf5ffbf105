"""From a module whose calls are all compiled to a Program: variables become registers, calls become steps.

A view (`reshape`) becomes an alias: the same bytes in another shape. An operator that nothing compiled becomes a call
of the reference module, which the report shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from kernelyard.driver.lowering.operand_table import OperandTable
from kernelyard.errors import CodegenError, IRError
from kernelyard.ir import Call, Constant, Expr, ExternFunc, Function, GlobalVar, IRModule, Op, TupleGetItem, Var
from kernelyard.ir.types import symbols_of, tensors_of
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program.program import Program, Register, SizeCheck, Step
from kernelyard.runtime.program.vm_function import VMFunction
from kernelyard.transform.lowering.legalize_ops import VIEWS

COMPILED = ("call_tir", "call_dps_packed")


Code = TypeVar("Code", Program, VMFunction)


@dataclass
class Lowered(Generic[Code]):
    """A lowered function: the program or VM function, its constants by digest, and the calls left to the reference
    module by symbol (no two functions share one)."""

    program: Code
    constants: dict[str, np.ndarray]
    reference_calls: dict[str, Call]


def lower(
    name: str,
    function: Function,
    module_of: Mapping[str, int],
    reference_module: int,
    checks: tuple[SizeCheck, ...] = (),
    symbols: Collection[str] = (),
) -> Lowered[Program]:
    """Lower a function without control flow.

    module_of: the index of each compiled symbol's module. reference_module: that of the reference module.
    checks: what the sizes of the inputs must satisfy (`kernelyard.ops.size_checks`). symbols: those whose values come
    with a call, beside those of the inputs.
    Raises: CodegenError for a call of a function that no module has, IRError when the function's names of inputs or
    outputs do not fit.
    """
    lowering = _Lowering(name, module_of, reference_module)
    inputs, output_names = entry_specs(name, function)
    for index, (param, spec) in enumerate(zip(function.params, inputs, strict=True)):
        lowering.of[param] = (lowering.add(Register(spec.shape, spec.dtype, "input", index=index)),)
    for binding in function.bindings:
        lowering.of[binding.var] = lowering.value(binding.var, binding.value)
    results = lowering.operand(function.result)
    outputs = [
        TensorSpec(lowering.registers[register].shape, lowering.registers[register].dtype, output_name)
        for register, output_name in zip(results, output_names(len(results)), strict=True)
    ]
    known = tuple(sorted(symbols_of(param.type for param in function.params).union(symbols)))
    program = Program(
        name, known, tuple(inputs), tuple(outputs), tuple(lowering.registers), tuple(lowering.steps), results, checks
    )
    return Lowered(program, lowering.constants, lowering.reference_calls)


def entry_specs(name: str, function: Function) -> tuple[list[TensorSpec], Callable[[int], Sequence[str]]]:
    """Return the inputs of an entry function under the names that callers use, and the names for a number of results.

    Raises: IRError when the function's attributes do not name them.
    """
    given = function.attrs.get("input_names") or [param.name for param in function.params]
    inputs = [
        TensorSpec(param.tensor_type.shape, param.tensor_type.dtype, input_name)
        for param, input_name in zip(function.params, _names(given, len(function.params), name, "input"), strict=True)
    ]

    def output_names(count: int) -> Sequence[str]:
        given = function.attrs.get("output_names") or [f"output_{i}" for i in range(count)]
        return _names(given, count, name, "output")

    return inputs, output_names


def check_names(module: IRModule) -> None:
    """Check that the functions that users call name their inputs and results.

    Raises: IRError.
    """
    for name, function in module.public_functions().items():
        _, output_names = entry_specs(name, function)
        output_names(len(list(tensors_of(function.result_type))))


def _names(names: Sequence[str], count: int, function: str, side: str) -> Sequence[str]:
    """Return the names, which callers use as keys: as many as there are values, each once."""
    if len(names) != count or len(set(names)) != count:
        raise IRError(
            f"the {side} names of @{function} do not match its values",
            found=", ".join(names) or "no names",
            expected=f"{count} distinct names, in the attribute {side}_names",
        )
    return names


@dataclass
class _Lowering(OperandTable):
    function: str
    module_of: Mapping[str, int]
    reference_module: int
    registers: list[Register] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add(self, register: Register) -> int:
        self.registers.append(register)
        return len(self.registers) - 1

    def add_constant(self, constant: Constant) -> int:
        type_ = constant.tensor_type
        return self.add(Register(type_.shape, type_.dtype, "constant", digest=constant.digest))

    def value(self, var: Var, value: Expr) -> tuple[int, ...]:
        """Return the registers that hold the value of a binding; a call adds a step."""
        if isinstance(value, TupleGetItem):
            return self.item(value)
        if not isinstance(value, Call):
            return self.operand(value)
        if isinstance(value.op, Op) and value.op.name in VIEWS:
            (source,) = self.operand(value.args[0])
            type_ = value.tensor_type
            return (self.add(Register(type_.shape, type_.dtype, "alias", source=source)),)
        return self._call(var, value)

    def _call(self, var: Var, call: Call) -> tuple[int, ...]:
        symbol, module, args = self._callee(call)
        inputs = self.operands(args)
        outputs = tuple(self.add(Register(t.shape, t.dtype, "buffer")) for t in tensors_of(call.type))
        self.steps.append(Step(module, symbol, inputs, outputs, var.origin or symbol))
        return outputs

    def _callee(self, call: Call) -> tuple[str, int, Sequence[Expr]]:
        if isinstance(call.op, Op) and call.op.name in COMPILED:
            target, *args = call.args
            symbol = target.symbol if isinstance(target, ExternFunc) else getattr(target, "name", "")
            if symbol not in self.module_of:
                raise CodegenError(
                    f"no module has the function {symbol!r}", expected=", ".join(self.module_of) or "none"
                )
            return symbol, self.module_of[symbol], args
        if isinstance(call.op, GlobalVar):
            raise CodegenError(
                f"the function @{call.op.name} was not compiled", hint="run RunCodegen or LegalizeOps first"
            )
        symbol = f"{self.function}_{len(self.reference_calls)}_{call.op.name}"
        self.reference_calls[symbol] = call
        return symbol, self.reference_module, call.args
