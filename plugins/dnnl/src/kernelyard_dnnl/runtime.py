"""The runtime half of the dnnl backend: JSON graphs become calls of oneDNN primitives (`kernelyard_dnnl.execution`).

The schema of each node is in `kernelyard_dnnl.primitives`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from kernelyard.runtime.api import (
    BindContext,
    BoundCall,
    BoundTensor,
    CacheInfo,
    JSONGraph,
    JSONRuntime,
    cached_property,
)
from kernelyard_dnnl._native import load_library

if TYPE_CHECKING:
    from kernelyard_dnnl.execution import GraphPlans
    from kernelyard_dnnl.plan import Plan


class DnnlRuntime(JSONRuntime):
    """Graphs of oneDNN primitives.

    Raises: BackendUnavailableError when no oneDNN library is there.
    """

    kind = "dnnl"
    native_hint = 'compile it for known sizes with options={"dnnl": {"codegen": "c"}}, or without this backend'

    _digest: str | None = None  # of what the module was loaded from

    def __init__(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(graphs, constants)
        load_library()

    @classmethod
    def load_from_bytes(cls, data: bytes, constants: Mapping[str, np.ndarray]) -> Self:
        """See `JSONRuntime.load_from_bytes`."""
        module = super().load_from_bytes(data, constants)
        module._digest = hashlib.sha256(data).hexdigest()
        return module

    @cached_property
    def _plans(self) -> GraphPlans:
        from kernelyard_dnnl.execution import GraphPlans  # loading an artifact is to be quick

        return GraphPlans(self._constants, self._digest)

    def plan(self, symbol: str, values: Mapping[str, int], threads: int) -> Plan:
        """Return the plan of a graph for these values of its symbolic dims. Raises: StatusError, CodegenError."""
        return self._plans.plan(self.graph(symbol), values, threads)

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """See `RuntimeModule.cache_info`."""
        return self._plans.cache_info() if "_plans" in self.__dict__ else {}

    def build(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        return self._plans.bind(graph, args, values, context)


def probe_implementation(
    graph: JSONGraph, values: Mapping[str, int], constants: Mapping[str, np.ndarray], threads: int | None = None
) -> list[tuple[str, str]]:
    """Ask oneDNN what it would run for a graph at these values of its symbolic dims: (node, implementation) in order.

    The compile half declines what contains `ref`. Raises: StatusError or CodegenError where oneDNN has nothing.
    """
    from kernelyard_dnnl.execution import implementations

    known = DnnlRuntime([graph], constants).constants()  # which checks that they fit
    return implementations(graph, values, known, threads or load_library().threads)


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> DnnlRuntime:
    """Load the module that `DnnlRuntime.save_to_bytes` wrote (entry point of the group `kernelyard.runtime`).

    Raises: ArtifactCorruptedError, ArtifactVersionError, BackendUnavailableError.
    """
    return DnnlRuntime.load_from_bytes(data, constants)
