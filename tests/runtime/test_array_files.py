"""NumPy's files: whole ones are read, damaged ones are ValueErrors."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kernelyard.runtime.array_files import read_array_file

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def array_file() -> bytes:
    written = io.BytesIO()
    np.save(written, X)
    return written.getvalue()


def archive() -> bytes:
    written = io.BytesIO()
    np.savez_compressed(written, x=X)
    return written.getvalue()


def archive_of(member: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        file.writestr("x.npy", member)
    return written.getvalue()


def object_file() -> bytes:
    written = io.BytesIO()
    np.save(written, np.array([{}]), allow_pickle=True)
    return written.getvalue()


def test_whole_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(array_file())
    array = read_array_file(path)
    assert isinstance(array, np.ndarray)
    assert np.array_equal(array, X)
    path.write_bytes(archive())
    arrays = read_array_file(path)
    assert isinstance(arrays, dict)
    assert np.array_equal(arrays["x"], X)


DAMAGED = {
    "a header that does not end": array_file().replace(b"}", b"("),
    "an archive without its directory": archive()[:-22],
    "another checksum": archive_of(array_file()).replace(b"\x93NUMPY", b"\x93NUMPX"),
    "a member that is cut": archive_of(array_file()[:-1]),
    "a member whose header does not end": archive_of(array_file().replace(b"}", b"(")),
    "a member that is no array": archive_of(b"text"),
    "Python objects": object_file(),
    "nothing": b"",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_value_errors(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        read_array_file(path)


def test_every_byte_of_an_archive_may_be_another(tmp_path: Path) -> None:
    """Read arrays whole, or raise: never an error of zip, of its decompressor or of a tokenizer."""
    path, data = tmp_path / "x", archive()
    errors = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            read_array_file(path)
        except (OSError, ValueError):
            errors += 1
    assert errors > len(data) // 2
