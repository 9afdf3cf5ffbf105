"""ObjectCode: relocatable objects become code in memory, without a linker or LLVM.

What compilers of kernels emit for x86-64 (ELF, position-independent, the small code model) takes few kinds of
relocations. Loading LLVM to link it would take longer than many a program runs, and more memory than its weights.
Source: System V ABI, "Object Files", and its AMD64 supplement, "Relocation Types".
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.memory import address_of
from kernelyard.variables import EnvironmentVariable

_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMBOL_TABLE, _RELOCATIONS_WITH_ADDENDS, _NO_BITS = 2, 4, 8
_WRITABLE, _ALLOCATED = 1, 2
_UNDEFINED, _RESERVED_SECTIONS = 0, 0xFF00
_LOCAL, _FUNCTION = 0, 2
_UNWINDING = b".eh_frame"  # nothing is thrown through kernels
# The address itself; the distance to it; the distance to a word that holds it.
_ABSOLUTE, _DISTANCES, _DISTANCES_TO_WORD = 1, {2: 4, 4: 4, 24: 8}, (9, 41, 42)
_CALL = 4
# A word with an address, and `jmp *word(%rip)`: what is too far for a distance of 32 bits is reached through it.
_SLOT = struct.Struct("<Q2si2x")
_JUMP, _JUMP_OFFSET = b"\xff\x25", 8
_MAX_ALIGNMENT = 4096
PERF_MAP = EnvironmentVariable(
    "KERNELYARD_PERF_MAP",
    "1: list generated kernels in `perf-PID.map`, where `perf` and `py-spy` look for their names",
    "off",
)


class UnlinkableError(ValueError):
    """The objects need what is not done here, or are damaged; a linker may know more."""


class _Section(NamedTuple):
    name: bytes
    type: int
    flags: int
    data: memoryview
    nbytes: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    is_local: bool
    section: int
    value: int
    nbytes: int
    is_function: bool


@dataclass(eq=False, repr=False)
class _Object:
    """A parsed object; places: where its allocated sections begin in the memory."""

    sections: list[_Section]
    symbols: list[_Symbol]
    places: dict[int, int] = field(default_factory=dict)


class ObjectCode:
    """Code in memory; `addresses` of the symbols stay valid for as long as this object lives.

    imports: addresses of what the objects call. symbols: those of the objects' functions that are wanted.
    Raises: UnlinkableError.
    """

    def __init__(self, objects: Sequence[bytes], imports: Mapping[str, int], symbols: Sequence[str]) -> None:
        try:
            parsed = [_parse(memoryview(data)) for data in objects]
            linked = _Linking(parsed, imports)
            self.addresses = {name: linked.address_of_global(name) for name in symbols}
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise UnlinkableError(f"a damaged object: {error}") from error
        linked.protect()
        if PERF_MAP.get() == "1":
            from kernelyard.runtime.jit.perf_map import MappedFunction, add_to_perf_map  # for those who look for it

            add_to_perf_map(MappedFunction(*each) for each in linked.functions())
        self._memory = linked.memory


# --- reading ----------------------------------------------------------------------------------------------------------
def _parse(data: memoryview) -> _Object:
    identity, kind, machine, *_, offset = _HEADER.unpack_from(data)[:7]
    size, count, names = _HEADER.unpack_from(data)[11:]
    if not identity.startswith(_IDENTITY) or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise UnlinkableError("not a relocatable object for x86-64")
    headers = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
    texts = _content(data, *headers[names][4:6])
    sections = [
        _Section(
            _text(texts, name),
            kind,
            flags,
            data[:0] if kind == _NO_BITS else _content(data, start, nbytes),
            nbytes,
            link,
            info,
            max(alignment, 1),
        )
        for name, kind, flags, _, start, nbytes, link, info, alignment, _ in headers
    ]
    tables = [section for section in sections if section.type == _SYMBOL_TABLE]
    return _Object(sections, [symbol for table in tables[:1] for symbol in _symbols(table, sections)])


def _symbols(table: _Section, sections: Sequence[_Section]) -> list[_Symbol]:
    texts = sections[table.link].data
    return [
        _Symbol(_text(texts, name).decode(), info >> 4 == _LOCAL, section, value, nbytes, info & 15 == _FUNCTION)
        for name, info, _, section, value, nbytes in _SYMBOL.iter_unpack(table.data)
    ]


def _content(data: memoryview, start: int, nbytes: int) -> memoryview:
    if start + nbytes > len(data):
        raise UnlinkableError("a damaged object: a section ends outside of it")
    return data[start : start + nbytes]


def _text(texts: memoryview, start: int) -> bytes:
    return bytes(texts[start : start + 4096]).split(b"\0", 1)[0]


# --- linking ----------------------------------------------------------------------------------------------------------
class _Linking:
    """Objects in memory of their own, resolved: what is only read or run comes first, what is written last."""

    def __init__(self, objects: Sequence[_Object], imports: Mapping[str, int]) -> None:
        self._objects = objects
        self._globals = _global_symbols(objects)
        self._imports = imports
        self._slots: dict[int, int] = {}  # by the address in them, where they lie in the memory
        end = self._place_sections(writable=False, start=0)
        self._next_slot = -(-end // _SLOT.size) * _SLOT.size
        most = sum(s.data.nbytes // _RELOCATION.size for o in objects for s in o.sections if _relocates(o, s))
        self._protected = -(-(self._next_slot + most * _SLOT.size) // mmap.PAGESIZE) * mmap.PAGESIZE
        nbytes = self._place_sections(writable=True, start=self._protected)
        try:
            self.memory = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:  # a section without data in the file may claim any size
            raise UnlinkableError(f"sections of {nbytes} bytes: {error}") from error
        self._base = address_of(np.frombuffer(self.memory, np.uint8, 1))
        self._fill()

    def _place_sections(self, writable: bool, start: int) -> int:
        """Give the sections of a kind their places; where they end."""
        for each in self._objects:
            for number, section in enumerate(each.sections):
                if _is_loaded(section) and bool(section.flags & _WRITABLE) == writable:
                    if section.alignment > _MAX_ALIGNMENT:
                        raise UnlinkableError(f"a section aligned to {section.alignment} bytes")
                    start = -(-start // section.alignment) * section.alignment
                    each.places[number] = start
                    start += section.nbytes
        return start

    def _fill(self) -> None:
        for each in self._objects:
            for number, place in each.places.items():
                data = each.sections[number].data
                self.memory[place : place + data.nbytes] = data
            for section in each.sections:
                if _relocates(each, section):
                    for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                        symbol = each.symbols[info >> 32]
                        self._relocate(each, section.info, offset, info & 0xFFFFFFFF, symbol, addend)

    def _relocate(self, each: _Object, target: int, offset: int, kind: int, symbol: _Symbol, addend: int) -> None:
        place, address = each.places[target] + offset, self._address(each, symbol)
        nbytes = 8 if kind == _ABSOLUTE else _DISTANCES.get(kind, 4)
        if offset + nbytes > each.sections[target].nbytes:
            raise UnlinkableError("a damaged object: it is relocated outside of its sections")
        if kind in _DISTANCES_TO_WORD:
            address = self._base + self._slot(address)
        elif kind == _CALL and not -(1 << 31) <= address + addend - self._base - place < 1 << 31:
            address = self._base + self._slot(address) + _JUMP_OFFSET
        elif kind != _ABSOLUTE and kind not in _DISTANCES:
            raise UnlinkableError(f"relocations of type {kind}")
        value = address + addend - (0 if kind == _ABSOLUTE else self._base + place)
        try:
            self.memory[place : place + nbytes] = value.to_bytes(nbytes, "little", signed=kind != _ABSOLUTE)
        except OverflowError as error:
            raise UnlinkableError(f"{symbol.name!r} is too far away") from error

    def _slot(self, address: int) -> int:
        if address not in self._slots:
            self._slots[address] = self._next_slot
            _SLOT.pack_into(self.memory, self._next_slot, address, _JUMP, -_JUMP_OFFSET - 6)
            self._next_slot += _SLOT.size
        return self._slots[address]

    def _address(self, each: _Object, symbol: _Symbol) -> int:
        if symbol.is_local:
            return self._address_of_symbol(each, symbol)
        return self.address_of_global(symbol.name)

    def address_of_global(self, name: str) -> int:
        """Return the address of a global symbol. Raises: UnlinkableError."""
        if name in self._globals:
            return self._address_of_symbol(*self._globals[name])
        if name not in self._imports:
            raise UnlinkableError(f"undefined symbol {name!r}")
        return self._imports[name]

    def _address_of_symbol(self, each: _Object, symbol: _Symbol) -> int:
        if symbol.section not in each.places:
            raise UnlinkableError(f"{symbol.name!r} lies in no section of code or data")
        return self._base + each.places[symbol.section] + symbol.value

    def functions(self) -> list[tuple[int, int, str]]:
        """Return address, bytes and name of all functions of the objects, those that only they call too."""
        return [
            (self._address_of_symbol(each, symbol), symbol.nbytes, symbol.name)
            for each in self._objects
            for symbol in each.symbols
            if symbol.is_function and symbol.section in each.places
        ]

    def protect(self) -> None:
        """Let the code be run, and no longer be written.

        Raises: UnlinkableError where the system does not.
        """
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(self._base, self._protected, mmap.PROT_READ | mmap.PROT_EXEC):
            raise UnlinkableError(f"the system does not allow executable memory (error {ctypes.get_errno()})")


def _global_symbols(objects: Sequence[_Object]) -> dict[str, tuple[_Object, _Symbol]]:
    found: dict[str, tuple[_Object, _Symbol]] = {}
    for each in objects:
        for symbol in each.symbols:
            if not symbol.is_local and _UNDEFINED < symbol.section < _RESERVED_SECTIONS:
                if symbol.name in found:
                    raise UnlinkableError(f"{symbol.name!r} is defined twice")
                found[symbol.name] = each, symbol
    return found


def _is_loaded(section: _Section) -> bool:
    return bool(section.flags & _ALLOCATED) and section.name != _UNWINDING


def _relocates(each: _Object, section: _Section) -> bool:
    return section.type == _RELOCATIONS_WITH_ADDENDS and _is_loaded(each.sections[section.info])
