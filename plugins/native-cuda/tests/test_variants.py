"""One file with code for CPUs and for GPUs: the GPU's is loaded where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import BackendUnavailableError, DeviceError
from kernelyard_native_cuda import drivers
from kernelyard_native_cuda.generator import compiler_is_here

from .test_programs import mlp, module_of

pytestmark = pytest.mark.skipif(
    not compiler_is_here(), reason="there is no CUDA compiler here: pip install nvidia-cuda-nvrtc-cu12"
)
MODEL = module_of(mlp)
CPU, GPU = ky.Target("cpu", mcpu="x86-64"), ky.Target("cuda", arch="sm_80,sm_90")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_device(index: int | str) -> None:
        raise DeviceError("there is no GPU", found="none", expected="an NVIDIA GPU")

    monkeypatch.setattr(drivers, "open_device", open_device)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = drivers.open_device(drivers.EMULATOR)
    monkeypatch.setattr(drivers, "open_device", lambda index: emulator)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    cpu, gpu = (ky.compile(MODEL, target=target, backends=[]) for target in (CPU, GPU))
    cpu.save(tmp_path / "both.kyar", variants=[gpu])
    return tmp_path / "both.kyar"


@pytest.mark.usefixtures("without_gpu")
def test_the_cpu_s_code_is_loaded_where_there_is_no_gpu(both: Path) -> None:
    exe = ky.load(both)
    assert exe.target == str(CPU)
    (info,) = exe.inputs
    x = np.ones(tuple(dim if isinstance(dim, int) else 2 for dim in info.shape), np.float32)
    expected = ky.compile(MODEL, target=CPU, backends=[])(x)
    np.testing.assert_array_equal(exe(x), expected)


@pytest.mark.usefixtures("with_gpu")
def test_the_gpu_s_code_is_loaded_where_there_is_one(both: Path) -> None:
    assert ky.load(both).target == str(GPU)


@pytest.mark.usefixtures("without_gpu")
def test_an_artifact_for_gpus_alone_says_what_is_missing(tmp_path: Path) -> None:
    for_one, for_other = (
        ky.compile(MODEL, target=ky.Target("cuda", arch=arch), backends=[]) for arch in ("sm_80", "sm_90")
    )
    for_one.save(tmp_path / "gpus.kyar", variants=[for_other])
    with pytest.raises(BackendUnavailableError) as error:
        ky.load(tmp_path / "gpus.kyar")
    assert error.value.expected == "an NVIDIA GPU"
