"""CSourceModule: functions as C text that calls libraries; compiled by the user's C compiler at first need.

The text follows the interface of `kernelyard.runtime.abi.native_unit`. Saved artifacts hold the text; a shared library
that `Executable.export_library` made holds the compiled code, and needs no compiler any more.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kernelyard.cached_property import cached_property
from kernelyard.errors import BackendUnavailableError, ExecutionError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, NativeCall
from kernelyard.runtime.abi.native_unit import (
    PARTS,
    NativeFunction,
    NativeUnit,
    read_function,
    read_header,
    read_library,
)
from kernelyard.runtime.abi.spec import Fields, Signature, corrupted, read_json, write_json
from kernelyard.runtime.jit.c_compiler import compile_cached
from kernelyard.runtime.modules.bindable import BindableModule
from kernelyard.runtime.modules.json_runtime import check_schema

KIND = "c_source"
SCHEMA = 1
_ARGUMENTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "prepare": (c_int32, (POINTER(c_void_p), c_int32, POINTER(c_void_p))),
    "bind": (c_int32, (c_void_p, POINTER(c_int64), c_int32, POINTER(c_void_p), POINTER(c_int64))),
    "run": (c_int32, (c_void_p, c_void_p, c_int32, c_void_p)),
    "unbind": (None, (c_void_p,)),
    "release": (None, (c_void_p,)),
}


class CSourceModule(BindableModule):
    """C source with the functions it defines, the libraries it is linked with, and its constants.

    library: the path of a shared library that has the code compiled already, None to compile it.
    Raises: ArtifactCorruptedError when a constant is missing.
    """

    kind: ClassVar[str] = KIND

    def __init__(self, unit: NativeUnit, constants: Mapping[str, np.ndarray], library: str | None = None) -> None:
        self._unit = unit
        self._functions = {function.symbol: function for function in unit.functions}
        digests = dict.fromkeys(digest for function in unit.functions for digest in function.constants)
        missing = [digest for digest in digests if digest not in constants]
        if missing or unit.objects:
            raise corrupted("c_source module", missing or "objects", "source, and constants that are there")
        self._constants = {digest: constants[digest] for digest in digests}
        self._prepared: dict[tuple[str, int], _Shared] = {}
        self._lock = threading.Lock()
        self.library = library

    @property
    def source(self) -> str:
        """The C text."""
        return self._unit.source

    def symbols(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def constants(self) -> Mapping[str, np.ndarray]:
        return self._constants

    def signature(self, symbol: str) -> Signature:
        return self._function(symbol).signature

    def native_unit(self) -> NativeUnit:
        """See `RuntimeModule.native_unit`."""
        return self._unit

    def inspect(self) -> str:
        return self.source

    def _function(self, symbol: str) -> NativeFunction:
        if symbol not in self._functions:
            raise self.unknown_symbol(symbol)
        return self._functions[symbol]

    @cached_property
    def _code(self) -> ctypes.CDLL:
        path = self.library or str(compile_cached(self._unit))
        try:
            # The loader goes by names first: under a name of its own, a file is not taken for the one that it replaced.
            with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
                link = os.path.join(folder, "code.so")
                os.symlink(path, link)
                return ctypes.CDLL(link)
        except OSError as error:
            raise BackendUnavailableError("compiled C code cannot be loaded", where=path, found=error) from error

    def _parts(self, function: NativeFunction) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for part in PARTS:
            try:
                parts[part] = getattr(self._code, f"{function.name}_{part}")
            except AttributeError as error:
                raise corrupted(f"c_source function {function.symbol}", "nothing", f"{function.name}_{part}") from error
            parts[part].restype, parts[part].argtypes = _ARGUMENTS[part]
        return parts

    def _prepare(self, function: NativeFunction, parts: Mapping[str, Any], threads: int) -> _Shared:
        key = function.symbol, threads
        with self._lock:
            if key not in self._prepared:
                arrays = [memory.aligned_copy(self._constants[digest]) for digest in function.constants]
                pointers = (c_void_p * max(len(arrays), 1))(*map(memory.address_of, arrays))
                shared = c_void_p()
                status = parts["prepare"](pointers, threads, byref(shared))
                _check(status, function, "prepared")
                self._prepared[key] = _Shared(shared.value or 0, parts["release"], (arrays, pointers, self._code))
            return self._prepared[key]

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Bind one native call. Raises: ExecutionError, ToolchainError, BackendUnavailableError."""
        function = self._function(symbol)
        parts = self._parts(function)
        shared = self._prepare(function, parts, context.threads)
        sizes = (c_int64 * max(len(function.sizes), 1))(*(values[name] for name in function.sizes))
        address, nbytes = c_void_p(), c_int64()
        status = parts["bind"](shared.address, sizes, context.threads, byref(address), byref(nbytes))
        _check(status, function, "bound")
        call = _Call(address.value or 0, parts["unbind"], shared)
        pointers = (c_void_p * max(len(args), 1))(*(arg.address for arg in args))
        workspace = context.workspace(nbytes.value) if nbytes.value else 0
        run = ctypes.cast(parts["run"], c_void_p).value or 0
        step = NativeCall(run, ctypes.addressof(pointers), call.address, context.threads, workspace)
        rebinders = {index: partial(pointers.__setitem__, index) for index in range(len(args))}
        return BoundCall([step], [pointers, call, context, self], rebinders)

    def save_to_bytes(self) -> bytes:
        fields: dict[str, Any] = {
            "schema": SCHEMA,
            "source": self.source,
            "libraries": [library.to_json() for library in self._unit.libraries],
            "functions": [function.to_json() for function in self._functions.values()],
        }
        if self._unit.language != "c" or self._unit.headers or self._unit.options:
            headers, options = [header.to_json() for header in self._unit.headers], list(self._unit.options)
            fields["compiler"] = {"language": self._unit.language, "headers": headers, "options": options}
        return write_json(fields)


class _Shared:
    """Reference-counted result of `NAME_prepare`, released with its last owner: this object or a bound call.

    The garbage collector may end both in any order, so the calls are counted.
    """

    def __init__(self, address: int, release: Callable[[int], object], uses: object) -> None:
        self.address = address
        self._release = release
        self._uses = uses
        self._owners = 1
        self._lock = threading.RLock()  # a collection may start, and end a call, while it is held

    def take(self) -> None:
        """Increase the reference count."""
        with self._lock:
            self._owners += 1

    def drop(self) -> None:
        """Decrease the reference count."""
        with self._lock:
            self._owners -= 1
            is_last = self._owners == 0
        if is_last:
            self._release(self.address)

    def __del__(self) -> None:
        self.drop()


class _Call:
    """Result of `NAME_bind`, which keeps that of `NAME_prepare` alive."""

    def __init__(self, address: int, unbind: Callable[[int], object], shared: _Shared) -> None:
        self.address = address
        self._unbind = unbind
        self._shared = shared
        shared.take()

    def __del__(self) -> None:
        self._unbind(self.address)
        self._shared.drop()


def _check(status: int, function: NativeFunction, done: str) -> None:
    if status:
        raise ExecutionError(f"the C function {function.symbol} cannot be {done}", found=f"status {status}")


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> CSourceModule:
    """Return the module that `save_to_bytes` wrote; it is compiled when it is first used.

    Raises: ArtifactCorruptedError, ArtifactVersionError.
    """
    fields = Fields(read_json(data, f"{KIND} module"), f"{KIND} module")
    check_schema(fields)
    unit = NativeUnit(
        fields.text("source"), fields.each("functions", read_function), fields.each("libraries", read_library)
    )
    if "compiler" in fields:
        given = Fields(fields.any("compiler"), f"{KIND} module")
        headers, options = given.each("headers", read_header), given.texts("options")
        unit = replace(unit, language=given.text("language"), headers=headers, options=options)
    return CSourceModule(unit, constants)
