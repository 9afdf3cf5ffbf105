"""Where CUDA's libraries are looked for, in which order, and that two major versions do not mix."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelyard.errors import BackendUnavailableError
from kernelyard_cuda import libraries as cuda_libraries
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import CUBLASLT, CUDNN, NVRTC, Candidate, candidates, major_in_use, usable


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any of them; its wheels go to `vendor_wheels/`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cuda_libraries, "PACKAGE", "vendor_wheels")
    monkeypatch.setattr(cuda_libraries, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(cuda_libraries, "find_library", lambda name: None)
    monkeypatch.setattr(cuda_libraries, "_find_by_pathfinder", lambda library: iter(()))
    for variable in ("CUDA_HOME", "CUDA_PATH", NVRTC.variable, CUBLASLT.variable, CUDNN.variable):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_nothing_is_found_where_nothing_is():
    assert nvrtc.find() is None
    assert list(candidates(CUBLASLT)) == []
    assert major_in_use() == (0, "")
    assert usable(CUBLASLT, "") == []


def test_wheels_of_either_release_with_their_headers(machine: Path):
    older = put(machine / "vendor_wheels/cuda_nvrtc/lib/libnvrtc.so.12")
    assert nvrtc.find() == (str(older), ())
    headers = machine / "vendor_wheels/cuda_runtime/include"
    headers.mkdir(parents=True)
    assert nvrtc.find() == (str(older), (headers,))
    newer = put(machine / "vendor_wheels/cu13/lib/libnvrtc.so.13")
    assert nvrtc.find() == (str(newer), ())
    assert [(each.major, each.source) for each in candidates(NVRTC)] == [(13, "a wheel"), (12, "a wheel")]


def test_a_library_keeps_its_headers_once_it_is_loaded(machine: Path, monkeypatch: pytest.MonkeyPatch):
    """A process compiles more than once: /proc/self/maps has the file itself, whatever links lead to it."""
    file = put(machine / "toolkit/targets/x86_64-linux/lib/libnvrtc.so.13.0.88")
    headers = machine / "toolkit/include"
    headers.mkdir()
    (machine / "toolkit/lib64").symlink_to(file.parent)
    (file.parent / "libnvrtc.so.13").symlink_to(file)
    monkeypatch.setenv("CUDA_HOME", str(machine / "toolkit"))
    linked = machine / "toolkit/lib64/libnvrtc.so.13"
    assert nvrtc.find() == (str(linked), (headers,))
    (machine / "maps").write_text(f"7f00-7f01 r-xp 00 00:00 1 {file}\n")
    assert nvrtc.find() == (str(file), (headers,))
    monkeypatch.setenv(NVRTC.variable, str(linked))
    assert nvrtc.find() == (str(linked), (headers,))
    (machine / "maps").write_text("7f00-7f01 r-xp 00 00:00 1 /opt/x/libnvrtc.so.12.9.86\n")
    monkeypatch.delenv(NVRTC.variable)
    assert nvrtc.find() == ("/opt/x/libnvrtc.so.12.9.86", ())  # of an installation that is not known


def test_the_order_of_places(machine: Path, monkeypatch: pytest.MonkeyPatch):
    put(machine / "vendor_wheels/cublas/lib/libcublasLt.so.12")
    put(machine / "toolkit/lib64/libcublasLt.so.13")
    (machine / "toolkit/include").mkdir()
    monkeypatch.setenv("CUDA_HOME", str(machine / "toolkit"))
    monkeypatch.setattr(cuda_libraries, "find_library", lambda name: f"lib{name}.so.12")
    (machine / "maps").write_text("7f00-7f01 r-xp 00 00:00 1 /opt/x/libcublasLt.so.12.9.1\n7f02 /opt/x/libm.so.6\n")
    found = list(candidates(CUBLASLT))
    assert [each.source for each in found] == ["loaded already", "a wheel", "CUDA_HOME", cuda_libraries.SYSTEM]
    assert [each.major for each in found] == [12, 12, 13, 12]
    assert found[2].headers == (machine / "toolkit/include",)
    monkeypatch.setenv(CUBLASLT.variable, "/mine/libcublasLt.so.13")
    assert list(candidates(CUBLASLT)) == [Candidate("/mine/libcublasLt.so.13", 13, "KERNELYARD_CUBLASLT_LIBRARY")]


def test_cudnn_has_numbers_of_its_own(machine: Path):
    path = put(machine / "vendor_wheels/cudnn/lib/libcudnn.so.9")
    put(machine / "vendor_wheels/cu13/lib/libnvrtc.so.13")
    assert list(usable(CUDNN, "")) == [Candidate(str(path), 0, "a wheel")]


def test_major_versions_do_not_mix(machine: Path):
    put(machine / "vendor_wheels/cublas/lib/libcublasLt.so.12")
    put(machine / "vendor_wheels/cu13/lib/libnvrtc.so.13")
    with pytest.raises(BackendUnavailableError, match="cannot be mixed") as caught:
        usable(CUBLASLT, "install the other")
    assert caught.value.expected == "cublasLt for CUDA 13"
    assert caught.value.hint == "install the other"
    newer = put(machine / "vendor_wheels/cu13/lib/libcublasLt.so.13")
    assert [each.path for each in usable(CUBLASLT, "")] == [str(newer)]


def test_what_is_loaded_decides(machine: Path):
    put(machine / "vendor_wheels/cu13/lib/libnvrtc.so.13")
    put(machine / "vendor_wheels/cu13/lib/libcublasLt.so.13")
    older = put(machine / "vendor_wheels/cublas/lib/libcublasLt.so.12")
    (machine / "maps").write_text("7f00-7f01 r-xp 00 00:00 1 /opt/x/libcudart.so.12\n7f02 /opt/x/libcudnn.so.9\n")
    assert major_in_use() == (12, "/opt/x/libcudart.so.12 is loaded")
    assert [each.path for each in usable(CUBLASLT, "")] == [str(older)]
