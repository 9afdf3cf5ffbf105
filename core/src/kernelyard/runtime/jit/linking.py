"""Code in memory: from relocatable objects, and from text for LLVM, which is compiled once and then kept on the disk.

Linking takes llvmlite only where `ObjectCode` does not know the kind of object, and compiling only the first time.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.jit.object_code import ObjectCode, UnlinkableError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

CACHE = DiskCache("runtime")
_lock = renewed_in_children(Lock())
_numbers = itertools.count()


class Code(NamedTuple):
    """Addresses of functions; they stay valid for as long as the owner lives."""

    addresses: Mapping[str, int]
    owner: object


def link(objects: Sequence[bytes], imports: Mapping[str, int], symbols: Sequence[str]) -> Code:
    """Return the symbols of position-independent objects, whose undefined ones are the imports.

    Raises: RuntimeError where something is undefined or an object is malformed, ImportError where it takes llvmlite.
    """
    try:
        code = ObjectCode(objects, imports, symbols)
    except UnlinkableError:
        return _link_by_llvm(objects, imports, symbols)
    return Code(code.addresses, code)


def compile_text(
    text: str, imports: Mapping[str, int], symbols: Sequence[str], features: Sequence[str] = ()
) -> Code | None:
    """Return the same for LLVM assembly that any CPU of this architecture runs, or any with these features, as LLVM
    names them; None where there is no llvmlite.

    Raises: RuntimeError for text that is not well-formed; a fault of ours.
    """
    return compile_written(lambda: text, imports, symbols, features)


def compile_written(
    write: Callable[[], str],
    imports: Mapping[str, int],
    symbols: Sequence[str],
    features: Sequence[str] = (),
    key: str | None = None,
) -> Code | None:
    """Return the same for LLVM assembly that is written only if it has not been compiled yet.

    key: what decides the text; None: the text itself. Raises: as `compile_text`.
    """
    key = "\n".join((platform.machine(), *features, write() if key is None else key))
    data = CACHE.get(key)
    try:
        if data is None:
            data = _compile_by_llvm(write(), features)
            CACHE.put(key, data)
        return link([data], imports, symbols)
    except ImportError:  # llvmlite is what code generators bring along; a library-only installation may lack it
        return None


def _compile_by_llvm(text: str, features: Sequence[str]) -> bytes:
    import llvmlite.binding as llvm

    with _lock:
        machine = _target_machine(features)
        module = llvm.parse_assembly(f'target triple = "{machine.triple}"\n{text}')
        module.verify()
        return machine.emit_object(module)


def _link_by_llvm(objects: Sequence[bytes], imports: Mapping[str, int], symbols: Sequence[str]) -> Code:
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in symbols:
        builder.export_symbol(name)
    with _lock:
        library = builder.link(_jit(), f"kernelyard_{next(_numbers)}")
    return Code({name: library[name] for name in symbols}, library)


def _target_machine(features: Sequence[str] = ()) -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    wanted = ",".join(f"+{feature}" for feature in features)
    return target.create_target_machine(features=wanted, opt=2, reloc="pic", codemodel="small", jit=True)


@cache
def _jit() -> llvm.LLJIT:
    import llvmlite.binding as llvm

    return llvm.create_lljit_compiler(_target_machine(), use_jit_link=True)
