"""Whole programs for CUDA: compiled with no GPU, run on the emulator, saved, loaded, and refused where they cannot run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import (
    ArtifactCorruptedError,
    ArtifactVersionError,
    DeviceError,
    PerformanceWarning,
    TargetError,
)
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.runtime import NativeCudaModule, load

from .test_rules import N, random

TARGET = ky.Target("cuda")


def module_of(build: Callable[[FunctionBuilder], Any]) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.function(build(b))})


def mlp(b: FunctionBuilder) -> Any:
    x = b.input("x", (N, 20))
    hidden = b.op("nn.relu", b.op("add", b.op("matmul", x, random(20, 33)), random(33)))
    return b.op("nn.softmax", b.op("matmul", hidden, random(33, 10)), axis=1)


def block(b: FunctionBuilder) -> Any:
    """Two convolutions around which the input goes."""
    x = b.input("x", (1, 4, 9, 9))
    first = b.op("nn.relu", b.op("nn.conv2d", x, random(4, 4, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1)))
    second = b.op("nn.conv2d", first, random(4, 4, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    return b.op("nn.relu", b.op("add", second, x))


def norms(b: FunctionBuilder) -> Any:
    x = b.input("x", (N, 96))
    normed = b.op("nn.layer_norm", x, random(96), random(96), axes=(1,), epsilon=1e-5)
    return b.op("nn.rms_norm", b.op("add", normed, x), random(96), axes=(1,), epsilon=1e-5)


def attention(b: FunctionBuilder) -> Any:
    x = b.input("x", (N, 16))
    q, k, v = (b.op("matmul", x, random(16, 16) / 4) for _ in range(3))  # scores of an ordinary size
    scores = b.op("nn.softmax", b.op("matmul", q, b.op("permute_dims", k, axes=(1, 0))), axis=1)
    return b.op("add", x, b.op("matmul", scores, v))


def steps(b: FunctionBuilder) -> Any:
    """A recurrent layer of open length."""
    gates = b.input("x", (N, 2, 12))
    return b.get(b.op("nn.rnn", gates, random(12, 12), random(2, 12), reverse=True), 0)


def with_host_parts(b: FunctionBuilder) -> Any:
    """No rule makes a kernel of a determinant."""
    return b.op("exp", b.op("det", b.op("tanh", b.input("x", (5, 4, 4)))))


PROGRAMS = {
    "mlp": (mlp, (3, 20)),
    "block": (block, (1, 4, 9, 9)),
    "norms": (norms, (5, 96)),
    "attention": (attention, (9, 16)),
    "steps": (steps, (6, 2, 12)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_on_the_emulator(emulator, name):
    build, shape = PROGRAMS[name]
    module = module_of(build)
    exe = ky.compile(module, target=TARGET, backends=[])
    assert {each.kind for each in exe.modules} == {"native-cuda"}
    x = random(*shape)
    np.testing.assert_allclose(
        ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](x), evaluate(module, [x])[0], rtol=1e-4, atol=1e-5
    )


def test_steps_survive_saving(emulator, tmp_path):
    module = module_of(steps)
    ky.compile(module, target=TARGET, backends=[]).save(tmp_path / "steps.kyar")
    vm = ky.VirtualMachine(ky.load(tmp_path / "steps.kyar"), ky.cuda("emulator"))
    for count in (1, 5):
        x = random(count, 2, 12)
        np.testing.assert_allclose(vm["main"](x), evaluate(module, [x])[0], rtol=1e-4, atol=1e-5)


def test_one_program_serves_every_size(emulator):
    module = module_of(mlp)
    vm = ky.VirtualMachine(ky.compile(module, target=TARGET, backends=[]), ky.cuda("emulator"))
    for rows in (1, 70, 2):
        x = random(rows, 20)
        np.testing.assert_allclose(vm["main"](x), evaluate(module, [x])[0], rtol=1e-4, atol=1e-5)


def test_operators_without_a_kernel_run_on_the_host(emulator):
    module = module_of(with_host_parts)
    with pytest.warns(PerformanceWarning, match="det"):
        exe = ky.compile(module, target=TARGET, backends=[])
    assert {each.kind for each in exe.modules} == {"native-cuda", "reference"}
    x = random(5, 4, 4)
    found = ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](x)
    np.testing.assert_allclose(found, evaluate(module, [x])[0], rtol=1e-4)


def test_many_threads_may_call(emulator):
    module = module_of(norms)
    vm = ky.VirtualMachine(ky.compile(module, target=TARGET, backends=[]), ky.cuda("emulator"), contexts=3)
    feeds = [random(rows, 96) for rows in (1, 4, 2, 4, 3, 1)]
    alone = [vm["main"](x).numpy() for x in feeds]
    with ThreadPoolExecutor(3) as pool:
        for found, wanted in zip(pool.map(lambda x: vm["main"](x).numpy(), feeds), alone, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_artifacts_carry_the_text(emulator, tmp_path):
    module = module_of(mlp)
    exe = ky.compile(module, target=TARGET, backends=[])
    exe.save(tmp_path / "mlp.kyar")
    again = ky.load(tmp_path / "mlp.kyar")
    assert again.modules[0].save_to_bytes() == exe.modules[0].save_to_bytes()
    x = random(2, 20)
    np.testing.assert_allclose(
        ky.VirtualMachine(again, ky.cuda("emulator"))["main"](x), evaluate(module, [x])[0], rtol=1e-4, atol=1e-5
    )


def test_the_same_model_gives_the_same_bytes():
    first, second = (ky.compile(module_of(block), target=TARGET, backends=[]).modules[0] for _ in "ab")
    assert isinstance(first, NativeCudaModule)
    assert isinstance(second, NativeCudaModule)
    assert first.image.source == second.image.source


def test_without_a_gpu_running_says_what_is_missing(monkeypatch):
    from kernelyard_native_cuda.drivers import gpu as gpus

    gpus.gpu.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    exe = ky.compile(module_of(mlp), target=TARGET, backends=[])
    with pytest.raises(DeviceError, match="cuda-bindings"):
        exe(random(2, 20))
    with pytest.raises(DeviceError, match="cannot run on cpu"):
        ky.VirtualMachine(exe, ky.cpu())


def test_kernels_do_not_run_in_host_memory():
    exe = ky.compile(module_of(mlp), target=TARGET, backends=[])
    function = exe.modules[0].get_function(exe.modules[0].symbols()[0])
    tensors = [
        np.zeros(spec.evaluate({"n": 2}), np.float32)
        for spec in exe.modules[0].signature(exe.modules[0].symbols()[0]).tensors
    ]
    with pytest.raises(DeviceError, match="host memory"):
        function(*tensors)


@pytest.mark.parametrize("arch", ["sm_75", "sm90", "gfx90a"])
def test_architectures_that_are_not_known_are_refused(arch):
    with pytest.raises(TargetError, match="architecture"):
        ky.compile(module_of(mlp), target=ky.Target("cuda", arch=arch), backends=[])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cubins(arch):
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    exe = ky.compile(module_of(attention), target=ky.Target("cuda", arch=arch), backends=[])
    (module,) = exe.modules
    assert isinstance(module, NativeCudaModule)
    assert module.image.cubins[arch].startswith(b"\x7fELF")
    assert load(module.save_to_bytes(), {}).image == module.image


def test_damaged_modules_are_refused():
    data = ky.compile(module_of(mlp), target=TARGET, backends=[]).modules[0].save_to_bytes()
    for damaged in (b"", data[:20], data[:-1], data + b"x", data.replace(b"KYNCUDA1", b"KYNCUDA2"), data[:100]):
        with pytest.raises(ArtifactCorruptedError):
            load(damaged, {})
    with pytest.raises(ArtifactVersionError):
        load(data.replace(b'"schema":2', b'"schema":1'), {})
    for name, other in ((b'"threads":256', b'"threads":999'), (b'"tensors":[0,', b'"tensors":[9,')):
        if data.count(name):
            changed = data.replace(name, other)
            if name.startswith(b'"tensors"'):
                with pytest.raises(ArtifactCorruptedError):
                    load(changed, {})


def test_dims_of_launches_are_polynomials():
    (module,) = ky.compile(module_of(mlp), target=TARGET, backends=[]).modules
    assert isinstance(module, NativeCudaModule)
    launches = [launch for symbol in module.symbols() for launch in module.function(symbol).launches]
    assert any(not isinstance(launch.blocks[0], int) for launch in launches)
    for rows in (5, 50):  # of a product's two kernels one is started
        grids = [grid for launch in launches if (grid := launch.grid({"n": rows})) is not None]
        assert 0 < len(grids) < len(launches)
        assert all(grid.blocks[0] > 0 for grid in grids)
    assert "<<<" in module.inspect()
