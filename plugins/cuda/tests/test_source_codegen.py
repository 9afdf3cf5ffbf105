"""Backends that write CUDA text: one text for every size, intermediates, constants, several kernels for a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.errors import ArtifactCorruptedError, CodegenError, DeviceError, ToolchainError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode
from kernelyard.testing import assert_offloaded
from kernelyard_cuda import source_codegen
from kernelyard_cuda.compiler import find_kernel_compiler
from kernelyard_cuda.source_codegen import CudaKernel, CudaSourceCodegen, CudaTensor
from kernelyard_cuda.source_module import CudaSourceModule, load
from kernelyard_native_cuda.drivers import EMULATOR, open_device

N = dims.symbol("n")
PREAMBLE = "__device__ inline float acme_relu(float x) { return x > 0 ? x : 0; }"
RELU = """extern "C" __global__ void acme_relu_all(const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = acme_relu(x[i]);
}"""
ADD = """extern "C" __global__ void acme_add(const float* a, const float* b, float* y, long long rows, long long columns) {
  for (long long j = threadIdx.x; j < columns; j += blockDim.x)
    y[blockIdx.x * columns + j] = a[blockIdx.x * columns + j] + b[j];
}"""


class AcmeCuda(CudaSourceCodegen):
    preamble = PREAMBLE

    def kernels(
        self, node: JSONNode, operands: Mapping[str, CudaTensor], outputs: Sequence[CudaTensor]
    ) -> Sequence[CudaKernel]:
        (y,) = outputs
        if node.op == "nn.relu":
            blocks = dims.ceildiv(y.size, 64), 1, 1
            return [CudaKernel("acme_relu_all", RELU, (operands["0"], y, y.size), blocks, 64)]
        if node.op == "add":  # a grid of its own: a block for each row
            rows, columns = y.shape
            return [CudaKernel("acme_add", ADD, (operands["0"], operands["1"], y, rows, columns), (rows, 1, 1), 32)]
        return super().kernels(node, operands, outputs)


class Serializer(JSONSerializer):
    def visit_composite(self, composite: Any, call: Any) -> KernelNode:
        (binding,) = composite.bindings
        args = binding.value.args
        return KernelNode(binding.value.op_name, [(str(number), arg) for number, arg in enumerate(args)])


class Acme(Backend):
    name = "acme"
    merge_composites = True

    def __init__(self, archs: Sequence[str] = ()) -> None:
        self.archs = archs

    def patterns(self, target: Any) -> list[FusionPattern]:
        shapes = {"nn.relu": is_op("nn.relu")(wildcard()), "add": is_op("add")(wildcard(), wildcard())}
        return [FusionPattern(f"acme.{op}", pattern) for op, pattern in shapes.items()]

    def codegen(self, regions: Any, options: Mapping[str, Any]) -> Any:
        return AcmeCuda().generate(regions, Serializer(), self.archs)


def bias() -> np.ndarray:
    return np.arange(6, dtype=np.float32) - 3


def model() -> IRModule:
    """relu(relu(x) + bias) + bias: two intermediates and a constant, in one region."""
    b = FunctionBuilder()
    hidden = b.op("nn.relu", b.op("add", b.op("nn.relu", b.input("x", (N, 6))), bias()))
    return IRModule({"main": b.function(b.op("add", hidden, bias()))})


def wanted(x: np.ndarray) -> np.ndarray:
    return np.maximum(np.maximum(x, 0) + bias(), 0) + bias()


@pytest.fixture
def emulator() -> Any:
    try:
        open_device(EMULATOR)
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    return ky.cuda("emulator")


def compiled(install: Any, archs: Sequence[str] = ()) -> ky.Executable:
    install(Acme(archs), targets=("cuda",))
    exe = ky.compile(model(), target="cuda", backends=["acme"], strict=True)
    assert_offloaded(exe, "acme", at_least=4)
    return exe


def test_one_text_serves_every_size(install: Any, emulator: Any, tmp_path: Path) -> None:
    exe = compiled(install)
    (module,) = (each for each in exe.modules if isinstance(each, CudaSourceModule))
    assert module.kind == "cuda_source"
    assert module.image.source.count("__global__") == 2
    exe.save(tmp_path / "m.kyar")
    for each in (exe, ky.load(tmp_path / "m.kyar")):
        machine = ky.VirtualMachine(each, emulator)
        for rows in (1, 37, 2):
            x = np.random.default_rng(rows).standard_normal((rows, 6), np.float32)
            np.testing.assert_array_equal(machine["main"](x).numpy(), wanted(x))


@pytest.mark.skipif(find_kernel_compiler() is None, reason="there is no CUDA compiler here")
def test_it_is_compiled_for_each_architecture(install: Any) -> None:
    (module,) = compiled(install, ["sm_80", "sm_90"]).modules
    assert isinstance(module, CudaSourceModule)
    assert list(module.image.cubins) == ["sm_80", "sm_90"]
    assert all(cubin.startswith(b"\x7fELF") for cubin in module.image.cubins.values())
    assert "sm_90" in module.needs


def graph(*ops: str, outputs: Sequence[tuple[int, int]] | None = None) -> JSONGraph:
    spec = TensorSpec((N, 6), "float32", "x")
    nodes = [JSONNode("input", (spec,), index=0)]
    for op in ops:
        nodes.append(JSONNode("kernel", (spec,), op, (("0", (len(nodes) - 1, 0)),)))
    return JSONGraph("acme_0", (spec,), tuple(nodes), tuple(outputs or [(len(nodes) - 1, 0)]))


def test_results_that_are_also_inputs_or_other_results_are_copied() -> None:
    module = AcmeCuda().generate_graphs([graph("nn.relu", outputs=[(1, 0), (0, 0), (1, 0)])], {})
    launches = module.function("acme_0").launches
    assert [(launch.kernel, launch.tensors) for launch in launches] == [
        ("acme_relu_all", (0, 1)),
        ("ky_copy", (0, 2)),
        ("ky_copy", (1, 3)),
    ]


def test_what_there_is_no_cuda_for_is_an_error() -> None:
    with pytest.raises(CodegenError, match="AcmeCuda has no CUDA") as caught:
        AcmeCuda().generate_graphs([graph("exp")], {})
    assert caught.value.found == "exp"


def test_one_name_is_one_text() -> None:
    class Twice(AcmeCuda):
        def kernels(self, node: Any, operands: Any, outputs: Any) -> Sequence[CudaKernel]:
            (kernel,) = super().kernels(node, operands, outputs)
            return [kernel, CudaKernel(kernel.name, "another", kernel.arguments, kernel.blocks, 32)]

    with pytest.raises(CodegenError, match="one name"):
        Twice().generate_graphs([graph("nn.relu")], {})


def test_a_compiler_that_fails_is_told_with_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def cubin(self, *_: Any) -> bytes:
            raise ToolchainError("the CUDA compiler failed", hint="install another")

    monkeypatch.setattr(source_codegen, "find_kernel_compiler", Failing)
    with pytest.raises(CodegenError, match="AcmeCuda cannot be compiled") as caught:
        AcmeCuda().generate_graphs([graph("nn.relu")], {}, ["sm_90"])
    assert (caught.value.where, caught.value.hint) == ("sm_90", "install another")


def test_an_artifact_without_its_constants_is_refused(install: Any) -> None:
    (module,) = compiled(install).modules
    assert load(module.save_to_bytes(), module.constants()).save_to_bytes() == module.save_to_bytes()
    with pytest.raises(ArtifactCorruptedError, match="CUDA functions"):
        load(module.save_to_bytes(), {})
