"""Which libcublasLt is used, and what is said where there is none, or where two major versions would meet."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

import kernelyard as ky
from kernelyard.errors import BackendUnavailableError
from kernelyard.plugins.discovery.manager import backends, get_manager
from kernelyard.testing.offload_bench import module_of
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.libraries import load_library, refusal, version_text
from kernelyard_cublas.runtime import api_of
from kernelyard_cuda import driver_api as cuda_driver
from kernelyard_cuda import libraries as cuda_libraries
from kernelyard_cuda.libraries import CUBLASLT, NVRTC

from .conftest import compiled, region_of

PRODUCT = module_of(lambda b, x, w: b.op("matmul", x, w), ((4, 8), "float32"), ((8, 6), "float32"))


class Machine:
    """A machine with these libraries and no others."""

    def __init__(self, folder, monkeypatch):
        self.root, self.maps = folder / "nvidia", folder / "maps"
        self.root.mkdir()
        self.maps.write_text("")
        for name in (CUBLASLT.variable, NVRTC.variable, "CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(cuda_libraries, "MAPS", self.maps)
        spec = SimpleNamespace(submodule_search_locations=[str(self.root)])
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: spec if name == "nvidia" else find(name, *more)
        )
        monkeypatch.setattr(cuda_libraries, "_find_by_pathfinder", lambda library: iter(()))
        monkeypatch.setattr(cuda_libraries, "find_library", lambda name: None)

    def wheel(self, major, library=CUBLASLT):
        path = self.root / dict(library.folders)[major] / f"lib{library.name}.so.{major}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no library")
        return str(path)

    def loaded(self, *paths):
        self.maps.write_text("".join(f"7f00-7f01 r-xp 0 00:00 1 {path}\n" for path in paths))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def tried():
    """The places that are named where no library can be loaded: the files of these tests are none."""
    with pytest.raises(BackendUnavailableError, match="no usable cuBLASLt") as caught:
        load_library()
    return str(caught.value.found)


def test_wheels_of_both_layouts_are_found(machine):
    twelve, thirteen = machine.wheel(12), machine.wheel(13)
    assert tried().index(thirteen) < tried().index(twelve)
    assert refusal() is None


def test_what_is_named_is_what_is_used(machine, monkeypatch):
    twelve = machine.wheel(12)
    monkeypatch.setenv("KERNELYARD_CUBLASLT_LIBRARY", "/mine/libcublasLt.so.13")
    assert "/mine/libcublasLt.so.13" in tried()
    assert twelve not in tried()


def test_what_is_loaded_already_comes_first_and_says_which_version(machine):
    thirteen = machine.wheel(13)
    machine.loaded("/torch/libcublasLt.so.12", "/torch/libcudart.so.12.4.127")
    assert "/torch/libcublasLt.so.12" in tried()
    assert thirteen not in tried()


def test_the_library_of_the_major_version_in_use_is_chosen(machine):
    twelve, thirteen = machine.wheel(12), machine.wheel(13)
    machine.wheel(12, NVRTC)
    assert refusal() is None
    assert twelve in tried()
    assert thirteen not in tried()


@pytest.mark.parametrize(("wheel", "other"), [(12, 13), (13, 12)])
def test_two_major_versions_are_refused_with_the_way_out(wheel, other, machine):
    machine.wheel(wheel)
    compiler = machine.wheel(other, NVRTC)
    refused = refusal()
    assert refused is not None
    assert f"kernelyard-cublas[cu{other}]" in str(refused.hint)
    unavailable = CublasBackend().probe()
    assert unavailable is not None
    assert compiler in unavailable.reason
    with pytest.raises(BackendUnavailableError, match="cannot be mixed"):
        load_library()
    machine.wheel(other)
    assert CublasBackend().probe() is None


def test_without_the_library_everything_but_running_on_a_gpu_works(machine):
    assert refusal() is None
    assert CublasBackend().probe() is None
    assert "kernelyard-cublas[cu12]" in CublasBackend().facts()["cuBLASLt"]
    assert region_of(compiled(PRODUCT, "sm_90")).pattern == "cublas.matmul"
    report = ky.explain(PRODUCT, target="cuda", backends=["cublas"])
    assert report.regions[0].backend == "cublas"


def test_where_a_gpu_is_auto_leaves_the_backend_out_without_the_library(machine, monkeypatch, caplog):
    monkeypatch.setattr(cuda_driver, "gpu_is_here", lambda: True)
    get_manager.cache_clear()
    try:
        report = ky.explain(PRODUCT, target="cuda", backends="auto")
        with pytest.raises(BackendUnavailableError, match="no usable cuBLASLt") as caught:
            ky.explain(PRODUCT, target="cuda", backends=["cublas"])
        (info,) = [each for each in backends() if each.name == "cublas"]
    finally:
        get_manager.cache_clear()
    assert not [region for region in report.regions if region.backend == "cublas"]
    assert "pip install 'kernelyard-cublas" in str(caught.value.hint)
    assert info.state == "unavailable"
    (said,) = [each.getMessage() for each in caplog.records if "cublas is left out" in each.getMessage()]
    assert info.reason in said


def test_on_a_gpu_without_the_library_one_error_says_what_is_missing(machine, products):
    class Gpu(type(products.emulator)):
        is_emulator = False

        def __init__(self):
            pass

    with pytest.raises(BackendUnavailableError, match="no usable cuBLASLt") as caught:
        api_of(Gpu())
    assert "pip install" in str(caught.value.hint)


def test_versions_are_read():
    assert [version_text(each) for each in (120903, 131000, 130100)] == ["12.9.3", "13.10.0", "13.1.0"]
