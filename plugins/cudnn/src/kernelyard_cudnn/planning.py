"""From a graph to something that runs on a GPU: cuDNN's engines chosen by its heuristics, or by measuring.

A plan can be saved, and loaded by the same version of cuDNN for the same kind of GPU; for others it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from types import ModuleType
from typing import Any

from kernelyard.errors import CodegenError
from kernelyard_cudnn.devices import DeviceProperties
from kernelyard_cudnn.frontend import Builder
from kernelyard_cudnn.graph import Graph

MODES = ("A", "FALLBACK")
# Notes of engines that round operands of float32 to fewer bits than they have: TF32, and float16 and the like.
TENSOR_CORE = "TENSOR_CORE"
NARROWING = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
MOST_WORKSPACE = 1 << 30  # what a plan that is measured may ask for
WARM_UP, ROUNDS, CALLS = 2, 3, 10


class NoPlanError(CodegenError):
    """cuDNN has no engine for a graph."""

    code = "KY522"


def propose_plans(cudnn: ModuleType, graph: Graph, where: Mapping[str, Any]) -> Any:
    """Return the frontend's graph, with cuDNN's proposals for it, none built yet.

    Raises: NoPlanError with what cuDNN says.
    """
    try:
        made = Builder(cudnn, where).build(graph)
        made.validate()
        made.build_operation_graph()
        made.create_execution_plans([getattr(cudnn.heur_mode, mode) for mode in MODES])
        if any(tensor.dtype == "float32" for tensor in graph.tensors if not tensor.is_virtual):
            barred = NARROWING if graph.tf32 else (*NARROWING, TENSOR_CORE)
            made.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in barred])
        made.check_support()
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise _no_plan_error(error) from error
    return made


def plan(cudnn: ModuleType, graph: Graph, where: Mapping[str, Any]) -> Any:
    """Return a graph with the best of its plans by cuDNN's heuristics. Raises: NoPlanError."""
    made = propose_plans(cudnn, graph, where)
    try:
        made.build_plans()
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise _no_plan_error(error) from error
    return made


def plan_for(cudnn: ModuleType, graph: Graph, device: DeviceProperties) -> Any:
    """Return a graph with a plan for a GPU that is not here. Raises: NoPlanError."""
    return plan(cudnn, graph, device_arguments(cudnn, device))


def device_arguments(cudnn: ModuleType, device: DeviceProperties) -> dict[str, Any]:
    """Return the arguments of a frontend graph that name the GPU to plan for without having one."""
    major, minor = device.capability
    return {
        "device_property": cudnn.create_device_properties(device.text),
        "sm_version": 10 * major + minor,
        "sm_count": device.processors,
    }


def save_plan(made: Any) -> bytes:
    """Return a planned graph as bytes."""
    return bytes(made.serialize())


def restore_plan(cudnn: ModuleType, data: bytes, where: Mapping[str, Any]) -> Any:
    """Return the planned graph that `save_plan` wrote, by the same version of cuDNN for the same kind of GPU.

    Raises: NoPlanError.
    """
    made = cudnn.pygraph(**where)
    handles = [where["handle"]] if "handle" in where else []
    try:
        made.deserialize(*handles, list(data))  # its form is a list of numbers
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise _no_plan_error(error) from error
    return made


def measure_plans(
    cudnn: ModuleType, graph: Graph, where: Mapping[str, Any], run: Runner, chosen: int | None = None
) -> tuple[Any, int]:
    """Return a graph with the fastest of its plans, and the plan's number among cuDNN's proposals.

    run: calls a graph, with its selected plan, that many times, and waits. chosen: what was found the last time.
    Raises: NoPlanError.
    """
    made = propose_plans(cudnn, graph, where)
    made.deselect_workspace_greater_than(MOST_WORKSPACE)
    if chosen is not None and _build_plan(cudnn, made, chosen):
        return made, chosen
    times: dict[int, float] = {}
    for number in range(made.get_execution_plan_count()):
        if _build_plan(cudnn, made, number) and made.get_workspace_size() <= MOST_WORKSPACE:
            times[number] = seconds(lambda calls: run(made, calls))
    if not times:
        raise _no_plan_error(None)
    best = min(times, key=times.__getitem__)
    made.build_plan_at_index(best)
    return made, best


Runner = Callable[[Any, int], None]


def seconds(run: Callable[[int], None]) -> float:
    """Measure one of many calls, in seconds: the minimum of some rounds."""
    run(WARM_UP)
    times: list[float] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        run(CALLS)
        times.append(perf_counter() - start)
    return min(times) / CALLS


def _build_plan(cudnn: ModuleType, made: Any, number: int) -> bool:
    try:
        made.build_plan_at_index(number)
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError, IndexError, ValueError):
        return False
    return True


def _no_plan_error(error: Exception | None) -> NoPlanError:
    said = "no engine could be built" if error is None else " ".join(str(error).split())[:300]
    return NoPlanError("cuDNN has no plan for a graph", found=said, hint="exclude the backend, or report this")
