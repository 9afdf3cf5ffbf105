"""Programs and devices: code for several GPUs, what stays on a device, what is kept of kernels."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import DeviceError, OptionError
from kernelyard.ir import Constant, Function, FunctionBuilder, IRModule
from kernelyard.ir.types import TensorType, TupleType
from kernelyard.testing import evaluate
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_native_cuda.generator import GENERATED, NativeCudaGenerator, compiler_is_here
from kernelyard_native_cuda.runtime import NativeCudaModule

from .test_programs import TARGET, block, mlp, module_of
from .test_rules import N, random


def loop() -> dict[str, Function]:
    """Three turns of x = tanh(x) + 1."""
    types = TupleType((TensorType((), "int64"), TensorType((N, 4), "float32")))
    private = {"private": True}
    b = FunctionBuilder()
    i = b.input("i", (), "int64")
    b.input("x", (N, 4))
    condition = b.function(b.op("less", i, 3), attrs=private)
    b = FunctionBuilder()
    i, x = b.input("i", (), "int64"), b.input("x", (N, 4))
    body = b.function(b.op("add", i, 1), b.op("add", b.op("tanh", x), np.float32(1)), attrs=private)
    b = FunctionBuilder()
    result = b.while_("condition", "body", [Constant(np.array(0)), b.input("x", (N, 4))], types)
    return {"main": b.function(b.op("exp", b.get(result, 1))), "condition": condition, "body": body}


needs_compiler = pytest.mark.skipif(
    not compiler_is_here(), reason="there is no CUDA compiler here: pip install nvidia-cuda-nvrtc-cu12"
)


@needs_compiler
def test_code_for_several_gpus_lies_in_one_artifact(tmp_path):
    exe = ky.compile(module_of(mlp), target=ky.Target("cuda", arch=" sm_80, sm_90"), backends=[])
    assert exe.target == "cuda arch=sm_80,sm_90"
    exe.save(tmp_path / "m.kyar")
    (module,) = (each for each in ky.load(tmp_path / "m.kyar").modules if isinstance(each, NativeCudaModule))
    assert list(module.image.cubins) == ["sm_80", "sm_90"]
    assert all(cubin.startswith(b"\x7fELF") for cubin in module.image.cubins.values())
    assert "sm_80" in module.inspect()


@needs_compiler
def test_a_program_without_its_text_is_smaller_and_the_emulator_says_why_it_cannot_run_it(tmp_path):
    sizes = []
    for keeps in (True, False):
        options = {"native-cuda": {"text": keeps}}
        exe = ky.compile(module_of(mlp), target=ky.Target("cuda", arch="sm_90"), backends=[], options=options)
        exe.save(tmp_path / "m.kyar")
        sizes.append((tmp_path / "m.kyar").stat().st_size)
    assert sizes[1] < sizes[0]
    machine = ky.VirtualMachine(ky.load(tmp_path / "m.kyar"), ky.cuda("emulator"))
    with pytest.raises(DeviceError, match="no CUDA source") as caught:
        machine["main"](random(3, 20))
    assert "text" in str(caught.value.hint)


@pytest.mark.parametrize("text", [False, "no", 1])
def test_the_option_text_is_checked(text):
    with pytest.raises(OptionError):
        ky.compile(module_of(mlp), target=TARGET, backends=[], options={"native-cuda": {"text": text}}, strict=True)


@pytest.mark.parametrize("tf32", [False, True])
def test_the_option_tf32_puts_products_of_float32_on_tensor_cores(emulator, tf32):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (128, 64)), random(64, 128)))})
    options = {"native-cuda": {"tf32": tf32}}
    exe = ky.compile(module, target=ky.Target("cuda"), backends=[], options=options)
    (generated,) = (each for each in exe.modules if isinstance(each, NativeCudaModule))
    assert ("TensorTile<" in generated.image.source.partition(GENERATED)[2]) == tf32
    x = random(128, 64)
    difference = abs(ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](x).numpy() - evaluate(module, [x])[0]).max()
    assert (1e-4 < difference < 3e-2) if tf32 else difference < 1e-4


@needs_compiler
def test_cubins_are_compiled_once_on_a_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "8")
    compiler = cuda_compiler.find_kernel_compiler()
    assert compiler is not None
    text = 'extern "C" __global__ void kernel(float* x) { *x = 1; }'
    first = compiler.cubin(text, "sm_90")
    monkeypatch.setattr(cuda_compiler, "_compile_with_nvrtc", None)
    monkeypatch.setattr(cuda_compiler, "_compile_with_nvcc", None)
    assert compiler.cubin(text, "sm_90") == first
    with pytest.raises(TypeError):
        compiler.cubin(text, "sm_80")


def test_a_compiler_that_cannot_compile_is_not_reported_as_usable(monkeypatch, tmp_path):
    (tmp_path / "libnvrtc.so.13").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setattr(cuda_compiler.nvrtc, "find", lambda: (str(tmp_path / "libnvrtc.so.13"), ()))
    said = NativeCudaGenerator().facts()["CUDA compiler"]
    assert said.startswith("unusable: no CUDA compiler is usable: NVRTC: NVRTC cannot be loaded")
    assert "pip install" in said


def test_feeds_and_results_stay_on_the_device(emulator, monkeypatch):
    """What a call gives is fed again without a copy through the host."""
    exe = ky.compile(module_of(block), target=TARGET, backends=[])
    machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
    x = random(1, 4, 9, 9)
    y = machine["main"](x)
    assert str(y.device) == "cuda:emulator"
    wanted = machine["main"](y.numpy()).numpy()
    with monkeypatch.context() as patch:
        patch.setattr(type(emulator), "upload", None)
        patch.setattr(type(emulator), "download", None)
        z = machine["main"](y)
    np.testing.assert_array_equal(z.numpy(), wanted)


def test_values_of_loops_stay_on_the_device(emulator, monkeypatch):
    """Of a loop's turns only the condition comes to the host."""
    exe = ky.compile(IRModule(loop()), target=TARGET, backends=[])
    machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
    x = random(50, 4)
    machine["main"](x)
    nbytes: list[int] = []
    for name in ("upload", "download"):
        move = getattr(type(emulator), name)

        def patched(self, address, array, move=move):
            nbytes.append(array.nbytes)
            move(self, address, array)

        monkeypatch.setattr(type(emulator), name, patched)
    y = machine["main"](x)
    assert max(nbytes[1:]) == 1  # of the feed, all; of each turn, a bool
    np.testing.assert_allclose(y.numpy(), evaluate(IRModule(loop()), [x])[0], rtol=1e-5)
