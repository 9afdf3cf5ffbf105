"""CKernelRuntime: base of runtimes whose kernels are functions in C, called without Python between them.

The functions follow `kernelyard_plugin.h`, which is in the folder `kernelyard.runtime.api.get_include()`.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, NativeCall, Step
from kernelyard.runtime.abi.spec import corrupted
from kernelyard.runtime.device import dlpack
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard.runtime.jit.thread_pool import thread_pool
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode, JSONRuntime, NodeEntry
from kernelyard.runtime.modules.tensor_argument import TensorArgument
from kernelyard.runtime.program.memory_plan import Lifetime, plan_memory

# Of `ThreadPool.for_kernels`: `run_team`, `team_member` and `team_size` of the context.
_TEAM = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class CKernel(NamedTuple):
    """A kernel of a library, ready to be called.

    function: a `ky_kernel` of `kernelyard_plugin.h`: a function of ctypes, or an address. The first of its `argtypes`,
    where it has any, is what the state has to be. state: what it gets beside tensors: a structure or array of ctypes,
    a NumPy array, or the address of something that `keep` holds. workspace_nbytes: scratch memory that a call needs.
    dtypes: those that the function reads and writes, operands in order and then results; others are refused before it
    is called, while with `None` it has to look at each argument's `dtype` itself.
    """

    function: Any
    state: Any = 0
    workspace_nbytes: int = 0
    keep: object = None
    dtypes: Sequence[str] | None = None


class _Context(ctypes.Structure):
    """kernelyard_plugin.h: `ky_context`."""

    _fields_ = (
        ("nbytes", ctypes.c_uint64),
        ("workspace", ctypes.c_void_p),
        ("workspace_nbytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("run_team", ctypes.c_void_p),
        ("team_member", ctypes.c_void_p),
        ("team_size", ctypes.c_void_p),
    )


class CKernelRuntime(JSONRuntime):
    """A module whose graphs run by functions in C: a subclass says its `kind`, and which `kernel` a node is."""

    @abstractmethod
    def kernel(
        self, node: JSONNode, operands: Mapping[str, BoundTensor], outputs: Sequence[BoundTensor], context: BindContext
    ) -> CKernel:
        """Return the kernel of a node for these sizes; it is called with the operands, in order, and the outputs.

        Called once for each set of sizes: this is where weights are packed and algorithms are chosen.
        """

    def build(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        entries = _entries(graph)
        tensors, keep = self._tensors(graph, dict(zip(entries, args, strict=True)), values, context)
        device = (dlpack.DLPACK_CPU, 0) if context.device is None else (context.device.dlpack_type, 0)
        arguments = {entry: TensorArgument(tensor, device) for entry, tensor in tensors.items()}
        keep.append(arguments)
        steps: list[Step] = []
        for number, node in enumerate(graph.nodes):
            if node.kind != "kernel":
                continue
            results = [(number, i) for i in range(len(node.outputs))]
            operands = {role: tensors[entry] for role, entry in node.inputs}
            kernel = _check_kernel(self.kernel(node, operands, [tensors[entry] for entry in results], context), node)
            taken = [*(entry for _, entry in node.inputs), *results]
            _check_dtypes(kernel, node, [tensors[entry].dtype for entry in taken])
            given = [arguments[entry].address for entry in taken]
            pointers = (ctypes.c_void_p * len(given))(*given)
            resources = _resources(kernel.workspace_nbytes, context)
            places = ctypes.addressof(pointers), len(given), ctypes.addressof(resources)
            steps.append(NativeCall(_address(kernel.function), _address(kernel.state), *places))
            keep += [kernel, pointers, resources]
        moved = {number: arguments[entry] for number, entry in enumerate(entries)}
        slots = {number: argument.address for number, argument in moved.items()}
        return BoundCall(steps, keep, {number: argument.move for number, argument in moved.items()}, slots=slots)

    def _tensors(
        self,
        graph: JSONGraph,
        given: Mapping[NodeEntry, BoundTensor],
        values: Mapping[str, int],
        context: BindContext,
    ) -> tuple[dict[NodeEntry, BoundTensor], list[object]]:
        """Return the memory of every value, and what keeps it; that between kernels is planned, and shared in time."""
        tensors, keep = dict(given), list[object]()
        inner: dict[NodeEntry, Lifetime] = {}
        for number, node in enumerate(graph.nodes):
            if node.kind == "constant":
                tensors[number, 0] = _constant(self.constants()[node.digest], context, keep)
            for index, spec in enumerate(node.outputs):
                if (number, index) not in tensors:
                    tensors[number, index] = BoundTensor(0, spec.evaluate(values), spec.dtype)
                    inner[number, index] = Lifetime(tensors[number, index].nbytes, number, number)
            for _, entry in node.inputs:
                if entry in inner:
                    inner[entry] = inner[entry]._replace(last=number)
        plan = plan_memory(list(inner.values()))
        base = _allocate(plan.nbytes, context, keep)
        for entry, offset in zip(inner, plan.offsets, strict=True):
            tensors[entry] = tensors[entry]._replace(address=base + offset)
        return tensors, keep


def _check_kernel(kernel: object, node: JSONNode) -> CKernel:
    """Return what `kernel` returned for a node. Raises: TypeError for what cannot be called: a call would crash."""
    if not isinstance(kernel, CKernel):
        raise TypeError(f"kernel() returned {type(kernel).__name__} for {node.op}, not a CKernel")
    if isinstance(kernel.function, (str, bytes)) or not _address(kernel.function):
        raise TypeError(f"the function for {node.op} is {kernel.function!r}, not a function of ctypes or an address")
    if isinstance(kernel.state, (str, bytes)):
        raise TypeError(f"the state for {node.op} is {kernel.state!r}, not a structure, an array or an address")
    _check_state(kernel, node)
    if not isinstance(kernel.workspace_nbytes, int) or kernel.workspace_nbytes < 0:
        raise TypeError(f"the workspace for {node.op} is {kernel.workspace_nbytes!r}, not a number of bytes")
    return kernel


def _check_state(kernel: CKernel, node: JSONNode) -> None:
    """Refuse another state than the function's `argtypes` declare, or none. Raises: TypeError."""
    declared = next(iter(getattr(kernel.function, "argtypes", None) or ()), None)
    expected = getattr(declared, "_type_", None)  # of POINTER(expected); c_void_p declares nothing
    if not isinstance(expected, type):
        return
    state = kernel.state
    is_missing = state is None or (isinstance(state, int) and not state)
    is_other = isinstance(state, (ctypes.Structure, ctypes.Union)) and not isinstance(state, expected)
    if is_missing or is_other:
        found = "missing" if is_missing else f"of {type(state).__name__}"
        raise TypeError(f"the state for {node.op} is {found}, and its function takes a pointer to {expected.__name__}")


def _check_dtypes(kernel: CKernel, node: JSONNode, found: Sequence[str]) -> None:
    """Refuse arguments that the function would take for others, with wrong numbers. Raises: ExecutionError."""
    if kernel.dtypes is not None and tuple(kernel.dtypes) != tuple(found):
        raise ExecutionError(
            f"the C function for {node.op} does not take these operands and results",
            found=", ".join(found),
            expected=", ".join(kernel.dtypes),
            hint="the backend's check should decline these dtypes, or its runtime half choose a function for them: "
            "report it to the plugin's vendor, and compile without it until then (backends=[...])",
        )


def _entries(graph: JSONGraph) -> list[NodeEntry]:
    """Return the value behind each argument of a graph, inputs and then outputs. Raises: ArtifactCorruptedError."""
    nodes = {node.index: number for number, node in enumerate(graph.nodes) if node.kind == "input"}
    count = sum(node.kind == "input" for node in graph.nodes)
    entries = [(nodes.get(index, -1), 0) for index in range(len(graph.inputs))] + list(graph.outputs)
    if len(set(entries)) != len(entries) or count != len(graph.inputs) or (-1, 0) in entries:
        raise corrupted(f"graph {graph.symbol}", entries, "one node for each input, and results of kernels, each once")
    return entries


def _constant(array: np.ndarray, context: BindContext, keep: list[object]) -> BoundTensor:
    dtype = dtypes.from_numpy(array.dtype)
    if context.device is None:
        placed = memory.aligned_copy(array)
        address = memory.address_of(placed)
    else:
        placed = DeviceArray.of(context.device, array)
        address = placed.address
    keep.append(placed)
    return BoundTensor(address, array.shape, dtype)


def _allocate(nbytes: int, context: BindContext, keep: list[object]) -> int:
    if context.device is None:
        placed = memory.aligned_bytes(nbytes)
        address = memory.address_of(placed)
    else:
        placed = DeviceMemory(context.device, nbytes)
        address = placed.address
    keep.append(placed)
    return address


def _resources(workspace_nbytes: int, context: BindContext) -> _Context:
    """Return what a kernel's call may use."""
    stream = None if context.device is None else context.device.dlpack_stream
    workspace = context.workspace(workspace_nbytes) if workspace_nbytes else None
    nbytes = ctypes.sizeof(_Context)
    pool = thread_pool() if context.threads > 1 else None
    team = [] if pool is None else [pool.for_kernels[name] for name in _TEAM]
    return _Context(nbytes, workspace, workspace_nbytes, stream, context.threads, 0, *team)


def _address(value: Any) -> int:
    """Return the address of a function of ctypes, or of what a kernel is given as its state."""
    if isinstance(value, int):
        return value
    if isinstance(value, np.ndarray):
        return memory.address_of(value)
    if isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        return ctypes.addressof(value)
    return ctypes.cast(value, ctypes.c_void_p).value or 0
