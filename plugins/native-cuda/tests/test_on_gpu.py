"""What the emulator shows, on a GPU: every operator's samples, whole programs, graphs, other libraries' tensors.

`make gpu-test` runs these; elsewhere they are not selected. `test_on_late_driver.py` runs a part of them without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import DeviceError
from kernelyard.testing import evaluate
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_native_cuda.drivers import open_device
from kernelyard_native_cuda.drivers.gpu import Gpu
from kernelyard_native_cuda.runtime import NativeCudaModule

from .conftest import generate
from .test_ops import CASES, check_sample, lower_static, lower_symbolic
from .test_programs import PROGRAMS, module_of
from .test_rules import random

pytestmark = pytest.mark.gpu


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


@pytest.fixture(scope="module")
def static_module(target) -> NativeCudaModule:
    return generate({name: lower_static(*case) for name, case in CASES.items()}, target.arch)


@pytest.fixture(scope="module")
def symbolic_module(target) -> NativeCudaModule:
    lowered = {name: lower_symbolic(*case) for name, case in CASES.items()}
    return generate({name: function for name, function in lowered.items() if function is not None}, target.arch)


@pytest.mark.xdist_group("static samples")  # compiled as one module, in one process
@pytest.mark.parametrize("name", CASES)
def test_static(gpu, static_module, name):
    check_sample(gpu, static_module, name, {})


@pytest.mark.xdist_group("symbolic samples")
@pytest.mark.parametrize("name", CASES)
def test_symbolic(gpu, symbolic_module, name):
    if name not in symbolic_module.symbols():
        pytest.skip("the type rule needs known sizes here")
    sizes = {size for array in CASES[name][1].inputs for size in np.shape(array) if size > 1}
    check_sample(gpu, symbolic_module, name, {f"n{size}": size for size in sizes})


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
