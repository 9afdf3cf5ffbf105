"""The runtime half of the cudnn backend: JSON graphs become plans of cuDNN, one for each set of shapes, run on memory
of the device; on the emulator NumPy computes the same graphs. The schema of nodes is in `kernelyard_cudnn.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import ClassVar, Protocol

import numpy as np

from kernelyard.runtime.api import (
    LRU,
    BindContext,
    BoundCall,
    BoundTensor,
    JSONGraph,
    JSONNode,
    corrupted,
    nbytes_of,
)
from kernelyard_cuda.device_constants import upload_array
from kernelyard_cuda.driver_api import CudaDriver, require_cuda
from kernelyard_cuda.kernel_sequence import KernelSequence, only_kernel
from kernelyard_cudnn.emulation import EmulatedPlan
from kernelyard_cudnn.lowering import LOWERINGS, Lowered, Shaped, lower

PLAN = "plan"  # roles of constants that are plans made ahead of time begin so
KEPT_SHAPES = 64


class Movable(Protocol):
    """A graph over memory: calling it runs it, and its tensors may move between calls."""

    def __call__(self) -> None: ...

    def move(self, uid: int, address: int) -> None:
        """Give a tensor another address."""
        ...


class CudnnRuntime(KernelSequence):
    """Graphs of kernels.

    Loading it needs no library; binding it to a GPU does.
    """

    kind: ClassVar[str] = "cudnn"

    def __init__(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(graphs, constants)
        for symbol, node in self.kernels.items():
            if node.op not in LOWERINGS:
                raise corrupted(symbol, node.op, ", ".join(LOWERINGS))
        self._lowered: LRU[object, Lowered] = LRU(KEPT_SHAPES)
        self._lock = Lock()

    @property
    def needs(self) -> str:
        """See `RuntimeModule.needs`."""
        return "cuDNN 9 and nvidia-cudnn-frontend, or the CUDA emulator"

    def lower_kernel(self, symbol: str, values: Mapping[str, int]) -> Lowered:
        """Return the graph of a kernel for these values of its symbolic dims; kept while it is in use.

        Raises: CodegenError for a node that makes no sense.
        """
        graph = self.part_graph(symbol)
        with self._lock:
            key = (symbol, tuple(sorted(values.items())))
            return self._lowered.get_or_make(key, lambda: lower_graph(graph, values))

    def build_kernel(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the call of a graph's kernel, on memory of the device.

        Raises: DeviceError, BackendUnavailableError, CodegenError, ExecutionError.
        """
        device = require_cuda(context.device, graph.symbol)
        if 0 in args[len(graph.inputs)].shape:
            return BoundCall([])
        node = self.kernels[graph.symbol]
        lowered = self.lower_kernel(graph.symbol, values)
        filled = {uid: upload_array(device, array) for uid, array in lowered.filled.items()}
        addresses = {uid: memory.address for uid, memory in filled.items()}
        for uid, (role, begin) in lowered.operands.items():
            operand = self.operand(graph, _entry(node, role), args, device)
            addresses[uid] = operand.address + nbytes_of((begin,), operand.dtype)
        addresses[lowered.result] = args[len(graph.inputs)].address
        step = self._step(graph, node, lowered, addresses, device, context)
        return BoundCall([step], [self, context, *filled.values()], _movable(graph, node, lowered, addresses, step))

    def _step(
        self,
        graph: JSONGraph,
        node: JSONNode,
        lowered: Lowered,
        addresses: dict[int, int],
        device: CudaDriver,
        context: BindContext,
    ) -> Movable:
        if device.is_emulator:
            return EmulatedPlan(lowered.graph, addresses)
        from kernelyard_cudnn.gpu import gpu_of

        plans = [self.constants()[graph.nodes[n].digest] for role, (n, _) in node.inputs if role.startswith(PLAN)]
        return gpu_of(device).step(lowered.graph, addresses, context.workspace, plans, bool(node.attrs.get("tune")))


def lower_graph(graph: JSONGraph, values: Mapping[str, int]) -> Lowered:
    """Return the graph of operations of a JSON graph with one kernel. Raises: CodegenError."""
    node = only_kernel(graph)
    operands = {
        role: Shaped(spec.evaluate(values), spec.dtype)
        for role, spec in ((role, graph.spec(entry)) for role, entry in node.inputs)
        if not role.startswith(PLAN)
    }
    (result,) = node.outputs
    return lower(node, operands, Shaped(result.evaluate(values), result.dtype), graph.symbol)


def _entry(node: JSONNode, role: str) -> int:
    entry = node.input(role)
    assert entry is not None, "lowering names operands of the node"
    return entry[0]


def _movable(
    graph: JSONGraph, node: JSONNode, lowered: Lowered, addresses: Mapping[int, int], step: Movable
) -> dict[int, Callable[[int], None]]:
    """Return the functions that rebind arguments to new addresses, by the argument's index."""
    tensors: dict[int, list[tuple[int, int]]] = {len(graph.inputs): [(lowered.result, 0)]}
    for uid, (role, begin) in lowered.operands.items():
        source = graph.nodes[_entry(node, role)]
        if source.kind == "input":
            offset = nbytes_of((begin,), source.outputs[0].dtype)
            tensors.setdefault(source.index, []).append((uid, offset))
    return {index: partial(_move, step, tuple(uids)) for index, uids in tensors.items()}


def _move(step: Movable, tensors: Sequence[tuple[int, int]], address: int) -> None:
    for uid, offset in tensors:
        step.move(uid, address + offset)


load = CudnnRuntime.load_from_bytes
