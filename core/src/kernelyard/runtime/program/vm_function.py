"""VMFunction: a function with control flow. Code over values; what has none in between is a Program, a block of it.

A value is a tensor, or a closure, that code reads and writes by number; the first ones are the inputs. Values are
handed on, never copied. Sizes that are known only once a value is there are symbols, which `bind` reads off it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kernelyard import dtypes
from kernelyard.cached_property import cached_property
from kernelyard.dims import Bounds, Shape
from kernelyard.records import record
from kernelyard.runtime.abi.spec import Fields, TensorSpec, corrupted
from kernelyard.runtime.program.program import Program

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.abi.module import RuntimeModule

RUN = "run"  # block number `target` on the inputs gives the outputs
CALL = "call"  # function `symbol` of the executable on the inputs gives the outputs
CLOSE = "close"  # the output is function `symbol` of the executable, with the inputs as its first ones
INVOKE = "invoke"  # the function that the first input is, on the other inputs, gives the outputs
EVALUATE = "evaluate"  # function `symbol` of module number `target`, which makes its outputs itself
MOVE = "move"  # the outputs are the inputs
BIND = "bind"  # the sizes of the inputs are what their specs say; symbols that are new are known from now on
COLLECT = "collect"  # each input is put behind what was collected for the output beside it
STACK = "stack"  # each output is what was collected for it, along a new first axis
IF = "if"  # the code goes on where the input is true, and at `target` otherwise
GOTO = "goto"  # the code goes on at `target`
RETURN = "ret"  # the inputs are the results
INSTRUCTIONS = (RUN, CALL, CLOSE, INVOKE, EVALUATE, MOVE, BIND, COLLECT, STACK, IF, GOTO, RETURN)
_JUMPS = (IF, GOTO)
_ON_TENSORS = (RUN, EVALUATE, COLLECT, STACK, IF)
_CLOSURE = {"closure": True}


@record
class ClosureSpec(TensorSpec):
    """Stands for a tensor's spec where a value is a closure, which has neither sizes nor elements."""

    shape: Shape = ()
    dtype: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON data."""
        return {**({"name": self.name} if self.name else {}), **_CLOSURE}

    def __repr__(self) -> str:
        return f"{self.name}: closure" if self.name else "closure"


@record
class Closure:
    """A value: a function of the executable, its first inputs, and the sizes that were known where it was made."""

    function: str
    captured: tuple[Any, ...]
    symbols: Mapping[str, int]
    shape: tuple[int, ...] = ()


@record
class Instruction:
    """One instruction; what `target` and `symbol` mean is said beside the names of the instructions."""

    name: str
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    target: int = -1
    symbol: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the instruction as JSON data."""
        extra: dict[str, Any] = {"target": self.target} if self.target >= 0 else {}
        if self.symbol:
            extra["symbol"] = self.symbol
        return {"name": self.name, "inputs": list(self.inputs), "outputs": list(self.outputs), **extra}

    def __str__(self) -> str:
        inputs, outputs = (", ".join(f"v{number}" for number in side) for side in (self.inputs, self.outputs))
        to = f" -> {self.target}" if self.name in _JUMPS else ""
        what = dict.fromkeys((CALL, CLOSE), f" {self.symbol}")
        what |= {RUN: f" {self.target}", EVALUATE: f" {self.target}.{self.symbol}"}
        return f"{f'{outputs} = ' if outputs else ''}{self.name}{what.get(self.name, '')}({inputs}){to}"


@record
class VMFunction:
    """One function with control flow, checked when it is made.

    inputs: the feeds, in order. outputs: names and types of the results. values: what each value is; the inputs come
    first. constants: the digests of the values that are constants. symbols: those that callers may know.
    private: only functions of the same executable call it.
    Raises: ArtifactCorruptedError when the parts do not fit together.
    """

    name: str
    symbols: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    values: tuple[TensorSpec, ...]
    blocks: tuple[Program, ...]
    code: tuple[Instruction, ...]
    constants: Mapping[int, str] = field(default_factory=dict)
    private: bool = False

    def __post_init__(self) -> None:
        where = f"function {self.name!r}"
        if self.values[: len(self.inputs)] != self.inputs:
            raise corrupted(where, self.values[: len(self.inputs)], f"the inputs {self.inputs}")
        if not self.private and any(isinstance(spec, ClosureSpec) for spec in (*self.inputs, *self.outputs)):
            raise corrupted(where, "a closure that callers give or get", "tensors")
        if not self.code or self.code[-1].name != RETURN:
            raise corrupted(where, str(self.code[-1]) if self.code else "no code", "a last instruction that returns")
        for number in self.constants:
            if not len(self.inputs) <= number < len(self.values):
                raise corrupted(where, f"constant {number}", f"a value below {len(self.values)} that is no input")
        for number, instruction in enumerate(self.code):
            _check(self, instruction, f"{where}, instruction {number}")
        _check_written(self, where)

    @cached_property
    def has_closures(self) -> bool:
        """True if some value is a closure."""
        return any(isinstance(spec, ClosureSpec) for spec in self.values)

    @property
    def size_bounds(self) -> dict[str, Bounds]:
        """The least and the largest size that each bounded symbol may have; a block without steps holds them."""
        return {name: pair for block in self.blocks for name, pair in block.size_bounds.items()}

    def digests(self) -> tuple[str, ...]:
        """Return the digests of the constants that values and blocks hold, each once."""
        of_blocks = (digest for block in self.blocks for digest in block.digests())
        return tuple(dict.fromkeys((*self.constants.values(), *of_blocks)))

    def check_links(
        self,
        constants: Mapping[str, np.ndarray],
        functions: Mapping[str, VMFunction],
        modules: Sequence[RuntimeModule],
    ) -> None:
        """Look that the constants and the functions that the code names are among those of its executable.

        Raises: ArtifactCorruptedError.
        """
        for number, digest in self.constants.items():
            array, spec = constants.get(digest), self.values[number]
            if array is None or (array.shape, dtypes.from_numpy(array.dtype)) != (spec.shape, spec.dtype):
                found = "no constant" if array is None else f"{array.shape} {array.dtype}"
                raise corrupted(f"function {self.name!r}, value {number}", found, repr(spec))
        for instruction in self.code:
            place = f"function {self.name!r}, {instruction}"
            callee = functions.get(instruction.symbol)
            if instruction.name == CALL:
                given = len(instruction.inputs), len(instruction.outputs)
                if callee is None or given != (len(callee.inputs), len(callee.outputs)):
                    raise corrupted(place, instruction.symbol, "a VM function that takes and gives as many values")
            if instruction.name == CLOSE and (callee is None or len(callee.inputs) < len(instruction.inputs)):
                raise corrupted(place, instruction.symbol, "a VM function that takes as many values, or more")
            if instruction.name == EVALUATE and (
                instruction.target >= len(modules) or instruction.symbol not in modules[instruction.target].symbols()
            ):
                raise corrupted(place, instruction.symbol, "a function that is there")

    def to_json(self) -> dict[str, Any]:
        """Return the VM function as JSON data."""
        return {
            "name": self.name,
            "symbols": list(self.symbols),
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "values": [spec.to_json() for spec in self.values],
            "blocks": [block.to_json() for block in self.blocks],
            "code": [instruction.to_json() for instruction in self.code],
            "constants": [{"value": number, "digest": digest} for number, digest in self.constants.items()],
            "private": self.private,
        }

    @staticmethod
    def from_json(value: Any, where: str = "function") -> VMFunction:
        """Read a VM function back.

        Raises: ArtifactCorruptedError.
        """
        fields = Fields(value, where)
        values = fields.each("values", _read_spec)
        count = len(values)
        constants = fields.each("constants", lambda item, place: _read_constant(Fields(item, place), count))
        private = fields.any("private")
        if not isinstance(private, bool):
            raise corrupted(f"{where}.private", private, "true or false")
        return VMFunction(
            name=fields.text("name"),
            symbols=fields.texts("symbols"),
            inputs=fields.each("inputs", _read_spec),
            outputs=fields.each("outputs", _read_spec),
            values=values,
            blocks=fields.each("blocks", Program.from_json),
            code=fields.each("code", lambda item, place: _read_instruction(Fields(item, place), count)),
            constants=dict(constants),
            private=private,
        )

    def __str__(self) -> str:
        head = f"{'private ' if self.private else ''}{self.name}({', '.join(map(repr, self.inputs))})"
        constants = [f"  v{number} = constant {digest[:8]}" for number, digest in self.constants.items()]
        lines = [f"  {number}: {instruction}" for number, instruction in enumerate(self.code)]
        blocks = ["\n".join(f"  {line}" for line in str(block).splitlines()) for block in self.blocks]
        return "\n".join([head, *constants, *lines, *blocks])


def _read_spec(value: Any, where: str) -> TensorSpec:
    fields = Fields(value, where)
    if "closure" not in fields:
        return fields.tensor()
    return ClosureSpec(name=fields.text("name") if "name" in fields else "")


def _read_constant(fields: Fields, values: int) -> tuple[int, str]:
    return fields.integer("value", 0, values - 1), fields.digest()


def _read_instruction(fields: Fields, values: int) -> Instruction:
    return Instruction(
        name=fields.text("name"),
        inputs=fields.indices("inputs", values),
        outputs=fields.indices("outputs", values),
        target=fields.integer("target") if "target" in fields else -1,
        symbol=fields.text("symbol") if "symbol" in fields else "",
    )


def _check_written(vm_function: VMFunction, where: str) -> None:
    """On every way to an instruction its inputs are written before it: so nobody needs to look when it runs."""
    written: list[frozenset[int] | None] = [None] * (len(vm_function.code) + 1)  # at each address, on all ways so far
    written[0] = frozenset((*range(len(vm_function.inputs)), *vm_function.constants))
    reached = [0]
    while reached:
        number = reached.pop()
        instruction, here = vm_function.code[number], written[number]
        assert here is not None
        missing = next((value for value in instruction.inputs if value not in here), None)
        if missing is not None:
            raise corrupted(f"{where}, instruction {number}", f"v{missing}, which may not be written yet", "what is")
        after = here.union(instruction.outputs if instruction.name != COLLECT else ())
        onward = {GOTO: (instruction.target,), IF: (number + 1, instruction.target), RETURN: ()}
        for following in onward.get(instruction.name, (number + 1,)):
            known = written[following]
            met = after if known is None else known & after
            if met != known:
                written[following] = met
                reached.append(following)


def _check(vm_function: VMFunction, instruction: Instruction, place: str) -> None:
    """Check that an instruction is known, goes on where there is something, and has operands as it needs them."""
    if instruction.name not in INSTRUCTIONS:
        raise corrupted(place, instruction.name, ", ".join(INSTRUCTIONS))
    limit = len(vm_function.blocks) if instruction.name == RUN else len(vm_function.code)
    if instruction.name in (RUN, *_JUMPS) and not 0 <= instruction.target < limit:
        raise corrupted(place, instruction.target, f"a number below {limit}")
    given, expected = (len(instruction.inputs), len(instruction.outputs)), _operand_counts(vm_function, instruction)
    if given != expected:
        raise corrupted(place, f"{given} operands", f"{expected}")
    _check_kinds(vm_function, instruction, place)


def _operand_counts(vm_function: VMFunction, instruction: Instruction) -> tuple[int, int]:
    """Return how many inputs and outputs an instruction needs; those that it has where any number will do."""
    inputs, outputs = len(instruction.inputs), len(instruction.outputs)
    if instruction.name == RUN:
        block = vm_function.blocks[instruction.target]
        return len(block.inputs), len(block.results)
    counts = {
        MOVE: (inputs, inputs),
        COLLECT: (inputs, inputs),
        STACK: (0, outputs),
        BIND: (inputs, 0),
        IF: (1, 0),
        GOTO: (0, 0),
        RETURN: (len(vm_function.outputs), 0),
        CLOSE: (inputs, 1),
        INVOKE: (max(inputs, 1), outputs),
    }
    return counts.get(instruction.name, (inputs, outputs))


def _check_kinds(vm_function: VMFunction, instruction: Instruction, place: str) -> None:
    """Check that the operands of an instruction are tensors and closures as it needs them."""
    operands = [vm_function.values[number] for number in (*instruction.inputs, *instruction.outputs)]
    closures = [isinstance(spec, ClosureSpec) for spec in operands]
    if instruction.name in _ON_TENSORS and any(closures):
        raise corrupted(place, "a closure", "tensors")
    if instruction.name == RETURN and closures != [isinstance(spec, ClosureSpec) for spec in vm_function.outputs]:
        raise corrupted(place, operands, repr(vm_function.outputs))
    if (instruction.name == INVOKE and not closures[0]) or (instruction.name == CLOSE and not closures[-1]):
        raise corrupted(place, "a tensor", "a closure")
    if instruction.name == IF and (operands[0].shape, operands[0].dtype) != ((), "bool"):
        raise corrupted(place, operands[0], "a truth value")
