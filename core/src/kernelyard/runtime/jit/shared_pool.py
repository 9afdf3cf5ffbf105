"""Have a loaded library that was built for GNU OpenMP run its parallel regions on the process's thread pool.

A library with threads of its own beside those of generated kernels takes twice as many as there are processors. What
it imports of libgomp stands in a table of addresses that the dynamic linker has filled in; they are replaced there, for
this library alone.

Source: System V ABI, "Dynamic Linking", sections "Dynamic Section", "Symbol Table" and "Relocation"; dlinfo(3).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernelyard.runtime.jit.thread_pool import thread_pool

_RTLD_DI_LINKMAP = 2
# Tags of the dynamic section.
_STRTAB, _SYMTAB, _STRSZ, _PLTRELSZ, _RELA, _RELASZ, _JMPREL, _RELACOUNT = 5, 6, 10, 2, 7, 8, 23, 0x6FFFFFF9
_ADDRESS_TAGS = (_STRTAB, _SYMTAB, _RELA, _JMPREL)
# By machine: relocations whose word is a symbol's address (GLOB_DAT and JUMP_SLOT).
_ADDRESSES = {"x86_64": (6, 7), "aarch64": (1025, 1026)}
_RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOL = np.dtype({"names": ["name"], "formats": ["<u4"], "itemsize": 24})
_PREFIXES = (b"GOMP_", b"omp_")


class _LinkMap(ctypes.Structure):
    """`struct link_map`: where a library was loaded, and its dynamic section."""

    _fields_ = [("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_void_p)]


def share_thread_pool(library: ctypes.CDLL) -> bool:
    """Return True when the parallel regions of a library run on the process's thread pool from now on.

    library: none of its parallel regions may be running. False, and nothing is changed, where there is no pool, where
    the system does not let the table be written, and for a library that imports nothing of GNU OpenMP, or more of it
    than the pool has.

    Example:
        >>> share_thread_pool(ctypes.CDLL("libm.so.6"))
        False
    """
    pool = thread_pool()
    if pool is None:
        return False
    places = dict(_openmp_imports(library))
    if not places or not set(places.values()) <= set(pool.for_libraries):
        return False
    return _write({place: pool.for_libraries[name] for place, name in places.items()})


def _openmp_imports(library: ctypes.CDLL) -> Iterator[tuple[int, str]]:
    """Yield the place of the address of each function of GNU OpenMP that a library imports, and its name."""
    linked = ctypes.POINTER(_LinkMap)()
    dlinfo: Any = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(library._handle, _RTLD_DI_LINKMAP, ctypes.byref(linked)):
        return
    base = linked.contents.base or 0
    tags = _dynamic_tags(linked.contents.dynamic or 0, base)
    tables = ((_JMPREL, _PLTRELSZ, 0), (_RELA, _RELASZ, tags.get(_RELACOUNT, 0)))  # those without a symbol come first
    for table, nbytes, without_symbol in tables:
        if table not in tags:
            continue
        relocations = _array_at(tags[table], _RELOCATION, tags[nbytes] // _RELOCATION.itemsize)[without_symbol:]
        named = relocations[np.isin(relocations["type"], _ADDRESSES[platform.machine()])]
        symbols = _array_at(tags[_SYMTAB], _SYMBOL, int(named["symbol"].max(initial=0)) + 1)
        texts, places = _array_at(tags[_STRTAB], np.dtype(np.uint8), tags[_STRSZ]), symbols["name"][named["symbol"]]
        begun = np.logical_or.reduce([_begin_with(texts, places, prefix) for prefix in _PREFIXES])
        for offset, place in zip(named["offset"][begun].tolist(), places[begun].tolist(), strict=True):
            yield base + offset, ctypes.string_at(tags[_STRTAB] + place).decode()


def _array_at(address: int, dtype: np.dtype, count: int) -> np.ndarray:
    """Return a view of the memory at an address."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)), dtype)


def _begin_with(texts: np.ndarray, places: np.ndarray, prefix: bytes) -> np.ndarray:
    """Return for each place whether the text there begins with a prefix. A library has hundreds: one by one they took
    longer than all that is written."""
    first = texts.take(places[:, None] + np.arange(len(prefix)), mode="clip")
    return (first == np.frombuffer(prefix, np.uint8)).all(axis=1)


def _dynamic_tags(address: int, base: int) -> Mapping[int, int]:
    """Return the values of a dynamic section by their tags; glibc has relocated the addresses in it, musl has not."""
    tags: dict[int, int] = {}
    while tag := ctypes.c_int64.from_address(address).value:
        tags[tag] = ctypes.c_uint64.from_address(address + 8).value
        address += 16
    moved = {tag: base + tags[tag] for tag in _ADDRESS_TAGS if tags.get(tag, base) < base}
    return tags | moved


def _write(words: Mapping[int, int]) -> bool:
    """Write 64-bit words at their addresses: all, or none where a page cannot be made writable."""
    protect: Any = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # Pages may have been made read-only after the library was loaded.
    pages = {place // mmap.PAGESIZE * mmap.PAGESIZE for place in words}
    if any(protect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) for page in sorted(pages)):
        return False
    for place, address in words.items():
        ctypes.c_uint64.from_address(place).value = address
    return True
