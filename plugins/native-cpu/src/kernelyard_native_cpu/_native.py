"""The binding to LLVM (llvmlite) and to the C libraries that kernels call; nothing else.

Objects are position-independent ELF; linking resolves the few symbols below and no others.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kernelyard.errors import BackendUnavailableError, CodegenError
from kernelyard.runtime.api import Code, DiskCache, link, thread_pool
from kernelyard_native_cpu.library import LIBRARY_FUNCTIONS, OPENMP_FUNCTIONS
from kernelyard_native_cpu.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

    import llvmlite.binding as llvm


@cache
def llvm_version() -> str:
    """Return the version of LLVM that objects are made by.

    A library is asked once and not again until another one is installed: LLVM takes 40 MB of memory, for nothing where
    all kernels are in the cache. Raises: ImportError.
    """
    from pathlib import Path

    import llvmlite

    key = f"llvmlite {llvmlite.__version__}: {_library_state(Path(llvmlite.__file__).parent / 'binding')}"
    known = _VERSIONS.get(key)
    if known:
        return known.decode()
    import llvmlite.binding as llvm

    found = ".".join(map(str, llvm.llvm_version_info))
    _VERSIONS.put(key, found.encode())
    return found


_VERSIONS = DiskCache("llvm")


def _library_state(folder: Path) -> list[tuple[str, int, int]]:
    """Return a fingerprint of llvmlite's shared libraries, which changes with each installation."""
    files = sorted(path for path in folder.glob("*llvmlite*") if path.suffix in (".so", ".dylib", ".dll"))
    states = [(path, path.stat()) for path in files]
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


@cache
def _initialize(is_native: bool) -> None:
    """Initialize code generation for this architecture, or for all that LLVM has, which takes longer."""
    import llvmlite.binding as llvm

    if is_native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


# How LLVM is asked to compile; with the text and the machine, all that object code depends on.
_OPTIONS: dict[str, Any] = {"opt": 2, "reloc": "pic", "codemodel": "small", "jit": True}
_SPEED_LEVEL = 1
_PASSES = ("instruction_combine", "simplify_cfg")


def compilation_key(machine: Machine) -> str:
    """Return the cache key of object code, its LLVM text aside: versions and target machine."""
    import llvmlite

    how = (llvmlite.__version__, llvm_version(), triple(machine), machine, _OPTIONS, _SPEED_LEVEL, _PASSES)
    return repr(how)


def _target_machine(machine: Machine) -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    _initialize(machine.architecture == platform.machine())
    try:
        target = llvm.Target.from_triple(triple(machine))
        return target.create_target_machine(cpu=machine.cpu, features=machine.feature_string, **_OPTIONS)
    except RuntimeError as error:
        raise CodegenError("LLVM cannot generate code for this machine", found=str(machine), hint=str(error)) from error


def triple(machine: Machine) -> str:
    """Return the target triple, the same for every host of an architecture."""
    return f"{machine.architecture}-unknown-linux-gnu"


def compile_object(text: str, machine: Machine) -> bytes:
    """Compile LLVM assembly to a relocatable object.

    Raises: CodegenError when the text is not well-formed; a fault of ours.
    """
    import llvmlite.binding as llvm

    target_machine = _target_machine(machine)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CodegenError("the generated LLVM code is not valid", found=str(error)) from error
    options = llvm.create_pipeline_tuning_options(speed_level=_SPEED_LEVEL)
    builder = llvm.create_pass_builder(target_machine, options)
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return target_machine.emit_object(module)


@cache
def openmp() -> dict[str, int] | None:
    """Return the addresses of the thread pool's functions; libgomp's where there is no pool; None without either."""
    pool = thread_pool()
    if pool is not None:
        return {name: pool.for_kernels[name] for name in OPENMP_FUNCTIONS}
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
    return {name: _address(library, name) for name in OPENMP_FUNCTIONS}


@cache
def library_functions() -> dict[str, int]:
    """Return the addresses of the C library functions that kernels may call."""
    library = ctypes.CDLL("libm.so.6")
    return {name: _address(library, name) for name in LIBRARY_FUNCTIONS if hasattr(library, name)}


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def link_objects(objects: Sequence[bytes], symbols: Sequence[str]) -> Code:
    """Link kernels with the functions that they call.

    Raises: BackendUnavailableError when a symbol is missing or an object is malformed.
    """
    try:
        return link(objects, {**library_functions(), **(openmp() or _without_openmp())}, symbols)
    except (RuntimeError, ImportError) as error:
        raise BackendUnavailableError("kernels cannot be linked", where="native-cpu", found=error) from error


def _without_openmp() -> dict[str, int]:
    """Never called: without a pool every kernel is run with one thread. Linking needs some address all the same."""
    return dict.fromkeys(OPENMP_FUNCTIONS, _address(ctypes.CDLL(None), "abort"))
