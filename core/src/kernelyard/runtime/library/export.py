"""export_library: an executable as one shared library, for `kernelyard.load` and for programs in C.

The library holds the artifact's bytes in a section of its own. Where every step of the main program has native code
(`RuntimeModule.native_unit`), it holds that code too, and a C program runs the model without Python.
"""

from __future__ import annotations

import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.errors import ArtifactError
from kernelyard.runtime import artifact
from kernelyard.runtime.c_compiler import compile_library
from kernelyard.runtime.container import SECTION
from kernelyard.runtime.library.tables import write_tables
from kernelyard.runtime.native_unit import NativeUnit

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable

EXPORTS = "{ global: ky_*; kyc_*; local: *; };\n"
_EMBED = f"""
__asm__(".section {SECTION},\\"a\\",%progbits\\n.balign 4096\\n.global ky_artifact\\n.hidden ky_artifact\\n"
        "ky_artifact:\\n.incbin \\"model.kyar\\"\\n.previous\\n");
"""


def export_library(executable: Executable, path: str | os.PathLike[str], standalone: bool = False) -> None:
    """See `Executable.export_library`."""
    units = {number: module.native_unit() for number, module in enumerate(executable.modules)}
    native = {number: unit for number, unit in units.items() if unit is not None}
    reason = _needs_python(executable, native)
    if reason and standalone:
        raise ArtifactError(
            "the model cannot run without Python", found=reason, hint="leave out standalone=True, or see what is found"
        )
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
        saved = Path(folder, "model.kyar")
        artifact.write(executable, saved)
        tables = write_tables(executable, native, saved, reason)
        sources = {"model.c": "\n".join((tables, _EMBED, _text("program.c"))), "kernelyard.h": _text("kernelyard.h")}
        sources["exports.map"] = EXPORTS
        used = list(native.values())
        sources |= {f"unit{number}.c": unit.source for number, unit in enumerate(used)}
        compile_library(
            sources,
            Path(path),
            [data for unit in used for data in unit.objects],
            [library for unit in used for library in unit.libraries],
            ("-pthread", "-Wl,--version-script=exports.map"),
            {"model.kyar": saved},
        )


def _text(name: str) -> str:
    return files("kernelyard.runtime.library").joinpath(name).read_text("utf-8")


def _needs_python(executable: Executable, native: dict[int, NativeUnit]) -> str:
    """Why the main program cannot run without Python; empty where it can."""
    if not executable.target.startswith("cpu"):
        return f"the model was compiled for {executable.target}; C programs run models for the CPU"
    for step in executable.main.steps:
        if step.module not in native:
            kind = executable.modules[step.module].kind
            return (
                f"{step.label or step.symbol} is run by the runtime {kind!r}, which needs Python: load this library"
                " with kernelyard.load, or compile the model for code generators that give native code"
            )
    return ""
