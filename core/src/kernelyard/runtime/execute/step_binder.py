"""StepBinder: bind the steps of a program to memory, for one set of sizes after the other.

Most steps are native kernels (`RuntimeModule.native_kernel`): only addresses and numbers change with the sizes. These
lie in one block of words, and a new size copies the block and writes all addresses and numbers to it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.dims import DimTable, symbols_of
from kernelyard.errors import KernelyardError, NoImplementationError, ShapeError
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, NativeCall, NativeKernel, RuntimeModule
from kernelyard.runtime.execute.step_errors import RefusedError, bind_error, check_bound, describe_step, label_of
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Program, Step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.compiled_model import CompiledModel

WORD = 8  # bytes

Rebinder = Callable[[int], None]


def uses_of_inputs_and_results(program: Program) -> dict[int, list[tuple[int, int]]]:
    """Return, for each register that inputs and results lie in, the steps and arguments, by number, that have it."""
    inputs = [number for number, register in enumerate(program.registers) if register.kind == "input"]
    uses: dict[int, list[tuple[int, int]]] = {root: [] for root in (*inputs, *map(program.root, program.results))}
    for number, step in enumerate(program.steps):
        for position, register in enumerate(step.inputs + step.outputs):
            root = program.root(register)
            if root in uses:
                uses[root].append((number, position))
    return uses


class _Kernel(NamedTuple):
    """A step that is a native kernel. first: the place of its addresses in the block, which its numbers follow."""

    step: Step
    native: NativeKernel
    threads: int
    first: int

    @property
    def numbers_at(self) -> int:
        return self.first + len(self.step.inputs) + len(self.step.outputs)


class _Alike(NamedTuple):
    """Steps that are the same kernel: one of them, the numbers of all, and the places of their numbers in the block."""

    kernel: _Kernel
    rows: list[int]
    places: list[int]


class _Kernels:
    """Kernels whose numbers are found together. places: of these in the block."""

    def __init__(self, alike: Iterable[_Alike]) -> None:
        self.alike = list(alike)
        self.places = _concatenate(
            [range(place, place + each.kernel.native.num_numbers) for each in self.alike for place in each.places]
        )
        self._dims = DimTable([dim for each in self.alike for dim in each.kernel.native.dims])

    def evaluate(self, values: Mapping[str, int]) -> Iterator[tuple[Sequence[int], int]]:
        """Give the numbers and the bytes of workspace of each kernel. Raises: ShapeError naming the step."""
        try:
            found = self._dims(values)
        except ShapeError as error:
            error.where = error.where or self._find_unknown(values)
            raise
        first = 0
        for each in self.alike:
            kernel = each.kernel
            last = first + len(kernel.native.dims)
            yield kernel.native.evaluate(found[first:last], kernel.threads)
            first = last

    def _find_unknown(self, values: Mapping[str, int]) -> str | None:
        """Return the label of the first step that has a dim without a value."""
        for each in self.alike:
            try:
                DimTable(each.kernel.native.dims)(values)
            except ShapeError:
                return each.kernel.step.label or None
        return None


class StepBinder:
    """Binds a program's steps, whatever the sizes; what does not depend on them is found out once.

    labels: of the steps, for messages. uses: see `uses_of_inputs_and_results`.
    """

    def __init__(self, program: Program, executable: CompiledModel, context: BindContext) -> None:
        self.program = program
        self.executable = executable
        self._context = context
        self.labels = [label_of(step, executable.modules) for step in program.steps]
        self._roots = [program.root(number) for number in range(len(program.registers))]
        self.uses = uses_of_inputs_and_results(program)
        self._constants = {
            number: memory.address_of(executable.resident(register.digest))
            for number, register in enumerate(program.registers)
            if register.kind == "constant"
        }
        self._kernels: dict[int, _Kernel] = {}
        size = 0
        for number, step in enumerate(program.steps):
            module = executable.modules[step.module]
            native = self._native(step, module)
            if native is not None:
                one_thread = executable.binds_for_one_thread(module)
                kernel = self._kernels[number] = _Kernel(step, native, 1 if one_thread else context.threads, size)
                size = kernel.numbers_at + native.num_numbers
        self._block = np.zeros(size, np.int64)
        self._lay_out()

    def _native(self, step: Step, module: RuntimeModule) -> NativeKernel | None:
        try:
            native = module.native_kernel(step.symbol)
            if native is None or isinstance(native, NativeKernel):
                return native
            raise TypeError(f"its native_kernel is {type(native).__name__}, not a NativeKernel")
        except KernelyardError:
            raise
        except (Exception, SystemExit) as error:
            raise bind_error(step.symbol, label_of(step, self.executable.modules), error) from error

    def _lay_out(self) -> None:
        """Find the places of addresses and numbers in the block, and write what is the same for all sizes."""
        kernels = list(self._kernels.values())
        arguments = [kernel.step.inputs + kernel.step.outputs for kernel in kernels]
        self._first = {number: (row, kernel.first) for row, (number, kernel) in enumerate(self._kernels.items())}
        self._address_places = _concatenate([range(k.first, k.numbers_at) for k in kernels])
        self._address_registers = _concatenate(arguments)
        self._rows = np.array(
            [NativeCall(kernel.native.function, n=kernel.threads) for kernel in kernels], np.int64
        ).reshape(-1, len(NativeCall._fields))
        # Layers that are alike share a kernel, whose numbers are found once for all of them.
        shared: dict[tuple[int, str, int], list[int]] = {}
        for row, kernel in enumerate(kernels):
            shared.setdefault((kernel.step.module, kernel.step.symbol, kernel.threads), []).append(row)
        alike = [_Alike(kernels[rows[0]], rows, [kernels[row].numbers_at for row in rows]) for rows in shared.values()]
        self._workspace = [0] * len(kernels)
        is_fixed = [not any(map(symbols_of, each.kernel.native.dims)) for each in alike]
        self._write(_Kernels(compress(alike, is_fixed)), {}, self._block, self._workspace)
        self._varying = _Kernels(compress(alike, map(not_, is_fixed)))

    def _write(self, kernels: _Kernels, values: Mapping[str, int], block: np.ndarray, workspace: list[int]) -> None:
        """Write the numbers of kernels to the block, and the bytes of workspace of each to its row."""
        written: list[int] = []
        for each, (numbers, nbytes) in zip(kernels.alike, kernels.evaluate(values), strict=True):
            for row in each.rows:
                workspace[row] = nbytes
                written += numbers
        block[kernels.places] = written

    def bind(self, plan: ExecutionPlan, arena: int) -> BoundSteps:
        """Return the steps, bound for a plan whose arena lies at an address.

        Raises: RefusedError where functions that have fallbacks cannot be bound.
        """
        constants, offsets = self._constants, plan.offsets
        # A buffer that no step writes is never read either: it has no place of its own.
        addresses = [constants[root] if root in constants else arena + offsets.get(root, 0) for root in self._roots]
        block = self._block.copy()
        block[self._address_places] = np.array(addresses, np.int64)[self._address_registers]
        workspace = self._workspace.copy()
        self._write(self._varying, plan.values, block, workspace)
        rows, base = self._rows.copy(), memory.address_of(block)
        rows[:, 1] = [base + WORD * first for _, first in self._first.values()]
        rows[:, 2] = [base + WORD * kernel.numbers_at for kernel in self._kernels.values()]
        most = max(workspace, default=0)
        if most:
            scratch = self._context.workspace(most)
            rows[:, 4] = [scratch if nbytes else 0 for nbytes in workspace]
        return BoundSteps(addresses, block, self._first, rows, self._bind_others(plan, addresses))

    def _bind_others(self, plan: ExecutionPlan, addresses: Sequence[int]) -> dict[int, BoundCall]:
        steps = [(n, step) for n, step in enumerate(self.program.steps) if n not in self._kernels]
        if not steps:
            return {}
        registers = self.program.registers

        def bind(step: Step) -> BoundCall:
            args = [
                BoundTensor(addresses[register], plan.shapes[register], registers[register].dtype)
                for register in step.inputs + step.outputs
            ]
            return self._bind(step, args, plan.values)

        calls = bind_steps([step for _, step in steps], bind, self.executable)
        return dict(zip((number for number, _ in steps), calls, strict=True))

    def _bind(self, step: Step, args: Sequence[BoundTensor], values: Mapping[str, int]) -> BoundCall:
        module, context = self.executable.modules[step.module], self._context
        if self.executable.binds_for_one_thread(module):
            context = replace(context, threads=1)
        try:
            return check_bound(module.bind(step.symbol, args, values, context))
        except KernelyardError as error:
            error.where = error.where or describe_step(label_of(step, self.executable.modules))
            raise
        except (Exception, SystemExit) as error:  # a vendor's code, which must not end the process
            raise bind_error(step.symbol, label_of(step, self.executable.modules), error) from error


def bind_steps(steps: Iterable[Step], bind: Callable[[Step], BoundCall], executable: CompiledModel) -> list[BoundCall]:
    """Bind steps, in order; all are tried, so that all refusals are known at once.

    Raises: RefusedError where functions that have fallbacks cannot be bound.
    """
    calls: list[BoundCall] = []
    refused: dict[str, NoImplementationError] = {}
    with executable.lock:
        for step in steps:
            try:
                calls.append(bind(step))
            except NoImplementationError as error:
                if step.symbol not in executable.fallbacks:
                    raise
                refused[step.symbol] = error
    if refused:
        raise RefusedError(refused)
    return calls


class BoundSteps:
    """The steps of a program, bound for one set of sizes.

    addresses: of the registers. rows: of the dispatch loop's table, one for each native kernel.
    """

    def __init__(
        self,
        addresses: Sequence[int],
        block: np.ndarray,
        places: Mapping[int, tuple[int, int]],
        rows: np.ndarray,
        others: Mapping[int, BoundCall],
    ) -> None:
        self.addresses = addresses
        self.rows = rows
        self._block = block
        self._block_address = memory.address_of(block)
        self._places = places  # of a step's kernel: its row, and the place of its addresses in the block
        self._others = others

    @property
    def are_rows(self) -> bool:
        """True if all steps are native kernels."""
        return not self._others

    def call(self, number: int) -> BoundCall:
        """Return what a step runs."""
        if number in self._others:
            return self._others[number]
        return BoundCall([NativeCall._make(self.rows[self._places[number][0]].tolist())], [self._block])

    def rebinder(self, number: int, position: int) -> Rebinder | None:
        """Return the function that moves an argument of a step; None where it cannot be moved."""
        if number in self._others:
            return self._others[number].rebind.get(position)
        return partial(self._block.__setitem__, self._places[number][1] + position)

    def slot(self, number: int, position: int) -> int | None:
        """Return where the word with the address of an argument is; None where there is no such word."""
        if number in self._others:
            return self._others[number].slots.get(position)
        return self._block_address + WORD * (self._places[number][1] + position)


def _concatenate(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([item for part in parts for item in part], np.int64)
