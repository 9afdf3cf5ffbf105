"""CudaSourceCodegen: regions become kernels in CUDA text.

A backend says what kernels compute a node; intermediates, constants, launches and the compilation for each architecture
are written here. The result runs on GPUs of these architectures, and on the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import BackendUnavailableError, CodegenError, ToolchainError
from kernelyard.plugins.api import JSONSerializer, Region, progress
from kernelyard.runtime.api import JSONGraph, JSONNode, TensorSpec, nbytes_of
from kernelyard_cuda.compiler import find_kernel_compiler
from kernelyard_cuda.function_info import FunctionInfo, LaunchInfo
from kernelyard_cuda.source_module import CudaSourceModule

Compiled = TypeVar("Compiled")
COPY_THREADS = 256
_COPY = """extern "C" __global__ void ky_copy(const char* from, char* to, long long nbytes) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < nbytes) to[i] = from[i];
}"""


@dataclass(frozen=True)
class CudaTensor:
    """A tensor that kernels are given the address of. number: its place among those of the function."""

    number: int
    shape: tuple[Dim, ...]
    dtype: str

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return dims.product(self.shape)


@dataclass(frozen=True)
class CudaKernel:
    """A kernel and its launch.

    name: of the `extern "C" __global__` function in `text`; one name is one text. arguments: tensors, then numbers,
    which it takes as `long long`. blocks: along x, y and z. threads: of a block, along x. shared_nbytes: of dynamic
    shared memory.
    """

    name: str
    text: str
    arguments: tuple[CudaTensor | Dim, ...]
    blocks: tuple[Dim, Dim, Dim]
    threads: int
    shared_nbytes: int = 0


class CudaSourceCodegen:
    """Turns regions into one CudaSourceModule; a backend says what kernels compute each node.

    preamble: what stands before the kernels. options: of the compiler, such as "--use_fast_math". folders: where it
    looks for headers; the emulator has none, and runs text that includes none.

    Example:
        >>> class AcmeCuda(CudaSourceCodegen):
        ...     def kernels(self, node, operands, outputs):
        ...         (y,) = outputs
        ...         text = 'extern "C" __global__ void relu(const float* x, float* y, long long n) { ... }'
        ...         blocks = dims.ceildiv(y.size, 256), 1, 1
        ...         return [CudaKernel("relu", text, (operands["x"], y, y.size), blocks, 256)]
    """

    preamble: str = ""
    options: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    def kernels(
        self, node: JSONNode, operands: Mapping[str, CudaTensor], outputs: Sequence[CudaTensor]
    ) -> Sequence[CudaKernel]:
        """Return the kernels that compute a node, in order. Raises: CodegenError for one that is not there in CUDA."""
        raise CodegenError(f"{type(self).__name__} has no CUDA for this kernel", found=node.op)

    def generate(self, regions: Sequence[Region], serializer: JSONSerializer, archs: Sequence[str]) -> CudaSourceModule:
        """Return the regions as one module; `serializer` says what their composites are.

        archs: of the target, such as "sm_90"; without any, and without a compiler, there is text alone.
        Raises: CodegenError.
        """
        return self.generate_graphs(serializer.serialize_all(regions), serializer.constants, archs)

    def generate_graphs(
        self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray], archs: Sequence[str] = ()
    ) -> CudaSourceModule:
        """Return the graphs as one module. Raises: CodegenError."""
        texts: dict[str, str] = {}
        functions = [_GraphWriter(self, graph, texts).write() for graph in graphs]
        source = "\n".join((self.preamble, *texts.values(), ""))
        compiler = find_kernel_compiler() if archs else None
        cubins: dict[str, bytes] = {}
        if compiler is not None:
            options = [*self.options, *(f"-I{folder}" for folder in self.folders)]
            cubins = compile_for_archs(archs, lambda arch: compiler.cubin(source, arch, options), type(self).__name__)
        return CudaSourceModule(functions, source, cubins, constants)


def compile_for_archs(archs: Sequence[str], compile_for: Callable[[str], Compiled], what: str) -> dict[str, Compiled]:
    """Return what is compiled for each architecture, one after another.

    Raises: CodegenError, whose hint is that of the compiler's error.
    """
    compiled: dict[str, Compiled] = {}
    for arch in archs:
        try:
            compiled[arch] = compile_for(arch)
        except (BackendUnavailableError, ToolchainError) as error:
            raise CodegenError(f"{what} cannot be compiled", where=arch, found=error, hint=error.hint) from error
        progress()
    return compiled


class _GraphWriter:
    """Numbers the tensors of a graph: parameters, then locals, then constants."""

    def __init__(self, codegen: CudaSourceCodegen, graph: JSONGraph, texts: dict[str, str]) -> None:
        self._codegen, self._graph, self._texts = codegen, graph, texts
        self._params = (*graph.inputs, *map(graph.spec, graph.outputs))
        entries = [
            ((number, output), node, spec)
            for number, node in enumerate(graph.nodes)
            for output, spec in enumerate(node.outputs)
        ]
        is_local = [node.kind == "kernel" and entry not in graph.outputs for entry, node, _ in entries]
        self._locals = [_nbytes(spec) for (_, _, spec), found in zip(entries, is_local, strict=True) if found]
        first_local, self._tensors = len(self._params), dict[tuple[int, int], CudaTensor]()
        first_constant = first_local + len(self._locals)
        for (entry, node, spec), found in zip(entries, is_local, strict=True):
            if found:
                place, first_local = first_local, first_local + 1
            elif node.kind == "constant":
                place = first_constant + graph.digests().index(node.digest)
            elif node.kind == "input":
                place = node.index
            else:
                place = len(graph.inputs) + graph.outputs.index(entry)
            self._tensors[entry] = CudaTensor(place, spec.shape, spec.dtype)

    def write(self) -> FunctionInfo:
        launches: list[LaunchInfo] = []
        for number, node in enumerate(self._graph.nodes):
            if node.kind == "kernel":
                operands = {role: self._tensors[entry] for role, entry in node.inputs}
                outputs = [self._tensors[number, output] for output in range(len(node.outputs))]
                launches += map(self._launch, self._codegen.kernels(node, operands, outputs))
        launches += [self._launch(copy) for copy in self._copies()]
        digests, locals_ = self._graph.digests(), tuple(self._locals)
        num_outputs = len(self._graph.outputs)
        return FunctionInfo(self._graph.symbol, self._params, num_outputs, locals_, tuple(launches), digests)

    def _launch(self, kernel: CudaKernel) -> LaunchInfo:
        if self._texts.setdefault(kernel.name, kernel.text) != kernel.text:
            raise CodegenError("two kernels have one name", where=self._graph.symbol, found=kernel.name)
        tensors = tuple(each.number for each in kernel.arguments if isinstance(each, CudaTensor))
        numbers = tuple(each for each in kernel.arguments if not isinstance(each, CudaTensor))
        if any(isinstance(each, CudaTensor) for each in kernel.arguments[len(tensors) :]):
            raise CodegenError("a kernel takes tensors first, and then numbers", where=kernel.name)
        return LaunchInfo(kernel.name, kernel.blocks, kernel.threads, kernel.shared_nbytes, tensors, numbers)

    def _copies(self) -> list[CudaKernel]:
        """Return copy kernels for results that are also inputs, constants or other results."""
        copies: list[CudaKernel] = []
        for number, entry in enumerate(self._graph.outputs):
            target = len(self._graph.inputs) + number
            source = self._tensors[entry]
            if source.number != target:
                nbytes = _nbytes(self._graph.spec(entry))
                to = CudaTensor(target, source.shape, source.dtype)
                blocks = dims.ceildiv(nbytes, COPY_THREADS), 1, 1
                copies.append(CudaKernel("ky_copy", _COPY, (source, to, nbytes), blocks, COPY_THREADS))
        return copies


def _nbytes(spec: TensorSpec) -> Dim:
    return dims.product((*spec.shape, nbytes_of((), spec.dtype)))
