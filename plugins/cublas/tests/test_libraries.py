"""Which libcublasLt is used, and what is said where there is none, or where two major versions would meet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import kernelyard as ky
from kernelyard.errors import BackendUnavailableError
from kernelyard_cublas import libraries
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.libraries import candidates, load_library, major_in_use, refusal, version_text
from kernelyard_cublas.runtime import api_of

from .conftest import compiled, module_of, region_of

PRODUCT = module_of(lambda b, x, w: b.op("matmul", x, w), ((4, 8), "float32"), ((8, 6), "float32"))


class Machine:
    """A machine with these libraries and no others."""

    def __init__(self, folder, monkeypatch):
        self.root, self.maps = folder / "nvidia", folder / "maps"
        self.root.mkdir()
        self.maps.write_text("")
        self._monkeypatch = monkeypatch
        monkeypatch.delenv(libraries.VARIABLE, raising=False)
        monkeypatch.setattr(libraries, "MAPS", self.maps)
        spec = SimpleNamespace(submodule_search_locations=[str(self.root)])
        monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec if name == "nvidia" else None)
        monkeypatch.setattr(libraries, "_of_pathfinder", lambda: iter(()))
        monkeypatch.setattr(libraries, "find_library", lambda name: None)
        monkeypatch.setattr(libraries.nvrtc, "find", lambda: None)

    def wheel(self, major):
        path = self.root / libraries.WHEEL_FOLDERS[major] / f"libcublasLt.so.{major}"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"no library")
        return str(path)

    def loaded(self, *paths):
        self.maps.write_text("".join(f"7f00-7f01 r-xp 0 00:00 1 {path}\n" for path in paths))

    def nvrtc(self, major):
        self._monkeypatch.setattr(libraries.nvrtc, "find", lambda: (f"/wheels/libnvrtc.so.{major}", ()))

    @property
    def first(self):
        return next(libraries.candidates()).path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_wheels_of_both_layouts_are_found(machine):
    twelve, thirteen = machine.wheel(12), machine.wheel(13)
    assert [each.path for each in candidates()][:2] == [thirteen, twelve]
    assert refusal() is None


def test_what_is_named_is_what_is_used(machine, monkeypatch):
    machine.wheel(12)
    monkeypatch.setenv(libraries.VARIABLE, "/mine/libcublasLt.so.13")
    assert [each.path for each in candidates()] == ["/mine/libcublasLt.so.13"]
    with pytest.raises(BackendUnavailableError, match="/mine/libcublasLt"):
        load_library()


def test_what_is_loaded_already_comes_first(machine):
    machine.wheel(13)
    machine.loaded("/torch/libcublasLt.so.12", "/torch/libcudart.so.12.4.127")
    assert machine.first == "/torch/libcublasLt.so.12"
    assert major_in_use() == (12, "/torch/libcublasLt.so.12 is loaded")


def test_the_library_of_the_major_version_in_use_is_chosen(machine):
    twelve, _ = machine.wheel(12), machine.wheel(13)
    machine.nvrtc(12)
    assert refusal() is None
    with pytest.raises(BackendUnavailableError) as caught:  # the file is no library; the other is not even tried
        load_library()
    assert twelve in str(caught.value.found)
    assert "cu13" not in str(caught.value.found)


@pytest.mark.parametrize(("wheel", "other"), [(12, 13), (13, 12)])
def test_two_major_versions_are_refused_with_the_way_out(wheel, other, machine):
    machine.wheel(wheel)
    machine.nvrtc(other)
    refused = refusal()
    assert refused is not None
    assert f"kernelyard-cublas[cu{other}]" in str(refused.hint)
    unavailable = CublasBackend().probe()
    assert unavailable is not None
    assert f"libnvrtc.so.{other}" in unavailable.reason
    with pytest.raises(BackendUnavailableError, match="do not mix"):
        load_library()
    machine.nvrtc(wheel)
    assert CublasBackend().probe() is None


def test_without_the_library_everything_but_running_on_a_gpu_works(machine):
    assert refusal() is None
    assert CublasBackend().probe() is None
    assert "kernelyard-cublas[cu12]" in CublasBackend().facts()["cuBLASLt"]
    assert region_of(compiled(PRODUCT, "sm_90")).pattern == "cublas.matmul"
    report = ky.explain(PRODUCT, target="cuda", backends=["cublas"])
    assert report.regions[0].backend == "cublas"


def test_on_a_gpu_without_the_library_one_error_says_what_is_missing(machine, emulator):
    if emulator is None:
        pytest.skip("there is no C++ compiler, which the emulator needs")

    class Gpu(type(emulator)):
        is_emulator = False

        def __init__(self):
            pass

    with pytest.raises(BackendUnavailableError, match="no usable cuBLASLt") as caught:
        api_of(Gpu())
    assert "pip install" in str(caught.value.hint)


def test_versions_are_read():
    assert [version_text(each) for each in (120903, 131000, 130100)] == ["12.9.3", "13.10.0", "13.1.0"]
