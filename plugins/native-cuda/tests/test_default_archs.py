"""`target="cuda"` alone: code for the GPUs that are here, else for one of each major version."""

from __future__ import annotations

import logging

import pytest

import kernelyard as ky
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_cuda import default_archs, driver_api
from kernelyard_cuda.compiler import KernelCompiler
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.runtime import NativeCudaModule

from .test_programs import mlp, module_of

needs_compiler = pytest.mark.skipif(
    not compiler_is_here(), reason="there is no CUDA compiler here: pip install nvidia-cuda-nvrtc-cu12"
)


@pytest.fixture(autouse=True)
def _nothing_is_listed(monkeypatch):
    monkeypatch.delenv(default_archs.VARIABLE)


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(driver_api, "gpu_archs", lambda: ())


def compiled_for(exe: ky.Executable) -> list[str]:
    (module,) = (each for each in exe.modules if isinstance(each, NativeCudaModule))
    assert all(cubin.startswith(b"\x7fELF") for cubin in module.image.cubins.values())
    return list(module.image.cubins)


@needs_compiler
def test_the_gpu_of_this_machine_is_compiled_for(monkeypatch):
    monkeypatch.setattr(driver_api, "gpu_archs", lambda: ("sm_89",))
    exe = ky.compile(module_of(mlp), target="cuda", backends=[])
    assert compiled_for(exe) == ["sm_89"]
    assert exe.target == exe.report.target == "cuda arch=sm_89"
    assert "for cuda arch=sm_89" in str(exe.report).splitlines()


@needs_compiler
def test_without_a_gpu_the_code_is_for_every_major_version(without_gpu):
    report = ky.explain(module_of(mlp), target="cuda", backends=[])
    archs = report.target.removeprefix("cuda arch=").split(",")
    assert {"sm_80", "sm_90"} <= set(archs) <= set(default_archs.PORTABLE)
    assert compiled_for(ky.compile(module_of(mlp), target="cuda", backends=[])) == archs


def test_architectures_that_the_compiler_lacks_are_left_out(monkeypatch, without_gpu):
    monkeypatch.setattr(default_archs, "find_kernel_compiler", lambda: KernelCompiler("NVRTC 12.4"))
    monkeypatch.setattr(KernelCompiler, "archs", lambda _: ("sm_75", "sm_80", "sm_90"))
    assert ky.explain(module_of(mlp), target="cuda", backends=[]).target == "cuda arch=sm_80,sm_90"


@pytest.mark.parametrize(("listed", "target"), [("sm_86, sm_90", "cuda arch=sm_86,sm_90"), ("", "cuda")])
def test_the_environment_lists_architectures(monkeypatch, listed, target):
    monkeypatch.setenv(default_archs.VARIABLE, listed)
    assert ky.explain(module_of(mlp), target="cuda", backends=[]).target == target


def test_an_architecture_that_is_named_stays(monkeypatch):
    monkeypatch.setattr(driver_api, "gpu_archs", lambda: ("sm_89",))
    report = ky.explain(module_of(mlp), target=ky.Target("cuda", arch="sm_80"), backends=[])
    assert report.target == "cuda arch=sm_80"


def test_without_a_compiler_the_log_says_what_is_missing(monkeypatch, caplog):
    monkeypatch.setattr(default_archs, "find_kernel_compiler", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert ky.explain(module_of(mlp), target="cuda", backends=[]).target == "cuda"
    assert "pip install nvidia-cuda-nvrtc-cu12" in caplog.text


@needs_compiler
def test_compilers_say_what_they_compile_for():
    compiler = cuda_compiler.find_kernel_compiler()
    assert compiler is not None
    assert "sm_90" in compiler.archs()
