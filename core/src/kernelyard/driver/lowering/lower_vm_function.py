"""From a function with control flow to a VMFunction: what lies between branches, loops and calls becomes its blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelyard import dims
from kernelyard.driver.lowering.lower import Lowered, entry_specs, lower
from kernelyard.driver.lowering.operand_table import OperandTable
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Type,
    Var,
    operands,
)
from kernelyard.ir.control_flow import IF as IF_OP
from kernelyard.ir.control_flow import INVOKE_CLOSURE, MAKE_CLOSURE, WHILE, is_control_flow
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.scopes import Scopes, introduces_symbols
from kernelyard.ir.types import FunctionType, leaves_of, symbols_of, tensors_of
from kernelyard.ir.visitor import callees, free_operands
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program.program import Program, SizeCheck
from kernelyard.runtime.program.vm_function import (
    BIND,
    CALL,
    CLOSE,
    COLLECT,
    EVALUATE,
    GOTO,
    IF,
    INVOKE,
    MOVE,
    RETURN,
    RUN,
    STACK,
    ClosureSpec,
    Instruction,
    VMFunction,
)


def vm_function_names(module: IRModule) -> frozenset[str]:
    """Return the entry functions that cannot be Programs: they branch, call, or are called."""
    entries = module.entry_functions()
    called = {name for function in entries.values() for name in callees(function) if name in entries}
    special = {name for name, f in entries.items() if any(_is_control(b.value, entries) for b in f.bindings)}
    return frozenset(called | special | {name for name, f in entries.items() if f.attrs.get(PRIVATE)})


def _is_control(value: Expr, entries: Mapping[str, Function]) -> bool:
    """Return True for what needs a VM function: branches, loops, calls, operators that decide their results' sizes."""
    if isinstance(value, Call) and isinstance(value.op, GlobalVar):
        return value.op.name in entries
    return is_control_flow(value) or introduces_symbols(value) or has_closures(value.type)


def has_closures(type_: Type) -> bool:
    """Return True for types of closures, and of tuples with closures: kernels do not touch them."""
    return any(isinstance(leaf, FunctionType) for leaf in leaves_of(type_))


def lower_vm_function(
    name: str,
    module: IRModule,
    module_of: Mapping[str, int],
    reference_module: int,
    checks: tuple[SizeCheck, ...] = (),
) -> Lowered[VMFunction]:
    """Lower an entry function of `vm_function_names`; the arguments are those of `lower`.

    Raises: as `lower`.
    """
    function = module.entry_functions()[name]
    lowering = _VMFunctionLowering(name, function, module, module_of, reference_module, checks)
    private = bool(function.attrs.get(PRIVATE))
    if private:
        lowering.of.update((param, lowering.add_all(param.type)) for param in function.params)
        output_names: Callable[[int], Sequence[str]] = _number_values
    else:
        inputs, output_names = entry_specs(name, function)
        lowering.of.update((p, (lowering.add(spec),)) for p, spec in zip(function.params, inputs, strict=True))
        lowering.check_bounds([spec.name for spec in inputs])
    inputs = tuple(lowering.values)
    lowering.run()
    results = lowering.operand(function.result)
    lowering.emit(RETURN, results)
    outputs = [
        replace(lowering.values[result], name=output)
        for result, output in zip(results, output_names(len(results)), strict=True)
    ]
    vm_function = VMFunction(
        name,
        tuple(sorted(Scopes(module).find_shared(name))),
        inputs,
        tuple(outputs),
        tuple(lowering.values),
        tuple(lowered.program for lowered in lowering.blocks),
        tuple(lowering.code),
        {number: digest for digest, number in lowering.constant_numbers.items()},
        private,
    )
    return Lowered(vm_function, lowering.constants, lowering.reference_calls)


def _number_values(count: int) -> Sequence[str]:
    return [f"output_{number}" for number in range(count)]


@dataclass
class _VMFunctionLowering(OperandTable):
    name: str
    function: Function
    module: IRModule
    module_of: Mapping[str, int]
    reference_module: int
    checks: tuple[SizeCheck, ...]
    values: list[TensorSpec] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    blocks: list[Lowered[Program]] = field(default_factory=list)
    _pending: list[Binding] = field(default_factory=list)

    def run(self) -> None:
        """Emit code for all bindings."""
        self._last_use = _find_last_uses(self.function)
        self._known = symbols_of(p.type for p in self.function.params) | Scopes(self.module).free(self.name)
        self._unchecked = list(self.checks)
        entries = self.module.entry_functions()
        for index, binding in enumerate(self.function.bindings):
            if isinstance(binding.value, TupleGetItem) and binding.value.tuple_value in self.of:
                self.of[binding.var] = self.item(binding.value)
            elif _is_control(binding.value, entries):
                self._flush(index)
                self.of[binding.var] = self._control(binding.value)
                self._known |= symbols_of([binding.var.type])
            else:
                self._pending.append(binding)
        self._flush(len(self.function.bindings))

    def add(self, spec: TensorSpec) -> int:
        """Return a new value."""
        self.values.append(spec)
        return len(self.values) - 1

    def add_all(self, type_: Type) -> tuple[int, ...]:
        """Create values for the tensors and closures in a type."""
        return tuple(
            self.add(TensorSpec(leaf.shape, leaf.dtype) if isinstance(leaf, TensorType) else ClosureSpec())
            for leaf in leaves_of(type_)
        )

    def emit(
        self, name: str, inputs: Sequence[int] = (), outputs: Sequence[int] = (), target: int = -1, symbol: str = ""
    ) -> int:
        """Append an instruction; its address."""
        self.code.append(Instruction(name, tuple(inputs), tuple(outputs), target, symbol))
        return len(self.code) - 1

    def add_constant(self, constant: Constant) -> int:
        return self.add(TensorSpec(constant.tensor_type.shape, constant.tensor_type.dtype))

    # --- control ------------------------------------------------------------------------------------------------------
    def _control(self, call: Expr) -> tuple[int, ...]:
        if not isinstance(call, Call):  # a tuple with closures
            return self.operand(call)
        if isinstance(call.op, GlobalVar):
            results = self.add_all(call.type)
            self.emit(CALL, self.operands(call.args), results, symbol=call.op.name)
        elif not is_control_flow(call):
            results = self._evaluate(call)
        else:
            rules = {IF_OP: self._if, WHILE: self._while, MAKE_CLOSURE: self._close, INVOKE_CLOSURE: self._invoke}
            results = rules[call.op_name](call)
        if tensors_of(call.type):
            self.emit(BIND, results)
        return results

    def _if(self, call: Call) -> tuple[int, ...]:
        then_branch, else_branch = (arg.name for arg in call.args[:2] if isinstance(arg, GlobalVar))
        condition, args = self.operand(call.args[2]), self.operands(call.args[3:])
        results = self.add_all(call.type)
        branch = self.emit(IF, condition, target=0)
        self.emit(CALL, args, results, symbol=then_branch)
        leave = self.emit(GOTO, target=0)
        otherwise = self.emit(CALL, args, results, symbol=else_branch)
        self.code[branch] = Instruction(IF, condition, target=otherwise)
        self.code[leave] = Instruction(GOTO, target=otherwise + 1)
        return results

    def _while(self, call: Call) -> tuple[int, ...]:
        condition, body = (arg.name for arg in call.args[:2] if isinstance(arg, GlobalVar))
        results, goes_on = self.add_all(call.type), self.add(TensorSpec((), "bool"))
        starts = self.operands(call.args[2:])
        states, stacks = results[: len(starts)], results[len(starts) :]
        items = tuple(self.add(TensorSpec(self.values[n].shape[1:], self.values[n].dtype)) for n in stacks)
        self.emit(MOVE, starts, states)
        start = self.emit(CALL, states, (goes_on,), symbol=condition)
        branch = self.emit(IF, (goes_on,), target=0)
        self.emit(CALL, states, (*states, *items), symbol=body)
        if stacks:
            self.emit(COLLECT, items, stacks)
        end = self.emit(GOTO, target=start) + 1
        self.code[branch] = Instruction(IF, (goes_on,), target=end)
        if stacks:
            self.emit(STACK, (), stacks)
        return results

    def _close(self, call: Call) -> tuple[int, ...]:
        function, *captured = call.args
        assert isinstance(function, GlobalVar)
        results = self.add_all(call.type)
        self.emit(CLOSE, self.operands(captured), results, symbol=function.name)
        return results

    def _invoke(self, call: Call) -> tuple[int, ...]:
        results = self.add_all(call.type)
        self.emit(INVOKE, self.operands(call.args), results)
        return results

    def _evaluate(self, call: Call) -> tuple[int, ...]:
        symbol = f"{self.name}.{len(self.code)}_{call.op_name}"
        self.reference_calls[symbol] = call
        results = self.add_all(call.type)
        self.emit(EVALUATE, self.operands(call.args), results, self.reference_module, symbol)
        return results

    def check_bounds(self, input_names: Sequence[str]) -> None:
        """Emit a block without steps that holds the bounds of sizes, before a branch is chosen or a loop begun."""
        bounds = tuple(check for check in self.checks if check.bound is not None)
        if not bounds:
            return
        self.checks = tuple(check for check in self.checks if check not in bounds)
        nothing = Function(self.function.params, [], Tuple([]), {"input_names": tuple(input_names), "output_names": ()})
        lowered = lower(f"{self.name}.{len(self.blocks)}", nothing, self.module_of, self.reference_module, bounds)
        self.emit(RUN, self.operands(self.function.params), (), len(self.blocks))
        self.blocks.append(lowered)

    # --- blocks -------------------------------------------------------------------------------------------------------
    def _flush(self, end: int) -> None:
        """Emit the pending bindings before number `end` as one block."""
        bindings, self._pending = self._pending, []
        results = [binding.var for binding in bindings if self._last_use.get(binding.var, -1) >= end]
        if not results:
            return
        read = [operand for operand in free_operands(bindings) if isinstance(operand, Var)]
        inputs = self.operands(read)
        self.of.update((var, self.add_all(var.type)) for var in results)
        outputs = self.operands(results)
        attrs = {"input_names": tuple(f"v{n}" for n in inputs), "output_names": tuple(f"v{n}" for n in outputs)}
        params, unpacked = _parameters(read)
        block = Function(params, [*unpacked, *bindings], Tuple(results), attrs)
        lowered = self._lower(block)
        self.constants.update(lowered.constants)
        self.reference_calls.update(lowered.reference_calls)
        self.emit(RUN, inputs, outputs, len(self.blocks))
        self.blocks.append(lowered)

    def _lower(self, block: Function) -> Lowered[Program]:
        unchecked, known = self._unchecked, self._known
        checks = tuple(c for c in unchecked if dims.symbols_of(c.left) | dims.symbols_of(c.right) <= known)
        self._unchecked = [check for check in unchecked if check not in checks]
        name = f"{self.name}.{len(self.blocks)}"
        # All of them: which ones a kernel needs beside those of its operands, its call does not tell.
        return lower(name, block, self.module_of, self.reference_module, checks, known)


def _find_last_uses(function: Function) -> dict[Var, int]:
    """Return for each variable the number of the last binding that reads it; for results, a number beyond all."""
    last: dict[Var, int] = {}
    for index, binding in enumerate(function.bindings):
        last.update((operand, index) for operand in operands(binding.value) if isinstance(operand, Var))
    result = (function.result, *operands(function.result))
    last.update((operand, len(function.bindings)) for operand in result if isinstance(operand, Var))
    return last


def _parameters(read: Sequence[Var]) -> tuple[list[Var], list[Binding]]:
    """Return parameters for variables from outside a block, and the bindings that rebuild tuples from them."""
    params: list[Var] = []
    bindings: list[Binding] = []
    for var in read:
        parts = [Var(var.name, tensor) for tensor in tensors_of(var.type)]
        is_tuple = len(parts) != 1 or parts[0].type != var.type
        params += parts if is_tuple else [var]
        bindings += [Binding(var, Tuple(parts))] if is_tuple else []
    return params, bindings
