"""export_library: an executable as one shared library, for `kernelyard.load` and for programs in C.

The library holds the artifact's bytes in a section of its own. Where every step of an entry function has native code
(`RuntimeModule.native_unit`), it holds that code too, and C programs call the function without Python.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.dims.c_text import C_FUNCTIONS
from kernelyard.errors import ArtifactError, KernelyardError, LibraryWarning, describe, warn_caller
from kernelyard.runtime.abi.native_unit import NativeUnit
from kernelyard.runtime.abi.runtime_halves import requirement
from kernelyard.runtime.artifact import kyar
from kernelyard.runtime.artifact.container import SECTION
from kernelyard.runtime.export.tables import write_tables
from kernelyard.runtime.jit.c_compiler import compile_library
from kernelyard.runtime.placement_decision import sizes_text
from kernelyard.runtime.program.program import Program
from kernelyard.runtime.program.vm_function import VMFunction

if TYPE_CHECKING:
    from kernelyard.runtime.abi.module import RuntimeModule
    from kernelyard.runtime.execute.executable import Executable

EXPORTS = "{ global: ky_*; kyc_*; local: *; };\n"
_EMBED = f"""
__asm__(".section {SECTION},\\"a\\",%progbits\\n.balign 4096\\n.global ky_artifact\\n.hidden ky_artifact\\n"
        "ky_artifact:\\n.incbin \\"model.kyar\\"\\n.previous\\n");
"""
# -Bsymbolic: a process may have several libraries, each with functions of the same names.
_FLAGS = ("-pthread", "-Wl,--version-script=exports.map", "-Wl,-Bsymbolic")


def export_library(
    executable: Executable,
    path: str | os.PathLike[str],
    standalone: bool | None = None,
    options: Sequence[str] = (),
) -> None:
    """See `Executable.export_library`."""
    if executable.alternatives:
        near = " or ".join(map(sizes_text, executable.sizes))
        message = f"a library has one placement for all sizes: that which was measured at {near}"
        warn_caller(message, LibraryWarning)
        executable = executable.alone()
    units = {number: _unit(module) for number, module in enumerate(executable.modules)}
    native = {number: unit for number, unit in units.items() if unit is not None}
    reasons = {
        entry.name: reason
        for entry in executable.entries.values()
        if (reason := _needs_python(executable, entry, native))
    }
    if standalone:
        _refuse(reasons)
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
        saved = Path(folder, "model.kyar")
        kyar.write(executable, saved)
        tables = write_tables(executable, native, saved, reasons)
        sources, architecture = _sources(tables), _architecture(executable.target)
        compile_library(
            sources, Path(path), list(native.values()), _FLAGS, {"model.kyar": saved}, options, architecture
        )
    if standalone is None and reasons:
        found = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        warn_caller(f"C programs cannot call all of {os.fspath(path)}. {found}", LibraryWarning)


def _unit(module: RuntimeModule) -> NativeUnit | None:
    try:
        unit = module.native_unit()
        if unit is None or isinstance(unit, NativeUnit):
            return unit
        raise TypeError(f"it returned {type(unit).__name__}, not a NativeUnit")
    except KernelyardError:
        raise
    except Exception as error:  # a vendor's code
        owner = requirement(module.kind)
        raise ArtifactError(
            f"a module of kind {module.kind!r} cannot be exported",
            where=f"{owner.distribution} {owner.version}" if owner else None,
            found=describe(error),
            hint="compile the model without this backend",
        ) from error


def _refuse(reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        raise ArtifactError(
            "the model cannot run without Python",
            where=f"entry function {name!r}",
            found=reason,
            hint="compile the model as in `found`, or omit standalone=True and use kernelyard.load",
        )


def _sources(tables: str) -> dict[str, str]:
    """Return the C sources around the modules' code, by file name."""
    program = ('#include "tables.h"', tables, _EMBED, _text("program.c"), _text("model.c"))
    sources = {name: _text(name) for name in ("kernelyard.h", "tables.h")}
    sizes = f"#include <stdint.h>\n{C_FUNCTIONS}"
    return {**sources, "sizes.h": sizes, "model.c": "\n".join(program), "exports.map": EXPORTS}


def _architecture(target: str) -> str | None:
    """Return the architecture of a CPU target, by its text; None is this machine's."""
    given = [word.removeprefix("arch=") for word in target.split() if word.startswith("arch=")]
    return given[0] if given and target.startswith("cpu") else None


def _text(name: str) -> str:
    return files("kernelyard.runtime.export").joinpath(name).read_text("utf-8")


def _needs_python(executable: Executable, entry: Program | VMFunction, native: Mapping[int, NativeUnit]) -> str:
    """Why an entry function cannot run without Python, and what to do about it; empty where it can."""
    if not executable.target.startswith("cpu"):
        return f"the model was compiled for {executable.target}; C programs run models for the CPU"
    if isinstance(entry, VMFunction):
        return "it has control flow or data-dependent sizes: kernelyard.load runs it in Python"
    for step in entry.steps:
        if step.module not in native:
            module = executable.modules[step.module]
            place = f"the step {step.label or step.symbol}"
            return f"{place} is run by {module.kind!r}, which needs Python: {module.native_hint}"
    return ""
