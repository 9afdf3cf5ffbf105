"""Errors of functions with tvm-ffi's calling convention, which leave them behind in their thread.

Source: tvm/ffi/c_api.h.
"""

from __future__ import annotations

import ctypes
import struct

_ERROR_CELL = struct.Struct("<QQQQ")  # tvm/ffi/c_api.h: TVMFFIErrorCell begins with kind and message, each (data, size)
_OBJECT_NBYTES = 24  # TVMFFIObject


def take_raised() -> str | None:
    """Take the error that a function of this thread left behind ("kind: message"); None where there is none."""
    import tvm_ffi.libinfo

    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    raised = ctypes.c_void_p()
    library.TVMFFIErrorMoveFromRaised(ctypes.byref(raised))
    if not raised.value:
        return None
    cell = ctypes.string_at(raised.value + _OBJECT_NBYTES, _ERROR_CELL.size)
    kind_at, kind_size, message_at, message_size = _ERROR_CELL.unpack(cell)
    kind, message = ctypes.string_at(kind_at, kind_size), ctypes.string_at(message_at, message_size)
    library.TVMFFIObjectDecRef(raised)
    return f"{kind.decode(errors='replace')}: {message.decode(errors='replace')}"
