"""CUDA sources: compiled without a GPU by nvcc or NVRTC, carried by artifacts, refused where they would run."""

from __future__ import annotations

from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn
from kernelyard.errors import (
    ArtifactCorruptedError,
    ArtifactVersionError,
    DeviceError,
    ExecutionError,
    FrontendError,
    ToolchainError,
)
from kernelyard.runtime.api import pack_module
from kernelyard.runtime.modules import extern_library
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_cuda import nvrtc
from kernelyard_cuda.kernels import CudaKernels
from kernelyard_cuda.kernels import load as load_kernels
from kernelyard_cuda.libraries import NVRTC, candidates

SOURCE = """
#ifdef FACTOR_HEADER
#include "factor.h"
#else
#define FACTOR 1
#endif
extern "C" __global__ void scaled_sums(const float* x, float* sums, long long rows, long long columns, long long) {
  long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (long long i = 0; i < columns; ++i) sum += x[row * columns + i];
  sums[row] = FACTOR * sum;
}
"""
ARCH = "sm_90"


def infer(x):
    return nn.Tensor.placeholder(x.shape[:1], "float32")


class Net(nn.Module):
    def __init__(self, extern: nn.ExternModule) -> None:
        self.extern = extern

    def forward(self, x):
        return nn.op.exp(self.extern["scaled_sums"](x * 2.0))


SPEC = {"forward": {"x": nn.spec.Tensor(["n", "m"])}}


def source(text: str | Path = SOURCE, **options) -> nn.SourceModule:
    return nn.SourceModule({"scaled_sums": infer}, text, "cu", arch=ARCH, **options)


@pytest.fixture(params=["nvcc", "nvrtc"])
def compiler(request, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the compilers, alone."""
    monkeypatch.delenv("NVCC", raising=False)
    if request.param == "nvcc":
        try:
            cuda_compiler.CUDA.find()
        except ToolchainError:
            pytest.skip("there is no nvcc here")
    else:
        if nvrtc.find() is None:
            pytest.skip("NVRTC is not installed here: pip install nvidia-cuda-nvrtc-cu12")
        monkeypatch.setenv("PATH", "/nowhere")
    return request.param


def test_kernels_are_compiled_and_carried_without_a_gpu(compiler: str, tmp_path: Path) -> None:
    module, _ = Net(source()).export(SPEC, allow_extern=True)
    (kernels,) = module.attrs["external_modules"]
    assert isinstance(kernels, CudaKernels)
    assert (kernels.arch, kernels.symbols(), kernels.missing()) == (ARCH, ("scaled_sums",), ())
    exe = ky.compile(nn.ModuleSpec(Net(source()), SPEC, allow_extern=True), backends=[])
    assert {row.backend for row in exe.report.placed if row.op == "call_dps_packed"} == {"extern"}
    exe.save(tmp_path / "m.kyar")
    loaded = ky.load(tmp_path / "m.kyar")
    (carried,) = (each for each in loaded.modules if isinstance(each, CudaKernels))
    assert carried.save_to_bytes() == kernels.save_to_bytes()
    assert "scaled_sums (sm_90" in loaded.inspect()
    with pytest.raises(DeviceError, match="cannot run in host memory") as error:
        loaded(np.ones((2, 3), np.float32))
    assert error.value.expected == "a CUDA device"


def test_kernels_run_on_the_emulator_among_generated_ones(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = ky.compile(nn.ModuleSpec(Net(source()), SPEC, allow_extern=True), target="cuda", backends=[])
    exe.save(tmp_path / "m.kyar")
    monkeypatch.undo()  # the emulator needs a C++ compiler
    machine = ky.VirtualMachine(ky.load(tmp_path / "m.kyar"), ky.cuda("emulator"))
    for shape in ((2, 3), (700, 5)):
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(machine["forward"](x), np.exp((x * 2).sum(axis=1)), rtol=1e-4)


def test_options_and_headers(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n", encoding="utf-8")
    (tmp_path / "code.cu").write_text(SOURCE, encoding="utf-8")
    plain = source().compile()
    assert plain == source().compile()
    assert source(tmp_path / "code.cu", compile_options=["-DFACTOR_HEADER"]).compile() != plain


def test_headers_of_cuda_are_found_each_time(compiler: str) -> None:
    """The first call loads NVRTC, which is found as a loaded library from then on."""
    if compiler == "nvrtc" and not any(each.headers for each in candidates(NVRTC)):
        pytest.skip("CUDA's headers are not installed here: pip install nvidia-cuda-runtime-cu12")
    text = f"#include <cuda_fp16.h>\n{SOURCE}"
    assert source(text).compile() == source(text).compile()


def test_code_that_cannot_be_compiled(compiler: str) -> None:
    with pytest.raises(ToolchainError, match="CUDA compiler failed") as error:
        source("int f() { return nothing; }").load()
    assert "extern.cu(1)" in str(error.value.found)
    with pytest.raises(ToolchainError, match="lacks the kernels") as error:
        source("__global__ void scaled_sums(float* x) { *x = 1; }").load()
    assert 'extern "C" __global__ void scaled_sums(...)' in str(error.value.hint)


def test_no_compiler_has_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    with pytest.raises(ToolchainError, match="no CUDA compiler was found") as error:
        source().load()
    assert "pip install nvidia-cuda-nvrtc-cu12" in str(error.value.hint)


def test_a_compiler_that_was_named_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match="called my-nvcc"):
        source(compiler="my-nvcc").load()
    monkeypatch.setenv("NVCC", "other-nvcc")
    with pytest.raises(ToolchainError, match="called other-nvcc"):
        source().load()


def test_what_is_no_nvrtc_is_told(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc.so.13").touch()
    for path in (tmp_path / "libnvrtc.so.13", find_library("c")):
        with pytest.raises(ToolchainError, match="NVRTC cannot be loaded"):
            nvrtc.compile_cubin(str(path), SOURCE, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_format": "cuda"}, "source format is unknown"),
        ({"source_format": "cu"}, "needs the arch of a GPU"),
        ({"source_format": "cu", "arch": "90"}, "needs the arch of a GPU"),
        ({"arch": "sm_90"}, "for CUDA code alone"),
    ],
)
def test_sources_that_are_refused(options, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        nn.SourceModule({"f": infer}, "", **options)


def test_kernels_from_bytes() -> None:
    kernels = CudaKernels(b"\x7fELF", ("f",), "sm_90a")
    data = kernels.save_to_bytes()
    loaded = load_kernels(data, {})
    assert isinstance(loaded, CudaKernels)
    assert (loaded.arch, loaded.symbols(), loaded.save_to_bytes()) == ("sm_90a", ("f",), data)
    with pytest.raises(ExecutionError, match="no function 'g'"):
        loaded.get_function("g")
    with pytest.raises(DeviceError):
        loaded.get_function("f")
    for damaged in (data.replace(b"sm_90a", b"am_90a"), data.replace(b'"f"', b'"-"')):
        with pytest.raises(ArtifactCorruptedError):
            load_kernels(damaged, {})
    fields = {"symbols": ["f"], "target": "cuda", "arch": "sm_90a", "source": ""}
    with pytest.raises(ArtifactVersionError, match="CUDA kernels in the format of"):
        extern_library.load(pack_module(b"", 1, fields, (b"\x7fELF",)), {})
    with pytest.raises(ArtifactCorruptedError):
        kernels.missing()
