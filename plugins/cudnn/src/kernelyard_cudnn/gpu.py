"""cuDNN on a GPU: one handle for each device, and plans for graphs, kept while they are in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock, RLock
from types import ModuleType
from typing import Any

import numpy as np

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.runtime.api import LRU, DiskCache
from kernelyard_cuda.driver_api import CudaDriver
from kernelyard_cudnn import planning
from kernelyard_cudnn._native import load
from kernelyard_cudnn.blobs import read_blob
from kernelyard_cudnn.devices import parse
from kernelyard_cudnn.graph import Graph

KEPT_PLANS = 128
CACHE = DiskCache("cudnn-plans")  # which plan was the fastest: measured once for each kind of GPU

_gpus: dict[CudaDriver, CudnnGpu] = {}
_lock = Lock()


def gpu_of(device: CudaDriver) -> CudnnGpu:
    """Open cuDNN on a device, once. Raises: BackendUnavailableError, DeviceError."""
    with _lock:
        if device not in _gpus:
            _gpus[device] = CudnnGpu(load(), device)
        return _gpus[device]


class CudnnGpu:
    """cudnn: the frontend's module."""

    def __init__(self, cudnn: ModuleType, device: CudaDriver) -> None:
        self._cudnn = cudnn
        self._device = device
        device.enter()
        try:
            self._handle = cudnn.create_handle()
            self._properties = parse(cudnn.create_device_properties(device.index).serialize())
        except RuntimeError as error:
            raise DeviceError(
                "cuDNN does not support this GPU",
                where="backend 'cudnn'",
                found=str(error),
                expected="a GPU of its versions",
            ) from error
        self._plans: LRU[object, Any] = LRU(KEPT_PLANS)
        self._use = RLock()  # a handle is for one thread at a time

    def step(
        self,
        graph: Graph,
        addresses: Mapping[int, int],
        workspace: Callable[[int], int],
        blobs: Sequence[np.ndarray],
        tune: bool,
    ) -> GpuPlan:
        """Return a call of a graph on this memory. blobs: plans made ahead of time.

        Raises: CodegenError, ExecutionError.
        """
        with self._use:
            self._device.enter()
            key = (graph, tune)
            made = self._plans.get_or_make(key, lambda: self._plan(graph, blobs, addresses, workspace, tune))
            return GpuPlan(self, made, addresses, workspace(made.get_workspace_size()))

    def _plan(
        self,
        graph: Graph,
        blobs: Sequence[np.ndarray],
        addresses: Mapping[int, int],
        workspace: Callable[[int], int],
        tune: bool,
    ) -> Any:
        where = {"handle": self._handle}
        if tune:
            return self._measure(graph, addresses, workspace)
        for blob in map(read_blob, blobs):
            fits = blob.version == self._cudnn.backend_version() and blob.device.runs_on(self._properties)
            if fits and blob.graph == repr(graph):
                return planning.restore_plan(self._cudnn, blob.plan, where)
        return planning.plan(self._cudnn, graph, where)

    def _measure(self, graph: Graph, addresses: Mapping[int, int], workspace: Callable[[int], int]) -> Any:
        key = json.dumps([repr(graph), self._cudnn.backend_version(), self._properties.text])
        known = CACHE.get(key)

        def run(made: Any, calls: int) -> None:
            plan = GpuPlan(self, made, addresses, workspace(made.get_workspace_size()))
            for _ in range(calls):
                plan()
            self._device.download(addresses[graph.result.uid], np.empty(1, np.uint8))  # waits

        made, best = planning.measure_plans(
            self._cudnn, graph, {"handle": self._handle}, run, None if known is None else int(known)
        )
        CACHE.put(key, str(best).encode())
        return made

    def execute(self, made: Any, addresses: dict[int, int], workspace: int) -> None:
        """Put a plan's work on the device's stream. Raises: ExecutionError."""
        with self._use:
            self._device.enter()
            self._cudnn.set_stream(self._handle, self._device.stream)
            try:
                made.execute(addresses, workspace, handle=self._handle)
            except RuntimeError as error:
                raise ExecutionError("cuDNN failed", where="backend 'cudnn'", found=str(error)) from error


class GpuPlan:
    """A planned graph over fixed memory of the device."""

    def __init__(self, gpu: CudnnGpu, made: Any, addresses: Mapping[int, int], workspace: int) -> None:
        self._gpu, self._made = gpu, made
        self._addresses, self._workspace = dict(addresses), workspace

    def __call__(self) -> None:
        """Run it."""
        self._gpu.execute(self._made, self._addresses, self._workspace)

    def move(self, uid: int, address: int) -> None:
        """Give a tensor another address, for the next calls."""
        self._addresses[uid] = address
