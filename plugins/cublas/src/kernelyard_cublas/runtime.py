"""The runtime half of the cublas backend: JSON graphs of matmuls become calls of cuBLASLt.

Descriptors and algorithms are made when a graph is bound; a call of it makes nothing. The node is "matmul", with
operands "lhs", "rhs" and perhaps "bias", "residual", "scale_a" and "scale_b"; its attributes are `problem.Attributes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from kernelyard.errors import DeviceError
from kernelyard.runtime.api import (
    BindContext,
    BoundCall,
    BoundTensor,
    Fields,
    JSONGraph,
    JSONNode,
    check_schema,
    corrupted,
    read_json,
    write_json,
)
from kernelyard_cublas._enums import DataType
from kernelyard_cublas.algorithms import Algorithms
from kernelyard_cublas.bound_matmul import BoundMatmul
from kernelyard_cublas.lt_api import LtApi
from kernelyard_cublas.problem import KERNEL, ROLES, Problem, problem_of, read_attributes
from kernelyard_cublas.type_table import FP8_CAPABILITY
from kernelyard_cuda.driver_api import CudaDriver, require_cuda
from kernelyard_cuda.kernel_sequence import KernelSequence


@cache
def api_of(device: CudaDriver) -> LtApi:
    """Return a device's cuBLASLt API: the library with a handle for the device, or NumPy in the emulator.

    Raises: BackendUnavailableError with the line that installs the library.
    """
    if device.is_emulator:
        from kernelyard_cublas.emulation import EmulatedLt

        return EmulatedLt()
    from kernelyard_cublas.libraries import load_library

    device.enter()
    return load_library()


def device_label(device: CudaDriver) -> str:
    """Return the kind of device that algorithms are chosen for."""
    return "emulator" if device.is_emulator else "sm_{}{}".format(*device.capability)


class CublasRuntime(KernelSequence):
    """Graphs of matmuls, and the algorithms that were chosen for them."""

    kind: ClassVar[str] = "cublas"

    def __init__(
        self,
        graphs: Sequence[JSONGraph],
        constants: Mapping[str, np.ndarray],
        algorithms: Algorithms | None = None,
    ) -> None:
        super().__init__(graphs, constants)
        self.algorithms = algorithms or Algorithms()
        for symbol, node in self.kernels.items():
            _check_kernel(symbol, node)

    @classmethod
    def load_from_bytes(cls, data: bytes, constants: Mapping[str, np.ndarray]) -> Self:
        """Return the module that `save_to_bytes` wrote.

        Raises: ArtifactCorruptedError, ArtifactVersionError.
        """
        where = f"{cls.kind} module"
        fields = Fields(read_json(data, where), where)
        check_schema(fields)
        algorithms = Algorithms.from_json(fields.items("algorithms"))
        return cls(fields.each("graphs", JSONGraph.from_json), constants, algorithms)

    def save_to_bytes(self) -> bytes:
        """Return the graphs, and the algorithms that were chosen so far."""
        written: dict[str, Any] = read_json(super().save_to_bytes(), self.kind)
        return write_json({**written, "algorithms": self.algorithms.to_json()})

    @property
    def needs(self) -> str:
        """See `RuntimeModule.needs`."""
        return "libcublasLt of cuBLAS 12 or 13, or the CUDA emulator"

    def build_kernel(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the call of a graph's matmul, on memory of the device.

        Raises: DeviceError, BackendUnavailableError, ExecutionError.
        """
        device = require_cuda(context.device, graph.symbol)
        node = self.kernels[graph.symbol]
        attributes = read_attributes(node, graph.symbol)
        tensors = {role: self.operand(graph, n, args, device) for role, (n, _) in node.inputs}
        tensors["out"] = args[len(graph.inputs)]
        shapes = {role: tensor.shape for role, tensor in tensors.items()}
        problem = problem_of(attributes, shapes, {role: tensor.dtype for role, tensor in tensors.items()})
        if problem.is_empty:
            return BoundCall([])
        _check_device(problem, device)
        addresses = {role: tensor.address for role, tensor in tensors.items()}
        matmul = BoundMatmul(api_of(device), device, problem, addresses, context.workspace)
        matmul.choose(self.algorithms, device_label(device), attributes.tune)
        return BoundCall([matmul], [self, context], _movable(graph, node, matmul))


def _check_kernel(symbol: str, node: JSONNode) -> None:
    roles = [role for role, _ in node.inputs]
    if node.op != KERNEL or roles != [role for role in ROLES if role in roles] or roles[:2] != ["lhs", "rhs"]:
        raise corrupted(symbol, f"{node.op}({', '.join(roles)})", f"{KERNEL}({', '.join(ROLES)})")
    read_attributes(node, symbol)


def _movable(graph: JSONGraph, node: JSONNode, matmul: BoundMatmul) -> dict[int, Any]:
    """Return the functions that rebind arguments to new addresses, by the argument's index."""
    roles: dict[int, list[str]] = {len(graph.inputs): ["out"]}
    for role, (number, _) in node.inputs:
        source = graph.nodes[number]
        if source.kind == "input":
            roles.setdefault(source.index, []).append(role)
    return {index: partial(matmul.move, names) for index, names in roles.items()}


def _check_device(problem: Problem, device: CudaDriver) -> None:
    if problem.a.dtype == DataType.R_8F_E4M3 and device.capability < FP8_CAPABILITY:
        raise DeviceError(
            "this GPU has no float8 matmul",
            found=device_label(device),
            expected="sm_{}{} or later".format(*FP8_CAPABILITY),
        )


load = CublasRuntime.load_from_bytes
