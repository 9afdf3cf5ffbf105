"""ExternLibrary: functions that people compiled themselves, as a shared library with the calling convention of tvm-ffi.

A function `NAME` is the C symbol `int __tvm_ffi_NAME(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny*
result)`; its arguments are `DLTensor*`, inputs first, then the outputs that it fills. Programs call it directly.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernelyard.cached_property import cached_property
from kernelyard.errors import ArtifactVersionError, BackendUnavailableError
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, NativeCall, RuntimeModule
from kernelyard.runtime.abi.spec import corrupted
from kernelyard.runtime.device.tensor import Tensor
from kernelyard.runtime.modules.packed_module import pack_module, unpack_module
from kernelyard.runtime.modules.tensor_argument import TensorArgument

KIND = "extern_library"
SCHEMA = 1
PREFIX = "__tvm_ffi_"
SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}\Z")

# tvm/ffi/c_api.h: kTVMFFIDLTensorPtr
_DLTENSOR_POINTER = 7


class _Any(ctypes.Structure):
    """tvm/ffi/c_api.h: TVMFFIAny."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


class ExternLibrary(RuntimeModule):
    """A shared library of functions by symbol.

    image: the library file's bytes. Raises (when first used): BackendUnavailableError when it cannot be loaded here,
    ArtifactCorruptedError when it lacks a symbol.
    """

    kind: ClassVar[str] = KIND

    def __init__(self, image: bytes, symbols: Sequence[str]) -> None:
        for symbol in symbols:
            if not SYMBOL.match(symbol):
                raise corrupted(KIND, symbol, "a C identifier")
        self._image = image
        self._symbols = tuple(symbols)

    def symbols(self) -> tuple[str, ...]:
        return self._symbols

    @cached_property
    def _loaded(self) -> tuple[ctypes.CDLL, Any]:
        """The library, and the same as a module of tvm-ffi; the file is needed only while they are opened."""
        import tvm_ffi  # what the library is linked with is then there

        with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
            path = Path(folder, "extern.so")
            path.write_bytes(self._image)
            try:
                library = ctypes.CDLL(str(path))
                return library, tvm_ffi.load_module(str(path))
            except (OSError, RuntimeError) as error:
                raise BackendUnavailableError(
                    "compiled external code cannot be loaded", where=", ".join(self._symbols), found=error
                ) from error

    def missing(self) -> tuple[str, ...]:
        """Return the symbols that the library lacks."""
        return tuple(symbol for symbol in self._symbols if not hasattr(self._loaded[0], PREFIX + symbol))

    def get_function(self, symbol: str) -> Callable[..., Any]:
        """See `RuntimeModule.get_function`; errors are those of tvm-ffi."""
        self._address(symbol)
        function = self._loaded[1].get_function(symbol)
        return lambda *tensors: function(*map(_exportable, tensors))

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Bind one native call; the calling convention is that of a step."""
        tensors = [TensorArgument(arg) for arg in args]
        given = (_Any * max(len(tensors), 1))(*(_Any(_DLTENSOR_POINTER, 0, each.address) for each in tensors))
        result = _Any()
        call = NativeCall(self._address(symbol), 0, ctypes.addressof(given), len(tensors), ctypes.addressof(result))
        rebinders = {number: each.move for number, each in enumerate(tensors)}
        return BoundCall([call], [tensors, given, result, self], rebinders)

    def _address(self, symbol: str) -> int:
        if symbol not in self._symbols:
            raise self.unknown_symbol(symbol)
        try:
            function = getattr(self._loaded[0], PREFIX + symbol)
        except AttributeError as error:
            raise corrupted(f"the library of {symbol}", "nothing", PREFIX + symbol) from error
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def save_to_bytes(self) -> bytes:
        return pack_module(b"", SCHEMA, {"symbols": list(self._symbols)}, (self._image,))

    def inspect(self) -> str:
        return f"{self.kind}: {', '.join(self._symbols)} ({len(self._image)} bytes)"


def _exportable(tensor: Any) -> Any:
    """Return a tensor that DLPack can export: a copy of a read-only array, since DLPack has no flag for it."""
    if isinstance(tensor, np.ndarray):
        array = tensor if tensor.flags.writeable else tensor.copy()
        return array if array.dtype.isbuiltin == 1 else Tensor(array)
    return tensor


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> RuntimeModule:
    """Load the module that `save_to_bytes` wrote; its code is loaded when it is first used.

    Raises: ArtifactCorruptedError, ArtifactVersionError.
    """
    fields, code = unpack_module(data, b"", SCHEMA, KIND)
    if "target" in fields:
        message = "the module holds CUDA kernels in the format of kernelyard 0.1, which is no longer supported"
        raise ArtifactVersionError(message, where=KIND, hint="compile the model again")
    return ExternLibrary(bytes(code), fields.texts("symbols"))
