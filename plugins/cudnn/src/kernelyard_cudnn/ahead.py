"""Plans made ahead of time, for GPUs that need not be here: constants of an artifact, beside their graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernelyard.plugins.api import Constant
from kernelyard.runtime.api import JSONGraph, JSONNode, TensorSpec
from kernelyard_cudnn import planning
from kernelyard_cudnn._native import load_for_planning
from kernelyard_cudnn.blobs import Blob
from kernelyard_cudnn.devices import DeviceProperties
from kernelyard_cudnn.runtime import PLAN, lower_graph


def with_plans(
    graphs: Sequence[JSONGraph], constants: dict[str, np.ndarray], devices: Sequence[DeviceProperties]
) -> list[JSONGraph]:
    """Return the graphs, those of one kernel whose sizes are known with a plan for each GPU, which is added to the
    constants.

    Graphs of unknown sizes, or of several kernels, are planned where they run.
    Raises: BackendUnavailableError, NoPlanError.
    """
    return [_with_plans(graph, constants, devices) if is_plannable(graph) else graph for graph in graphs]


def is_plannable(graph: JSONGraph) -> bool:
    """Return True for one kernel if all sizes are known."""
    kernels = [node for node in graph.nodes if node.kind == "kernel"]
    return len(kernels) == 1 and all(spec.is_static for node in graph.nodes for spec in node.outputs)


def _with_plans(graph: JSONGraph, constants: dict[str, np.ndarray], devices: Sequence[DeviceProperties]) -> JSONGraph:
    cudnn = load_for_planning()
    described = lower_graph(graph, {}).graph
    nodes = list(graph.nodes)
    *others, kernel = nodes
    roles: list[tuple[str, tuple[int, int]]] = []
    for number, device in enumerate(devices):
        plan = planning.save_plan(planning.plan_for(cudnn, described, device))
        array = Blob(cudnn.backend_version(), device, repr(described), plan).to_array()
        digest = Constant(array).digest
        constants[digest] = array
        roles.append((f"{PLAN}{number}", (len(others), 0)))
        others.append(JSONNode("constant", (TensorSpec(array.shape, "uint8", ""),), digest=digest))
    kernel = replace(kernel, inputs=(*kernel.inputs, *roles))
    return graph._replace(nodes=(*others, kernel), outputs=((len(others), 0),))
