"""The `.kyar` container: a manifest and named members, every byte of the file checked when it is read.

Layout, integers little-endian: a header of 64 bytes, the manifest (JSON), the members; each starts at a multiple of 64,
the bytes between are zero, the file ends with the last member.

    0   8  magic "KYAR\\r\\n\\x1a\\n": fails at once where a transfer changed line ends
    8   4  schema
    12  4  zero
    16  8  length of the manifest
    24 32  SHA-256 of bytes 0 to 24 and the manifest
    56  8  zero

The manifest lists the members with lengths and SHA-256. The header keeps its meaning in all schemas, so that a newer
file can be distinguished from a damaged one. Libraries of `export_library` hold the same bytes in an ELF section.

A file is mapped, not read: members are views of its pages, which processes share and the system may drop and fetch
again. Files are replaced by renaming, never written in place, so a mapping keeps what it was made of.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from kernelyard.errors import ArtifactCorruptedError, ArtifactError, ArtifactVersionError
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.spec import Fields, corrupted, read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
MAGIC = b"KYAR\r\n\x1a\n"
LIBRARY_MAGIC = b"\x7fELF"
HEADER = struct.Struct("<8sIIQ")
HEADER_NBYTES = 64
SECTION = ".kyar"
MAX_MANIFEST = 1 << 30
ABANDONED = 3600  # seconds
_TEMPORARY = r"[0-9a-f]{12}\.tmp"
_PIECE_NBYTES = 1 << 24
_LARGE_NBYTES = 1 << 20  # from here on a thread is worth its start


Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview  # a path, or the bytes of a file


class Member(NamedTuple):
    """A member to be written, in parts."""

    name: str
    parts: Sequence[bytes | memoryview]

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    def sha256(self) -> str:
        """Return the digest of the content."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part)
        return digest.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the member's line in the manifest."""
        return {"name": self.name, "nbytes": self.nbytes, "sha256": self.sha256()}


class Contents(NamedTuple):
    """A file: the manifest, and the members as read-only uint8 arrays over the mapped file, 64-byte aligned.

    Large members are still being checked: what is in them may be read, and nothing of it given to anybody, before
    `check` has returned. library: the path of the file, where that is a shared library.
    """

    manifest: Fields
    members: Mapping[str, np.ndarray]
    library: str | None = None
    pending: Sequence[Callable[[], None]] = ()

    def member(self, name: str, where: str) -> np.ndarray:
        """Return the member of that name.

        Raises: ArtifactCorruptedError.
        """
        if name not in self.members:
            raise corrupted(where, name, f"one of the members {', '.join(self.members)}")
        return self.members[name]

    def check(self) -> None:
        """Wait until every byte of the file is checked.

        Raises: ArtifactCorruptedError.
        """
        for wait in self.pending:
            wait()


def write_container(path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Sequence[Member]) -> None:
    """Write a file whole or not at all: it is written beside its place and renamed when it is complete.

    Raises: ArtifactError when the place cannot be written, or is a device, a pipe or a folder.
    """
    from pathlib import Path  # inside: what only reads does without it, as it takes long to import

    target = Path(path)
    if os.path.exists(target) and not target.is_file():  # the renaming would put a file in the place of a device
        raise ArtifactError(f"cannot write {target}", found="it is no file", expected="a file, or a name that is free")
    temporary = target.parent / f".{target.name}.{os.urandom(6).hex()}.tmp"
    remove_abandoned(target)
    try:
        with open(temporary, "xb") as file:
            _write(file, manifest, members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise ArtifactError(f"cannot write {target}", found=error.strerror or str(error)) from error
    finally:
        with suppress(OSError):  # a name that is too long is none to remove either
            temporary.unlink(missing_ok=True)


def remove_abandoned(target: Path) -> None:
    """Remove what writers of this file left beside it that were killed; those of the last hour may be at work."""
    import glob

    for each in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with suppress(OSError):
            is_ours = re.fullmatch(_TEMPORARY, each.name[len(target.name) + 2 :])
            if is_ours and time.time() - each.stat().st_mtime > ABANDONED:
                each.unlink()


def pack_container(manifest: Mapping[str, Any], members: Sequence[Member]) -> bytes:
    """Return the bytes of the file that `write_container` writes."""
    file = BytesIO()
    _write(file, manifest, members)
    return file.getvalue()


def _write(file: BinaryIO, manifest: Mapping[str, Any], members: Sequence[Member]) -> None:
    text = write_json({**manifest, "members": [member.to_json() for member in members]})
    start = HEADER.pack(MAGIC, SCHEMA, 0, len(text))
    file.write((start + hashlib.sha256(start + text).digest()).ljust(HEADER_NBYTES, b"\0"))
    for parts in ([text], *(member.parts for member in members)):
        file.write(bytes(_padding(file.tell())))
        for part in parts:
            file.write(part)


def _padding(position: int) -> int:
    return memory.align(position) - position


def read_container(path: Source) -> Contents:
    """Read a file, or its bytes, and check every byte of it.

    Raises: ArtifactError when there is none, ArtifactCorruptedError, ArtifactVersionError.
    """
    contents = open_container(path)
    contents.check()
    return contents


def open_container(source: Source) -> Contents:
    """Read a file by its path, or its bytes; all are checked once the `check` of the contents has returned.

    Raises: as `read_container`.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _Reader(_map_bytes(source), "the artifact").read(None)
    name = os.fspath(source)
    try:
        with open(source, "rb") as file:
            data = _map(file)
    except OSError as error:
        raise ArtifactError(f"cannot read {name}", found=error.strerror or str(error)) from error
    is_library = data[: len(LIBRARY_MAGIC)].tobytes() == LIBRARY_MAGIC
    if is_library:
        from kernelyard.runtime.artifact import elf  # artifacts are mostly files of their own

        section = elf.find_section(data, SECTION)
        if section is None:
            raise ArtifactCorruptedError(
                f"{name} is a library without a Kernelyard artifact",
                expected=f"a section {SECTION}",
                hint="make it with kernelyard.compile(model).export_library(path)",
            )
        data = section
    return _Reader(data, name).read(os.path.abspath(name) if is_library else None)


def is_container(path: str | os.PathLike[str]) -> bool:
    """Return True for a file that begins as an artifact or as a shared library does, whatever it is called.

    Raises: ArtifactError for a file that cannot be read.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise ArtifactError(f"cannot read {os.fspath(path)}", found=error.strerror or str(error)) from error
    return start == MAGIC or start.startswith(LIBRARY_MAGIC)


def _map(file: BinaryIO) -> np.ndarray:
    """Return the file's bytes, read-only."""
    if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _map_bytes(data: bytes | bytearray | memoryview) -> np.ndarray:
    """Return a copy of the bytes that is mapped as a file is: pages of it can be given back, and are read again."""
    with os.fdopen(os.memfd_create("kernelyard"), "w+b") if hasattr(os, "memfd_create") else _temporary_file() as file:
        file.write(data)
        file.flush()
        return _map(file)


def _temporary_file() -> Any:
    from tempfile import TemporaryFile  # only systems other than Linux need it

    return TemporaryFile()


def _digest_of(member: np.ndarray) -> str:
    """Return the digest of a member's content, which is in memory piece by piece."""
    digest = hashlib.sha256()
    for start in range(0, member.nbytes, _PIECE_NBYTES):
        piece = member[start : start + _PIECE_NBYTES]
        digest.update(piece.data)
        memory.give_back_pages(piece)
    return digest.hexdigest()


def _digest_beside(member: np.ndarray) -> Callable[[], str]:
    """Compute a member's digest in a thread; return a function that waits for it."""
    found: list[str] = []
    thread = Thread(target=lambda: found.append(_digest_of(member)), name="kernelyard artifact", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system has no further thread
        return partial(_digest_of, member)

    def result() -> str:
        thread.join()
        return found[0]

    return result


class _Reader:
    def __init__(self, data: np.ndarray, path: str) -> None:
        self._data = data
        self._position = 0
        self._path = path

    @property
    def _left(self) -> int:
        return self._data.nbytes - self._position

    def read(self, library: str | None) -> Contents:
        manifest = self._read_manifest()
        members: dict[str, np.ndarray] = {}
        pending: list[Callable[[], None]] = []
        for item, where in manifest.items("members"):
            fields = Fields(item, where)
            name = fields.text("name")
            if name in members:
                raise corrupted(where, name, "names that differ")
            self._skip_padding()
            member = members[name] = self._take(fields.integer("nbytes"), f"member {name!r}")
            digest = fields.digest("sha256")
            if member.nbytes < _LARGE_NBYTES:
                self._check(name, digest, _digest_of(member))
            else:
                pending.append(partial(self._wait, name, digest, _digest_beside(member)))
        if self._left:
            raise self._damage_error("end of file", f"{self._left} bytes too many")
        return Contents(manifest, members, library, pending)

    def _wait(self, name: str, digest: str, found: Callable[[], str]) -> None:
        self._check(name, digest, found())

    def _check(self, name: str, digest: str, found: str) -> None:
        if found != digest:
            raise self._damage_error(f"member {name!r}", "its content is not what was written")

    def _read_manifest(self) -> Fields:
        header = self._take(HEADER_NBYTES, "header").tobytes()
        magic, schema, zero, length = HEADER.unpack_from(header)
        if magic != MAGIC:
            raise ArtifactCorruptedError(
                f"{self._path} is no Kernelyard artifact",
                found=repr(magic),
                expected=repr(MAGIC),
                hint="compile the model first: kernelyard.compile(model).save(path)",
            )
        if length > MAX_MANIFEST:
            raise self._damage_error("header", f"a manifest of {length} bytes")
        text = self._take(length, "manifest").tobytes()
        digest, rest = header[HEADER.size : HEADER.size + 32], header[HEADER.size + 32 :]
        if hashlib.sha256(header[: HEADER.size] + text).digest() != digest or zero or any(rest):
            raise self._damage_error("header or manifest", "its content is not what was written")
        if schema > SCHEMA:
            raise ArtifactVersionError(
                f"{self._path} was written by a newer release",
                found=f"schema {schema}",
                expected=f"at most {SCHEMA}",
                hint="pip install --upgrade kernelyard",
            )
        return Fields(read_json(text, "manifest"), "manifest")

    def _take(self, nbytes: int, what: str) -> np.ndarray:
        if nbytes > self._left:
            raise self._damage_error(what, f"the file ends {nbytes - self._left} bytes too early")
        start, self._position = self._position, self._position + nbytes
        return self._data[start : self._position]

    def _skip_padding(self) -> None:
        if self._take(_padding(self._position), "padding").any():
            raise self._damage_error("padding", "bytes that are not zero")

    def _damage_error(self, where: str, found: str) -> ArtifactCorruptedError:
        return ArtifactCorruptedError(
            f"{self._path} is damaged", where=where, found=found, hint="copy the file again, or compile the model again"
        )
