"""Program: what the virtual machine runs for one entry function. Registers, and steps over them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kernelyard import dims
from kernelyard.cached_property import cached_property
from kernelyard.dims import Bounds, Dim, Function, Shape, SymbolicDim
from kernelyard.records import NamedTuple, record
from kernelyard.runtime.abi.spec import Fields, TensorSpec, corrupted, shape_to_json

REGISTER_KINDS = ("input", "constant", "buffer", "alias")


@record
class Register:
    """A tensor of a program.

    kind: "input" (number `index` of the inputs), "constant" (`digest`), "buffer" (written by one step), or "alias"
      (the bytes of register `source`, which comes before, in another shape).
    """

    shape: Shape
    dtype: str
    kind: str
    index: int = -1
    digest: str = ""
    source: int = -1

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the register as JSON data."""
        own = {"input": ("index", self.index), "constant": ("digest", self.digest), "alias": ("source", self.source)}
        extra = dict([own[self.kind]]) if self.kind in own else {}
        return {"kind": self.kind, "shape": shape_to_json(self.shape), "dtype": self.dtype, **extra}


@record
class Step:
    """A call of function `symbol` of module number `module`: reads registers `inputs`, writes registers `outputs`."""

    module: int
    symbol: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON data."""
        return {
            "module": self.module,
            "symbol": self.symbol,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "label": self.label,
        }


class Jump(NamedTuple):
    """The program goes on at `target` where register `condition` is false; always, where that is -1.

    place, target: positions among steps, jumps and transfers, counted together. A target that comes earlier begins a
    loop.
    """

    place: int
    target: int
    condition: int = -1


COPY = "copy"  # register `source` to register `target`
CLEAR = "clear"  # `target`, which collects an item of each iteration along its first axis, has none
COLLECT = "collect"  # `source` is put behind the items that `target` has
CHECK_FULL = "check full"  # it is an error if there is room for more items in `target`


class Transfer(NamedTuple):
    """Bytes move between registers; `kind` is one of the above, place is as that of a jump."""

    place: int
    kind: str
    target: int
    source: int = -1


class SizeCheck(NamedTuple):
    """Two dims that must be equal once the sizes are known; `where` says what needs it."""

    left: Dim
    right: Dim
    where: str

    @property
    def bound(self) -> tuple[str, str, int] | None:
        """Return symbol, "min" or "max", and bound where the check at "n" is `min(n, 2) = 2` or `max(n, 8) = 8`."""
        if not isinstance(self.left, SymbolicDim) or not isinstance(self.right, int):
            return None
        atom = self.left.terms[0][0][0] if len(self.left.terms) == 1 and len(self.left.terms[0][0]) == 1 else None
        if not isinstance(atom, Function) or atom.name not in ("min", "max") or self.left.terms[0][1] != 1:
            return None
        names = [dims.as_symbol(side) for side in (atom.left, atom.right) if side != self.right]
        return (names[0], atom.name, self.right) if names == [self.where] and names[0] is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON data."""
        return {"dims": shape_to_json((self.left, self.right)), "where": self.where}


def root_of(registers: Sequence[Register], number: int) -> int:
    """Return the register whose bytes a register shows: itself, unless it is an alias."""
    while registers[number].kind == "alias":
        number = registers[number].source
    return number


@record
class Program:
    """One entry function, checked when it is made.

    inputs: the feeds, in order. outputs: names of the results; `results` are their registers.
    symbols: names of the symbolic dims; the shapes of the inputs give their values. checks: what these must satisfy.
    jumps, transfers: between steps; programs that are saved have none (see `flatten_control_flow`).
    Raises: ArtifactCorruptedError when the parts do not fit together.
    """

    name: str
    symbols: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    registers: tuple[Register, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    checks: tuple[SizeCheck, ...] = ()
    jumps: tuple[Jump, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    def __post_init__(self) -> None:
        where = f"program {self.name!r}"
        _check_registers(self, where)
        _check_steps(self, where)
        _check_results(self, where)

    @property
    def size_bounds(self) -> dict[str, Bounds]:
        """The least and the largest size that each bounded symbol may have, None where it is open."""
        bounds: dict[str, Bounds] = {}
        for name, side, value in filter(None, (check.bound for check in self.checks)):
            low, high = bounds.get(name, (0, None))
            if side == "min":
                bounds[name] = max(low, value), high
            else:
                bounds[name] = low, value if high is None else min(value, high)
        return bounds

    def digests(self) -> tuple[str, ...]:
        """Return the digests of the constants that registers hold, each once."""
        return tuple(dict.fromkeys(register.digest for register in self.registers if register.kind == "constant"))

    def root(self, register: int) -> int:
        """Return the register whose bytes this one shows: itself, unless it is an alias."""
        return root_of(self.registers, register)

    @cached_property
    def order(self) -> tuple[Step | Jump | Transfer, ...]:
        """Steps, jumps and transfers, as they follow one another."""
        placed = {each.place: each for each in (*self.jumps, *self.transfers)}
        steps = iter(self.steps)
        return tuple(placed[n] if n in placed else next(steps) for n in range(len(placed) + len(self.steps)))

    def to_json(self) -> dict[str, Any]:
        """Return the program as JSON data."""
        return {
            "name": self.name,
            "symbols": list(self.symbols),
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "registers": [register.to_json() for register in self.registers],
            "steps": [step.to_json() for step in self.steps],
            "results": list(self.results),
            "checks": [check.to_json() for check in self.checks],
        }

    @staticmethod
    def from_json(value: Any, where: str = "program") -> Program:
        """Read a program back.

        Raises: ArtifactCorruptedError.
        """
        fields = Fields(value, where)
        registers = fields.each("registers", lambda item, place: _read_register(Fields(item, place)))
        known = len(registers)
        return Program(
            name=fields.text("name"),
            symbols=fields.texts("symbols"),
            inputs=fields.each("inputs", lambda item, place: Fields(item, place).tensor()),
            outputs=fields.each("outputs", lambda item, place: Fields(item, place).tensor()),
            registers=registers,
            steps=fields.each("steps", lambda item, place: _read_step(Fields(item, place), known)),
            results=fields.indices("results", known),
            checks=fields.each("checks", lambda item, place: _read_check(Fields(item, place))),
        )

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(map(repr, self.inputs))})"]
        for step in self.steps:
            outputs = ", ".join(f"r{r}: {self.registers[r].spec!r}" for r in step.outputs)
            inputs = ", ".join(f"r{r}" for r in step.inputs)
            lines.append(f"  {outputs} = {step.module}.{step.symbol}({inputs})")
        return "\n".join([*lines, f"  return {', '.join(f'r{r}' for r in self.results)}"])


def _read_register(fields: Fields) -> Register:
    kind = fields.text("kind")
    if kind not in REGISTER_KINDS:
        raise corrupted(f"{fields.where}.kind", kind, ", ".join(REGISTER_KINDS))
    return Register(
        shape=fields.shape(),
        dtype=fields.dtype(),
        kind=kind,
        index=fields.integer("index") if kind == "input" else -1,
        digest=fields.digest() if kind == "constant" else "",
        source=fields.integer("source") if kind == "alias" else -1,
    )


def _read_step(fields: Fields, registers: int) -> Step:
    return Step(
        module=fields.integer("module"),
        symbol=fields.text("symbol"),
        inputs=fields.indices("inputs", registers),
        outputs=fields.indices("outputs", registers),
        label=fields.text("label"),
    )


def _read_check(fields: Fields) -> SizeCheck:
    pair = fields.shape("dims")
    if len(pair) != 2:
        raise corrupted(f"{fields.where}.dims", pair, "two dims")
    return SizeCheck(pair[0], pair[1], fields.text("where"))


def _check_registers(program: Program, where: str) -> None:
    known = set(program.symbols)
    for spec in program.inputs:
        missing = {name for dim in spec.shape for name in dims.symbols_of(dim)} - known
        if missing:
            raise corrupted(f"{where}, input {spec.name!r}", sorted(missing), f"symbols of {sorted(known)}")
    for check in program.checks:
        if not dims.symbols_of(check.left) | dims.symbols_of(check.right) <= known:
            raise corrupted(f"{where}, check", f"{check.left} = {check.right}", f"symbols of {sorted(known)}")
    for number, register in enumerate(program.registers):
        place = f"{where}, register {number}"
        if not {name for dim in register.shape for name in dims.symbols_of(dim)} <= known:
            raise corrupted(place, register.shape, f"symbols of {sorted(known)}")
        if register.kind == "input":
            _check_input(program, register, place)
        if register.kind == "alias":
            _check_alias(program, register, number, place)


def _check_input(program: Program, register: Register, place: str) -> None:
    if not 0 <= register.index < len(program.inputs):
        raise corrupted(place, register.index, f"one of {len(program.inputs)} inputs")
    spec = program.inputs[register.index]
    if (spec.shape, spec.dtype) != (register.shape, register.dtype):
        raise corrupted(place, register.spec, repr(spec))


def _check_alias(program: Program, register: Register, number: int, place: str) -> None:
    if not 0 <= register.source < number:
        raise corrupted(place, register.source, "a register that comes before")
    if program.registers[register.source].dtype != register.dtype:
        raise corrupted(place, register.dtype, f"dtype {program.registers[register.source].dtype}")


def _check_steps(program: Program, where: str) -> None:
    """Check that one step writes each buffer, before it is read; where there are jumps, one on each way."""
    unwritten = {number for number, register in enumerate(program.registers) if register.kind == "buffer"}
    writable = frozenset(unwritten)
    numbers = count()
    for each in program.order:
        if isinstance(each, Jump):
            continue
        if isinstance(each, Transfer):
            place = f"{where}, {each.kind} to register {each.target}"
            read = tuple(number for number in (each.source,) if number >= 0)
            written = (each.target,) if each.kind in (COPY, CLEAR) else ()
        else:
            place = f"{where}, step {next(numbers)} ({each.label or each.symbol})"
            read, written = each.inputs, each.outputs
        _check_read(program, read, unwritten, place)
        for register in map(program.root, written):
            if register not in (writable if program.jumps else unwritten):
                raise corrupted(place, f"writes register {register}", "a buffer that nothing has written")
            unwritten.discard(register)
    _check_read(program, program.results, unwritten, f"{where}, results")


def _check_read(program: Program, registers: Sequence[int], unwritten: set[int], place: str) -> None:
    for register in registers:
        if not 0 <= register < len(program.registers):
            raise corrupted(place, register, f"one of {len(program.registers)} registers")
        if program.root(register) in unwritten:
            raise corrupted(place, f"reads register {register}", "a register that holds a value")


def _check_results(program: Program, where: str) -> None:
    if len(program.results) != len(program.outputs):
        raise corrupted(where, f"{len(program.results)} results", f"{len(program.outputs)} outputs")
    for spec, result in zip(program.outputs, program.results, strict=True):
        register = program.registers[result]
        if (spec.shape, spec.dtype) != (register.shape, register.dtype):
            raise corrupted(f"{where}, output {spec.name!r}", register.spec, repr(spec))
    names = [spec.name for spec in program.inputs]
    if len(set(names)) != len(names):
        raise corrupted(where, names, "distinct input names")
