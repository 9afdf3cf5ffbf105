"""A program's tables in C: what `program.c` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.dims.c_text import C_FUNCTIONS, to_c
from kernelyard.runtime import safetensors_format
from kernelyard.runtime.artifact import CONSTANTS
from kernelyard.runtime.container import read_container
from kernelyard.runtime.native_unit import PARTS, WRONG_CPU, NativeFunction, NativeUnit
from kernelyard.runtime.plan import spans_of
from kernelyard.runtime.program import Program
from kernelyard.runtime.spec import TensorSpec

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable

# DLPack's type codes.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12}
_HEAD = """\
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernelyard.h"

typedef struct { const char* name; DLDataType dtype; int32_t rank; const int64_t* dims; } ky_spec;
typedef struct { int64_t offset, nbytes; } ky_constant;
/* kind: 'i' input, 'c' constant, 'b' buffer, 'a' alias of `root`; needed from step `first` to step `last` */
typedef struct { char kind; int32_t number, root, first, last; } ky_register;
typedef struct {
  const char* name;
  int32_t (*prepare)(const void* const*, int32_t, void**);
  int32_t (*bind)(void*, const int64_t*, int32_t, void**, int64_t*);
  int32_t (*run)(void**, void*, int32_t, void*);
  void (*unbind)(void*);
  void (*release)(void*);
  int32_t num_constants, num_sizes;
  const int32_t *constants, *sizes;
} ky_function;
typedef struct { const char* label; int32_t function, num_args; const int32_t* args; } ky_step;

extern const unsigned char ky_artifact[];
static int32_t ky_fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int64_t ky_nbytes(int64_t itemsize, int32_t rank, const int64_t* shape) {
  for (int32_t i = 0; i < rank; i++)
    if (shape[i] < 0 || (shape[i] && itemsize > INT64_MAX / shape[i])) return -1;
    else itemsize *= shape[i];
  return itemsize;
}
"""
_PROTOTYPES = """\
int32_t {0}_prepare(const void* const*, int32_t, void**);
int32_t {0}_bind(void*, const int64_t*, int32_t, void**, int64_t*);
int32_t {0}_run(void**, void*, int32_t, void*);
void {0}_unbind(void*);
void {0}_release(void*);
"""


def write_tables(executable: Executable, units: Mapping[int, NativeUnit], saved: os.PathLike[str], reason: str) -> str:
    """The C text of the main program. saved: the artifact that the library will hold. reason: why the program needs
    Python, which leaves only what describes it."""
    program = executable.main
    functions = {(m, f.symbol): f for m, unit in units.items() for f in unit.functions}
    used = {} if reason else {(s.module, s.symbol): functions[s.module, s.symbol] for s in program.steps}
    reason = reason or _unsolvable(program)
    return _Writer(program, {} if reason else used, constant_places(saved), reason).write()


def constant_places(saved: os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Offset and size of each constant's bytes in a saved artifact, by digest."""
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


def _unsolvable(program: Program) -> str:
    """Why the sizes cannot be read off the inputs' shapes in C; empty where they can."""
    plain = {dims.as_symbol(dim) for spec in program.inputs for dim in spec.shape}
    missing = [name for name in program.symbols if name not in plain]
    if missing:
        return (
            f"the size {missing[0]!r} is no axis of an input, only part of one: load this library with kernelyard.load"
        )
    return ""


class _Writer:
    def __init__(
        self,
        program: Program,
        functions: Mapping[tuple[int, str], NativeFunction],
        places: Mapping[str, tuple[int, int]],
        reason: str,
    ) -> None:
        self._program = program
        self._reason = reason
        self._functions = dict(functions)
        self._steps = () if reason else program.steps
        self._symbols = {name: number for number, name in enumerate(program.symbols)}
        self._names = {name: f"s[{number}]" for name, number in self._symbols.items()}
        digests = [*program.digests(), *(d for function in functions.values() for d in function.constants)]
        self._constants = {} if reason else {digest: places[digest] for digest in dict.fromkeys(digests)}
        self._digests = list(self._constants)

    def write(self) -> str:
        program = self._program
        counts = {
            "INPUTS": len(program.inputs),
            "OUTPUTS": len(program.outputs),
            "SYMBOLS": len(program.symbols),
            "CONSTANTS": len(self._constants),
            "REGISTERS": len(program.registers),
            "FUNCTIONS": len(self._functions),
            "STEPS": len(self._steps),
            "MAX_ARGS": max((len(s.inputs) + len(s.outputs) for s in self._steps), default=0),
            "MAX_RANK": max((len(spec.shape) for spec in (*program.inputs, *program.outputs)), default=0),
            "WRONG_CPU": WRONG_CPU,
        }
        return "\n".join(
            [
                _HEAD,
                C_FUNCTIONS,
                *(f"enum {{ KY_{name} = {count} }};" for name, count in counts.items()),
                f"static const char* const ky_needs_python = {json.dumps(self._reason) if self._reason else 'NULL'};",
                self._specs("ky_inputs", program.inputs),
                self._specs("ky_outputs", program.outputs),
                _table("ky_constant", "ky_constants", (f"{{{o}, {n}}}" for o, n in self._constants.values())),
                _table("ky_register", "ky_registers", self._registers()),
                _table("int32_t", "ky_results", map(str, program.results)),
                *(_PROTOTYPES.format(function.name) for function in self._functions.values()),
                _table("ky_function", "ky_functions", map(self._function, self._functions.values())),
                _table("ky_step", "ky_steps", self._step_rows()),
                self._solve(),
                self._measure(),
                self._output_dims(),
            ]
        )

    # --- tables ---------------------------------------------------------------------------------------------------
    def _specs(self, name: str, specs: Sequence[TensorSpec]) -> str:
        rows = (
            f"{{{_string(spec.name)}, {_dtype(spec.dtype)}, {len(spec.shape)}, "
            f"{_array('int64_t', (str(dim if isinstance(dim, int) else -1) for dim in spec.shape))}}}"
            for spec in specs
        )
        return _table("ky_spec", name, rows)

    def _registers(self) -> Iterable[str]:
        spans = spans_of(self._program)
        for number, register in enumerate(self._program.registers):
            index = register.index
            if register.kind == "constant":
                index = self._digests.index(register.digest) if self._digests else 0
            first, last = spans.get(number, (0, -1))
            yield f"{{'{register.kind[0]}', {index}, {self._program.root(number)}, {first}, {last}}}"

    def _function(self, function: NativeFunction) -> str:
        parts = ", ".join(f"{function.name}_{part}" for part in PARTS)
        constants = [str(self._digests.index(digest)) for digest in function.constants]
        sizes = [str(self._symbols[name]) for name in function.sizes]
        return (
            f"{{{_string(function.symbol)}, {parts}, {len(constants)}, {len(sizes)}, "
            f"{_array('int32_t', constants)}, {_array('int32_t', sizes)}}}"
        )

    def _step_rows(self) -> Iterable[str]:
        numbers = {key: number for number, key in enumerate(self._functions)}
        for step in self._steps:
            args = [str(register) for register in step.inputs + step.outputs]
            label = _string(step.label or step.symbol)
            yield f"{{{label}, {numbers[step.module, step.symbol]}, {len(args)}, {_array('int32_t', args)}}}"

    # --- functions of the sizes -----------------------------------------------------------------------------------
    def _c(self, dim: Dim) -> str:
        return to_c(dim, self._names)

    def _solve(self) -> str:
        """Values of the symbolic dims from the inputs' shapes; everything else is checked."""
        lines, checks, known = [], [], set()
        for number, spec in enumerate(self._program.inputs):
            for axis, dim in enumerate(spec.shape):
                name = dims.as_symbol(dim)
                found = f"inputs[{number}].shape[{axis}]"
                where = f"{spec.name}: axis {axis}"
                if name is not None and name not in known:
                    known.add(name)
                    lines.append(
                        f"  if ((s[{self._symbols[name]}] = {found}) < 1) return {_fail(f'{where} is empty')};"
                    )
                elif not dims.symbols_of(dim) - set(self._names):
                    checks.append(f"  if ({found} != {self._c(dim)}) return {_fail(f'{where} is not {dim}')};")
        for check in self._program.checks:
            message = f"{check.where}: {check.left} is not {check.right}"
            checks.append(f"  if ({self._c(check.left)} != {self._c(check.right)}) return {_fail(message)};")
        if self._reason:
            checks = []
        body = ["  (void)inputs; (void)s;", *lines, *checks, "  return 0;"]
        return _function("int32_t", "ky_solve(const DLTensor* inputs, int64_t* s)", body)

    def _measure(self) -> str:
        """The bytes of every register."""
        lines = ["  (void)s; (void)nbytes;"]
        for number, register in enumerate(() if self._reason else self._program.registers):
            shape = _array("int64_t", map(self._c, register.shape))
            size = dtypes.itemsize(register.dtype)
            lines.append(f"  nbytes[{number}] = ky_nbytes({size}, {len(register.shape)}, {shape});")
            misfit = f"nbytes[{number}] < 0"
            if register.kind == "alias":
                misfit += f" || nbytes[{number}] != nbytes[{register.source}]"
            lines.append(f"  if ({misfit}) return {_fail('inputs of these sizes do not fit together')};")
        return _function("int32_t", "ky_measure(const int64_t* s, int64_t* nbytes)", [*lines, "  return 0;"])

    def _output_dims(self) -> str:
        lines = ["  (void)s;"]
        for number, spec in enumerate(self._program.outputs):
            sizes = " ".join(f"shape[{axis}] = {self._c(dim)};" for axis, dim in enumerate(spec.shape))
            lines.append(f"  if (output == {number}) {{ {sizes} }}")
        return _function("void", "ky_output_dims(const int64_t* s, int32_t output, int64_t* shape)", lines)


def _function(result: str, signature: str, lines: Sequence[str]) -> str:
    body = [f"static {result} {signature} {{", *lines, "}"]
    return "\n".join(body)


def _fail(message: str) -> str:
    return f'ky_fail("%s", {_string(message)})'


def _string(text: str) -> str:
    """A C string literal: ASCII as it is, other bytes as octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def _dtype(name: str) -> str:
    code = _CODES[name if name in _CODES else name.rstrip("0123456789")]
    return f"{{{code}, {8 * dtypes.itemsize(name)}, 1}}"


def _array(type_: str, items: Iterable[str]) -> str:
    listed = ", ".join(items)
    return f"(const {type_}[]){{{listed}}}" if listed else "NULL"


def _table(type_: str, name: str, rows: Iterable[str]) -> str:
    """A constant array; C has no empty ones."""
    listed = ",\n  ".join(rows)
    return f"static const {type_} {name}[] = {{\n  {listed}\n}};" if listed else f"static const {type_} {name}[1];"
