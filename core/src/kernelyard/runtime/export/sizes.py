"""Sizes of an entry function in C: symbols solved as in `kernelyard.runtime.abi.solve_symbols`, checked, evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.dims.c_text import to_c
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.export.c_literals import array, string
from kernelyard.runtime.program.program import Program, Register
from kernelyard.runtime.program.vm_function import VMFunction


class SizeFunctions:
    """The C functions `solve`, `measure` and `output_dims` of a `ky_program` (`tables.h`), numbered `number`."""

    def __init__(self, entry: Program | VMFunction, number: int) -> None:
        self._entry = entry
        self._number = number
        results = {name: "KY_NONE" for spec in entry.outputs for dim in spec.shape for name in dims.symbols_of(dim)}
        self._names = results | {name: f"s[{index}]" for index, name in enumerate(entry.symbols)}

    def write(self, program: Program | None) -> str:
        """Return the three functions. program: what is run in C, whose memory is measured."""
        measured = self._measure(program) if program else ()
        return "\n".join(
            [
                self._function("int32_t", "solve", "const DLTensor* inputs, int64_t* s", self._solve()),
                self._function("int32_t", "measure", "const int64_t* s, int64_t* nbytes", measured),
                self._function(
                    "void", "output_dims", "const int64_t* s, int32_t output, int64_t* shape", self._outputs()
                ),
            ]
        )

    def _function(self, result: str, name: str, parameters: str, lines: Sequence[str] | Iterator[str]) -> str:
        unused = " ".join(f"(void){parameter.split()[-1]};" for parameter in parameters.split(", "))
        last = ["  return KY_OK;"] if result != "void" else []
        signature = f"static {result} ky_{name}_{self._number}({parameters}) {{"
        return "\n".join([signature, f"  {unused}", *lines, *last, "}"])

    def _c(self, dim: Dim) -> str:
        return to_c(dim, self._names)

    # --- solve ----------------------------------------------------------------------------------------------------
    def _solve(self) -> Iterator[str]:
        """Bare symbols first, whatever input they stand in; then the other dims in order, and the program's checks."""
        known: set[str] = set()
        deferred: list[tuple[TensorSpec, int, str, Dim]] = []
        for number, spec in enumerate(self._entry.inputs):
            for axis, dim in enumerate(spec.shape):
                name = dims.as_symbol(dim)
                found = f"inputs[{number}].shape[{axis}]"
                if name is not None and name not in known:
                    known.add(name)
                    yield _return_if(f"ky_take(&{self._names[name]}, {found}, {_axis_arguments(spec, axis, dim)})")
                else:
                    deferred.append((spec, axis, found, dim))
        for spec, axis, found, dim in deferred:
            unknown = sorted(dims.symbols_of(dim) - known)
            if len(unknown) > 1:
                yield f"  return {_fail_undecided(spec, axis, dim, unknown)};"
                return
            if unknown:
                known.add(unknown[0])
                yield from self._affine(unknown[0], dim, found, _axis_arguments(spec, axis, dim))
            text = "NULL" if isinstance(dim, int) else string(str(dim))
            yield _return_if(f"ky_expect({found}, {self._c(dim)}, {string(spec.name)}, {axis}, {text})")
        yield from (f"  {self._names[name]} = KY_NONE;" for name in self._entry.symbols if name not in known)
        for check in self._entry.checks if isinstance(self._entry, Program) else ():
            texts = ", ".join(map(string, (check.where, str(check.left), str(check.right))))
            yield _return_if(f"ky_equal({self._c(check.left)}, {self._c(check.right)}, {texts})")

    def _affine(self, name: str, dim: Dim, found: str, place: str) -> Iterator[str]:
        symbol = self._names[name]
        values = "; ".join(f"{symbol} = {n}, at[{n - 1}] = {self._c(dim)}" for n in (1, 2, 3))
        yield f"  {{ int64_t at[3]; {values};"
        yield f"  {_return_if(f'ky_solve_affine(&{symbol}, at, {found}, {place})')} }}"

    # --- measure --------------------------------------------------------------------------------------------------
    def _measure(self, program: Program) -> Iterator[str]:
        makers = {r: step.label or step.symbol for step in program.steps for r in step.outputs}
        for number, register in enumerate(program.registers):
            yield f"  nbytes[{number}] = {self._nbytes(register)};"
            where = makers.get(program.root(number), program.name)
            misfit = f"nbytes[{number}] < 0"
            if register.kind == "alias":
                misfit += f" || nbytes[{number}] != nbytes[{register.source}]"
            if any(isinstance(dim, dims.SymbolicDim) for dim in register.shape) or register.kind == "alias":
                yield f"  if ({misfit}) return {_fail(f'{where}: the sizes of the inputs are inconsistent')};"

    def _nbytes(self, register: Register) -> str:
        shape = array("int64_t", map(self._c, register.shape))
        return f"ky_nbytes({dtypes.itemsize(register.dtype)}, {len(register.shape)}, {shape})"

    def _outputs(self) -> Iterator[str]:
        for number, spec in enumerate(self._entry.outputs):
            sizes = " ".join(f"shape[{axis}] = {self._c(dim)};" for axis, dim in enumerate(spec.shape))
            yield f"  if (output == {number}) {{ {sizes} }}"


def _axis_arguments(spec: TensorSpec, axis: int, dim: Dim) -> str:
    return f"{string(spec.name)}, {axis}, {string(str(dim))}"


def _fail_undecided(spec: TensorSpec, axis: int, dim: Dim, unknown: Sequence[str]) -> str:
    names = " and ".join(unknown)
    return _fail(f"{spec.name}: axis {axis} is {dim}, which does not determine {names}")


def _return_if(call: str) -> str:
    return f"  if ({call}) return KY_BAD_TENSOR;"


def _fail(message: str) -> str:
    return f'ky_fail(KY_BAD_TENSOR, "%s", {string(message)})'
