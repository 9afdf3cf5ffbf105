"""Code: a kernel as it was compiled, ready to be loaded; and how a list of them is written into an artifact."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard.runtime.api import Fields, corrupted, find_section, read_json, write_json
from kernelyard_cuda.driver_api import Image
from kernelyard_cuda.kernels import ARCH
from kernelyard_cutlass.kernels import Kernel, entry_of, read_kernel, to_json

MAGIC = b"KYCUTLS1"
MOST_THREADS, MOST_SHARED_NBYTES = 1024, 228 << 10
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_SECTIONS = (".symtab", ".strtab", ".nv.global.init")


@dataclass(frozen=True)
class Code:
    """A kernel, and for each architecture that it was compiled for its cubin.

    threads: of a block. shared_nbytes: of dynamic shared memory. Both are the template's to say, and 0 where nothing
    was compiled: the emulator needs neither.
    """

    kernel: Kernel
    threads: int = 0
    shared_nbytes: int = 0
    cubins: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def image(self) -> Image:
        """The image that a driver loads."""
        return Image("", (entry_of(self.kernel),), self.cubins)


def code_of(kernel: Kernel, arch: str, cubin: bytes) -> Code:
    """Return the kernel with its cubin, from which the sizes of a block are read.

    Raises: ArtifactCorruptedError for a cubin that does not state them.
    """
    threads, shared = constant(cubin, "ky_threads"), constant(cubin, "ky_shared_nbytes")
    if threads is None:
        raise corrupted("cubin", "no constant ky_threads", "a kernel of these templates")
    return Code(kernel, threads, shared or 0, {arch: cubin})


def constant(cubin: bytes, name: str) -> int | None:
    """Return the value of a 32-bit constant of a cubin, which is not 0; None where there is none of that name.

    Source: System V ABI, "Object Files", section "Symbol Table".
    Raises: ArtifactCorruptedError for a file whose headers point outside of it.
    """
    data = np.frombuffer(cubin, np.uint8)
    symbols, names, values = (find_section(data, section) for section in _SECTIONS)
    if symbols is not None and names is not None and values is not None:
        text = names.tobytes()
        for place in range(0, symbols.nbytes - _SYMBOL.size + 1, _SYMBOL.size):
            name_at, _, _, _, at, _ = _SYMBOL.unpack(symbols[place : place + _SYMBOL.size].tobytes())
            if text[name_at : name_at + len(name) + 1] == name.encode() + b"\0":
                return int.from_bytes(values[at : at + 4].tobytes(), "little")
    return None


# --- in an artifact ---------------------------------------------------------------------------------------------------
def pack(graphs: bytes, codes: Sequence[Code]) -> bytes:
    """Serialize graphs and kernels."""
    header = {
        "graphs": len(graphs),
        "kernels": [
            {
                "kernel": to_json(code.kernel),
                "threads": code.threads,
                "shared": code.shared_nbytes,
                "archs": list(code.cubins),
                "sizes": [len(cubin) for cubin in code.cubins.values()],
            }
            for code in codes
        ],
    }
    text = write_json(header)
    cubins = [cubin for code in codes for cubin in code.cubins.values()]
    return b"".join((MAGIC, len(text).to_bytes(8, "little"), text, graphs, *cubins))


def unpack(data: bytes) -> tuple[bytes, list[Code]]:
    """Read what `pack` wrote.

    Raises: ArtifactCorruptedError.
    """
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise corrupted("cutlass module", bytes(data[:16]), "code of cutlass")
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    rest = memoryview(data)[start:]
    if length > len(rest):
        raise corrupted("cutlass module", f"a header of {length} bytes", f"at most {len(rest)}")
    fields = Fields(read_json(bytes(rest[:length]), "cutlass module"), "cutlass module")
    cursor = _Cursor(rest[length:])
    graphs = cursor.take(fields.integer("graphs"))
    codes = list(fields.each("kernels", lambda item, where: _read_code(Fields(item, where), cursor)))
    cursor.finish()
    return graphs, codes


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, nbytes: int) -> bytes:
        if nbytes > len(self._data):
            raise corrupted("cutlass module", f"{len(self._data)} bytes", f"{nbytes} bytes")
        taken, self._data = bytes(self._data[:nbytes]), self._data[nbytes:]
        return taken

    def finish(self) -> None:
        if len(self._data):
            raise corrupted("cutlass module", f"{len(self._data)} more bytes", "the end")


def _read_code(fields: Fields, cursor: _Cursor) -> Code:
    archs: Any = fields.texts("archs")
    sizes = fields.indices("sizes", limit=1 << 30)
    if len(archs) != len(sizes) or len(set(archs)) != len(archs) or not all(map(ARCH.match, archs)):
        raise corrupted(f"{fields.where}.archs", archs, "architectures, each with a size")
    kernel = read_kernel(fields.any("kernel"), f"{fields.where}.kernel")
    threads, shared = fields.integer("threads", 0, MOST_THREADS), fields.integer("shared", 0, MOST_SHARED_NBYTES)
    return Code(kernel, threads, shared, {arch: cursor.take(size) for arch, size in zip(archs, sizes, strict=True)})
