"""The cache on disk: many writers at once, a writer that is killed, damage, its bound, and folders that are not safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelyard.runtime.installed.disk_cache import DiskCache, cache_folder, max_bytes

# Puts and gets the same entries as other processes do; what it reads must be whole.
WRITER = """
import hashlib, random, sys
from kernelyard.runtime.installed.disk_cache import DiskCache
def payload(key): return hashlib.sha256(key.encode()).digest() * 3000
cache, order = DiskCache("test"), random.Random(int(sys.argv[1]))
for _ in range(300):
    key = f"entry {order.randrange(20)}"
    if order.random() < 0.5:
        cache.put(key, payload(key))
    assert cache.get(key) in (None, payload(key))
"""
# Writes one large entry again and again, until it is killed.
ENDLESS = """
from kernelyard.runtime.installed.disk_cache import DiskCache
cache = DiskCache("test")
print("ready", flush=True)
while True:
    cache.put("large", b"0123456789abcdef" * 500_000)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "100")
    return tmp_path / "cache" / "test"


def test_what_was_put_is_got(folder: Path) -> None:
    assert DiskCache("test").get("key") is None
    DiskCache("test").put("key", b"bytes")
    assert DiskCache("test").get("key") == b"bytes"
    assert DiskCache("test").get("other key") is None
    assert DiskCache("other").get("key") is None
    assert DiskCache("test").use().folder == folder
    assert str(DiskCache("test").use()).startswith(f"{folder}, 1 entries")


def test_several_processes_write_at_once(folder: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], stderr=subprocess.PIPE) for n in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    assert len(list(folder.iterdir())) == DiskCache("test").use().entries == 20
    assert not list(folder.glob(".*.tmp"))


def test_a_writer_that_is_killed_leaves_no_broken_entry(folder: Path) -> None:
    whole = b"0123456789abcdef" * 500_000
    for wait in (0.0, 0.003, 0.01, 0.017, 0.04):
        with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(wait)
            writer.send_signal(signal.SIGKILL)
        assert DiskCache("test").get("large") in (None, whole)
    abandoned = folder / ".entry.0123.tmp"  # surely there, however the killing went
    abandoned.write_bytes(b"half of it")
    DiskCache("test").put("small", b"bytes")
    assert abandoned.exists()  # its writer may still be at work
    for path in folder.glob(".*.tmp"):
        os.utime(path, (0, 0))
    DiskCache("test").put("small", b"bytes")
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.parametrize("damage", ["shorter", "changed", "longer", "empty"])
def test_a_damaged_entry_counts_as_missing(folder: Path, damage: str) -> None:
    cache = DiskCache("test")
    cache.put("key", b"some bytes")
    (path,) = folder.iterdir()
    data = path.read_bytes()
    path.write_bytes({"shorter": data[:-1], "changed": data[:-1] + b"!", "longer": data + b"!", "empty": b""}[damage])
    assert cache.get("key") is None
    assert not path.exists()
    cache.put("key", b"some bytes")
    assert cache.get("key") == b"some bytes"


def test_the_oldest_entries_go_where_the_bound_is_passed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    cache = DiskCache("test")
    for number in range(9):
        cache.put(f"{number}", bytes(100_000))
    for age, path in enumerate(sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, (1000 + age, 1000 + age))
    assert cache.get("0") is not None  # used again: no longer the oldest
    for number in range(9, 30):
        cache.put(f"{number}", bytes(100_000))
        assert cache.use().nbytes <= max_bytes()
        if number == 10:
            assert cache.get("0") is not None
            assert cache.get("1") is None
    cache.put("larger than all", bytes(2_000_000))
    assert cache.get("larger than all") is None
    assert cache.get("29") is not None


def test_it_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "0")
    DiskCache("test").put("key", b"bytes")
    assert DiskCache("test").get("key") is None
    assert str(DiskCache("test").use()) == "off"
    assert not folder.exists()


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path) -> None:
    DiskCache("test").put("key", b"bytes")
    folder.chmod(0o777)
    assert DiskCache("test").get("key") is None
    assert DiskCache("test").use().folder is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    DiskCache("test").put("key", b"bytes")
    assert DiskCache("test").get("key") is None


def test_the_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERNELYARD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "kernelyard"
    if sys.platform == "linux":
        assert cache_folder().parent == tmp_path
