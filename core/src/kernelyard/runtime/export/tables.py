"""The entry functions of an executable as C tables: `tables.h` says what they are made of, `program.c` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.abi.native_unit import PARTS, WRONG_CPU, NativeFunction, NativeUnit
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.artifact import safetensors_format
from kernelyard.runtime.artifact.container import read_container
from kernelyard.runtime.artifact.kyar import CONSTANTS
from kernelyard.runtime.execute.compiled_model import MAIN
from kernelyard.runtime.export.c_literals import array, string, table
from kernelyard.runtime.export.sizes import SizeFunctions
from kernelyard.runtime.program.execution_plan import spans_of
from kernelyard.runtime.program.program import Program
from kernelyard.runtime.program.vm_function import VMFunction

if TYPE_CHECKING:
    from kernelyard.runtime.execute.executable import Executable

# DLPack's type codes.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12}
_PROTOTYPES = """\
int32_t {0}_prepare(const void* const*, int32_t, void**);
int32_t {0}_bind(void*, const int64_t*, int32_t, void**, int64_t*);
int32_t {0}_run(void**, void*, int32_t, void*);
void {0}_unbind(void*);
void {0}_release(void*);"""

KernelKey = tuple[int, str]


def write_tables(
    executable: Executable,
    units: Mapping[int, NativeUnit],
    saved: os.PathLike[str],
    reasons: Mapping[str, str],
) -> str:
    """Return the C text. units: of the modules that have one, by number. saved: the artifact that the library will
    hold. reasons: why an entry function needs Python, by its name; such a one is described only.
    """
    entries = sorted(executable.entries.values(), key=lambda entry: entry.name != MAIN)
    functions = {(m, f.symbol): f for m, unit in units.items() for f in unit.functions}
    runnable = [entry for entry in entries if isinstance(entry, Program) and entry.name not in reasons]
    used = dict.fromkeys((step.module, step.symbol) for program in runnable for step in program.steps)
    kernels = {key: functions[key] for key in used}
    digests = [digest for program in runnable for digest in program.digests()]
    digests += [digest for kernel in kernels.values() for digest in kernel.constants]
    alone = {key for key in kernels if executable.binds_for_one_thread(executable.modules[key[0]])}
    return _Writer(entries, kernels, alone, list(dict.fromkeys(digests)), constant_places(saved), reasons).write()


def constant_places(saved: os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each constant's bytes in a saved artifact, by digest."""
    contents = read_container(saved)
    member = contents.member(CONSTANTS, "manifest")
    start = _file_start(member)
    arrays = safetensors_format.from_bytes(member, CONSTANTS)
    return {digest: (array.ctypes.data - start, array.nbytes) for digest, array in arrays.items()}


def _file_start(member: np.ndarray) -> int:
    base = member
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.ctypes.data


class _Writer:
    def __init__(
        self,
        entries: Sequence[Program | VMFunction],
        kernels: Mapping[KernelKey, NativeFunction],
        alone: Set[KernelKey],
        digests: Sequence[str],
        places: Mapping[str, tuple[int, int]],
        reasons: Mapping[str, str],
    ) -> None:
        self._entries = entries
        self._kernels = kernels
        self._alone = alone
        self._kernel_numbers = {key: number for number, key in enumerate(kernels)}
        self._constants = {digest: number for number, digest in enumerate(digests)}
        self._places = places
        self._reasons = reasons

    def write(self) -> str:
        entries = self._entries
        specs = [spec for entry in entries for spec in (*entry.inputs, *entry.outputs)]
        counts = {
            "PROGRAMS": len(entries),
            "KERNELS": len(self._kernels),
            "CONSTANTS": len(self._constants),
            "MAX_SYMBOLS": max((len(entry.symbols) for entry in entries), default=0),
            "MAX_RANK": max((len(spec.shape) for spec in specs), default=0),
            "WRONG_CPU": WRONG_CPU,
        }
        places = (self._places[digest] for digest in self._constants)
        return "\n".join(
            [
                *(f"enum {{ KY_{name} = {count} }};" for name, count in counts.items()),
                table("ky_constant", "ky_constants", (f"{{{offset}, {nbytes}}}" for offset, nbytes in places)),
                *(_PROTOTYPES.format(kernel.name) for kernel in self._kernels.values()),
                table("ky_kernel", "ky_kernels", map(self._kernel, self._kernels)),
                *(self._tables_of(entry, number) for number, entry in enumerate(entries)),
                table("ky_program", "ky_programs", (self._entry(e, number) for number, e in enumerate(entries))),
            ]
        )

    def _kernel(self, key: KernelKey) -> str:
        kernel, one_thread = self._kernels[key], int(key in self._alone)
        parts = ", ".join(f"{kernel.name}_{part}" for part in PARTS)
        constants = [str(self._constants[digest]) for digest in kernel.constants]
        return f"{{{string(kernel.symbol)}, {parts}, {one_thread}, {len(constants)}, {array('int32_t', constants)}}}"

    # --- one entry function ---------------------------------------------------------------------------------------
    def _program(self, entry: Program | VMFunction) -> Program | None:
        """Return the program that C runs for an entry; None where it cannot be exported."""
        return entry if isinstance(entry, Program) and entry.name not in self._reasons else None

    def _tables_of(self, entry: Program | VMFunction, number: int) -> str:
        program = self._program(entry)
        return "\n".join(
            [
                table("ky_spec", f"ky_inputs_{number}", map(_spec, entry.inputs)),
                table("ky_spec", f"ky_outputs_{number}", map(_spec, entry.outputs)),
                table("ky_register", f"ky_registers_{number}", self._registers(program) if program else ()),
                table("int32_t", f"ky_results_{number}", map(str, program.results) if program else ()),
                table("ky_step", f"ky_steps_{number}", self._steps(program) if program else ()),
                SizeFunctions(entry, number).write(program),
            ]
        )

    def _entry(self, entry: Program | VMFunction, number: int) -> str:
        program = self._program(entry)
        signature = f"{entry.name}({_join_specs(entry.inputs)}) -> ({_join_specs(entry.outputs)})"
        steps = program.steps if program else ()
        counts = (
            len(entry.symbols),
            len(entry.inputs),
            len(entry.outputs),
            len(program.registers) if program else 0,
            len(steps),
            max((len(step.inputs) + len(step.outputs) for step in steps), default=0),
        )
        names = ("inputs", "outputs", "registers", "results", "steps", "solve", "measure", "output_dims")
        reason = "NULL" if program else string(self._reasons[entry.name])
        parts = [string(entry.name), string(signature), reason, *map(str, counts)]
        return f"{{{', '.join([*parts, *(f'ky_{name}_{number}' for name in names)])}}}"

    def _registers(self, program: Program) -> Iterable[str]:
        spans = spans_of(program)
        for number, register in enumerate(program.registers):
            index = self._constants[register.digest] if register.kind == "constant" else register.index
            first, last = spans.get(number, (0, -1))
            yield f"{{'{register.kind[0]}', {index}, {program.root(number)}, {first}, {last}}}"

    def _steps(self, program: Program) -> Iterable[str]:
        symbols = {name: number for number, name in enumerate(program.symbols)}
        for step in program.steps:
            key = step.module, step.symbol
            args = [str(register) for register in step.inputs + step.outputs]
            sizes = [str(symbols[name]) for name in self._kernels[key].sizes]
            lists = f"{array('int32_t', args)}, {array('int32_t', sizes)}"
            numbers = f"{self._kernel_numbers[key]}, {len(args)}, {len(sizes)}"
            yield f"{{{string(step.label or step.symbol)}, {numbers}, {lists}}}"


def _join_specs(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(repr, specs))


def _spec(spec: TensorSpec) -> str:
    sizes = array("int64_t", (str(dim if isinstance(dim, int) else -1) for dim in spec.shape))
    return f"{{{string(spec.name)}, {_dtype(spec.dtype)}, {len(spec.shape)}, {sizes}}}"


def _dtype(name: str) -> str:
    code = _CODES[name if name in _CODES else name.rstrip("0123456789")]
    return f"{{{code}, {8 * dtypes.itemsize(name)}, 1}}"
