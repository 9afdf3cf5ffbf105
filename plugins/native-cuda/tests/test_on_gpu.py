"""What the emulator shows, on a GPU: every operator's samples, whole programs, graphs, other libraries' tensors.

`make gpu-test` runs these; elsewhere they are not selected. `test_on_late_driver.py` runs a part of them without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import DeviceError
from kernelyard.testing import evaluate
from kernelyard.tir import PrimFunc
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_native_cuda.drivers import open_device
from kernelyard_native_cuda.drivers.gpu import Gpu
from kernelyard_native_cuda.runtime import NativeCudaModule

from .conftest import generate
from .test_ops import CASES, check_sample, lower_static, lower_symbolic
from .test_programs import PROGRAMS, module_of
from .test_rules import random

pytestmark = pytest.mark.gpu

Lower = Callable[..., PrimFunc | None]  # of a case: its operator at loop level
SAMPLES = 80  # of a module: enough of them share the text before them, and few enough are compiled side by side
NAMES = list(CASES)
NUMBER_OF = {name: number for number, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    try:
        found = open_device(0)
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    if cuda_compiler.find_kernel_compiler() is None:
        pytest.skip("neither NVRTC nor nvcc is installed")
    assert isinstance(found, Gpu)
    return found


class Samples:
    """Modules of operators' samples for an architecture, each compiled when one of its samples is first asked for."""

    def __init__(self, arch: str | None) -> None:
        self.arch = arch
        self._made: dict[tuple[Lower, int], NativeCudaModule] = {}

    def module(self, lower: Lower, name: str) -> NativeCudaModule:
        number = NUMBER_OF[name] // SAMPLES
        if (lower, number) not in self._made:
            names = NAMES[number * SAMPLES : (number + 1) * SAMPLES]
            lowered = {each: lower(*CASES[each]) for each in names}
            functions = {each: function for each, function in lowered.items() if function is not None}
            self._made[lower, number] = generate(functions, self.arch)
        return self._made[lower, number]


@pytest.fixture(scope="module")
def samples(target) -> Samples:
    return Samples(target.arch)


def in_groups(kind: str) -> list[Any]:
    """The names of samples; those of one module are tested by one process."""
    return [
        pytest.param(name, marks=pytest.mark.xdist_group(f"{kind} samples {NUMBER_OF[name] // SAMPLES}"))
        for name in NAMES
    ]


@pytest.mark.parametrize("name", in_groups("static"))
def test_static(gpu, samples, name):
    check_sample(gpu, samples.module(lower_static, name), name, {})


@pytest.mark.parametrize("name", in_groups("symbolic"))
def test_symbolic(gpu, samples, name):
    module = samples.module(lower_symbolic, name)
    if name not in module.symbols():
        pytest.skip("the type rule needs known sizes here")
    sizes = {size for array in CASES[name][1].inputs for size in np.shape(array) if size > 1}
    check_sample(gpu, module, name, {f"n{size}": size for size in sizes})


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_again_and_again(gpu, target, name, monkeypatch):
    """The first run warms up, the second is captured, the third replays; feeds differ. One kernel alone is launched."""
    captured: list[Callable[[], None]] = []
    capture = Gpu.capture
    monkeypatch.setattr(Gpu, "capture", lambda self, run: captured.append(run) or capture(self, run))
    build, shape = PROGRAMS[name]
    module = module_of(build)
    exe = ky.compile(module, target=target, backends=[])
    (generated,) = (each for each in exe.modules if isinstance(each, NativeCudaModule))
    machine = ky.VirtualMachine(exe, ky.cuda(0))
    for number in range(4):
        x = random(*shape) + np.float32(number)
        np.testing.assert_allclose(machine["main"](x), evaluate(module, [x])[0], rtol=1e-3, atol=1e-4)
    # Where a result's memory is not that of the call before, a second graph may write to it directly.
    assert len(captured) in ((1, 2) if len(generated.image.kernels) > 1 else (0,))


def test_artifacts_run_in_the_process_that_loads_them(gpu, target, tmp_path):
    build, shape = PROGRAMS["mlp"]
    module = module_of(build)
    ky.compile(module, target=target, backends=[]).save(tmp_path / "m.kyar")
    x = random(*shape)
    found = ky.VirtualMachine(ky.load(tmp_path / "m.kyar"), ky.cuda(0))["main"](x)
    np.testing.assert_allclose(found, evaluate(module, [x])[0], rtol=1e-3, atol=1e-4)


def test_tensors_of_torch_are_taken_and_given_without_a_copy(gpu, target):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    build, shape = PROGRAMS["block"]
    module = module_of(build)
    machine = ky.VirtualMachine(ky.compile(module, target=target, backends=[]), ky.cuda(0))
    x = random(*shape)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fed = torch.zeros(shape, device="cuda")
        for _ in range(50):
            fed = fed + torch.ones_like(fed) * 0.02
        fed = fed * torch.from_numpy(x).cuda()  # still under way on a stream that is not ours
        result = machine["main"](fed)
        found = torch.from_dlpack(result)
        assert found.is_cuda
        assert found.data_ptr() == result.array.address
        doubled = (found * 2).cpu().numpy()
    np.testing.assert_allclose(doubled, 2 * evaluate(module, [x])[0], rtol=1e-3, atol=1e-4)


def test_measuring(gpu, target):
    build, shape = PROGRAMS["norms"]
    exe = ky.compile(module_of(build), target=target, backends=[])
    x = random(*shape)
    assert ky.VirtualMachine(exe, ky.cuda(0)).time_evaluator("main")(x).median > 0
    assert exe.profile([x]).steps
