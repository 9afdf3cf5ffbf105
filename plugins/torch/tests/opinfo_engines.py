"""Recorded calls of operators as functions, run by each engine and compared with what PyTorch gives.

Hundreds of calls are the entry functions of one module, which is compiled once for all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opinfo import RecordedCall
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import KernelyardError, PerformanceWarning
from kernelyard.ir import Function, IRModule, Tuple
from kernelyard.ir.verify import verify
from kernelyard.ops.interpreter import run
from kernelyard_torch.decompositions import inference_decompositions
from kernelyard_torch.importer import MAIN, GraphImporter, Shared
from kernelyard_torch.sizes import Sizes
from kernelyard_torch.tensors import to_array

REFERENCE = "reference"
# Engines by name, and the backends that each is compiled for.
ENGINES: dict[str, Sequence[str] | str] = {REFERENCE: (), "native-cpu": (), "default": "auto"}
COMPILED_TOGETHER = 400
TOLERANCES = {"float64": 1e-7, "float32": 3e-5, "bfloat16": 3e-2, "float16": 5e-3}
_REDUCED = (torch.ops.aten.max.dim, torch.ops.aten.min.dim)
_TOPK = (torch.ops.aten.topk.default,)
_TIES = (*_REDUCED, *_TOPK, torch.ops.aten.sort.default)
_OPEN = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)
_RANDOM = (torch.ops.aten.rand.default, torch.ops.aten.randn.default, torch.ops.aten.randperm.default)
# What only gradients read, which PyTorch makes differently from device to device.
_FIRST_ALONE = (torch.ops.aten._embedding_bag.default,)
# What has a state, and so no kernel.
INTERPRETED = ("random.key",)


@dataclass(frozen=True)
class Case:
    """One recorded call: the function that was made of it, what it is given, and what PyTorch gives."""

    name: str
    call: RecordedCall
    function: Function
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]

    def problem(self, found: Sequence[np.ndarray]) -> str:
        """Why results are not PyTorch's; empty where they are."""
        if len(found) != len(self.expected):
            return f"{len(found)} results, expected {len(self.expected)}"
        results = list(found)
        if self.call.op in _RANDOM:
            return _distribution_problem(results[0], self.expected[0])
        if self.call.op in _TIES:
            results[1] = self._settled_ties(results[1])
        pairs = zip(results, self.expected, strict=True)
        return next(filter(None, (_difference(a, b, self.call.op in _OPEN) for a, b in pairs)), "")

    def _settled_ties(self, found: np.ndarray) -> np.ndarray:
        """Among equal elements any place is right: PyTorch's places, if those found have the same elements."""
        (values, places), x = self.expected, self.inputs[0]
        if not x.dim() or found.shape != tuple(places.shape):
            return found
        given, wanted = torch.from_numpy(np.array(found)), values
        axis = self._axis()
        if self.call.op in _REDUCED and values.dim() < x.dim():
            given, wanted = given.unsqueeze(axis), wanted.unsqueeze(axis)
        return to_array(places) if torch.equal(x.gather(axis, given), wanted) else found

    def _axis(self) -> int:
        position = 2 if self.call.op in _TOPK else 1
        return self.call.args[position] if len(self.call.args) > position else self.call.kwargs.get("dim", -1)


def imported(name: str, call: RecordedCall) -> Case:
    """A call as a function. Raises: KernelyardError where it cannot be expressed."""
    tensors = [tensor.contiguous() for tensor in call.tensors()]
    with torch.no_grad():
        expected = [x for x in pytree.tree_leaves(_called(call, *tensors)) if isinstance(x, torch.Tensor)]
        graph = make_fx(lambda *given: _called(call, *given), inference_decompositions(), tracing_mode="fake")(*tensors)
    return Case(name, call, _function(graph), tensors, expected)


def _called(call: RecordedCall, *tensors: torch.Tensor) -> Any:
    results = call(*tensors)
    return results[0] if call.op in _FIRST_ALONE else results


def _function(graph: GraphModule) -> Function:
    importer = GraphImporter(graph, Shared(Sizes({})))
    for placeholder in importer.placeholders:
        type_ = importer.shared.type_of(placeholder.meta["val"])
        importer.feed(placeholder, importer.builder.parameter(type_, placeholder.name))
    importer.run()
    leaves = pytree.tree_leaves(importer.outputs())
    results = [result for leaf in leaves if (result := importer.tensor(leaf)) is not None]
    importer.shared.check()
    body = results[0] if len(results) == 1 else Tuple(results)
    function = Function(importer.builder.params, importer.builder.bindings, body)
    verify(IRModule({MAIN: function}))
    return function


def problems(engine: str, cases: Sequence[Case]) -> dict[str, str]:
    """Why an engine's results of calls are not PyTorch's, by name; empty where they are."""
    if engine == REFERENCE:
        return {
            case.name: case.problem(run(IRModule({MAIN: case.function}), [to_array(x) for x in case.inputs]))
            for case in cases
        }
    found: dict[str, str] = {}
    for together in _parts(cases, COMPILED_TOGETHER):
        found |= dict(_compiled(together, ENGINES[engine]))
    return found


def _compiled(cases: Sequence[Case], backends: Sequence[str] | str) -> Iterator[tuple[str, str]]:
    """Compile cases as one module, or, where that is not possible, those that it is possible for."""
    module = IRModule({case.name: case.function for case in cases})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # the report is looked at below
            exe = ky.compile(module, backends=backends)
    except KernelyardError as error:
        if len(cases) == 1:
            yield cases[0].name, f"{error.code} {error.message}"
            return
        for part in _parts(cases, -(-len(cases) // 8)):
            yield from _compiled(part, backends)
        return
    interpreted = {node.entry: node.op for node in exe.report.nodes if _is_interpreted(node)}
    machine = ky.VirtualMachine(exe)
    for case in cases:
        if case.name in interpreted:
            yield case.name, f"{interpreted[case.name]} runs on the reference interpreter"
        else:
            yield case.name, _run(case, machine)


def _is_interpreted(node: Any) -> bool:
    return node.backend == REFERENCE and node.op not in INTERPRETED


def _parts(cases: Sequence[Case], count: int) -> Iterator[Sequence[Case]]:
    return (cases[at : at + count] for at in range(0, len(cases), count))


def _run(case: Case, machine: ky.VirtualMachine) -> str:
    try:
        results: Any = machine[case.name](*(to_array(x) for x in case.inputs))
    except KernelyardError as error:
        return f"{error.code} {error.message}"
    results = results if isinstance(results, tuple) else (results,)
    return case.problem([result.numpy() for result in results])


def _distribution_problem(found: np.ndarray, expected: torch.Tensor) -> str:
    """Random numbers are compared by their type and what they are drawn from: moments of means, for lack of numbers."""
    like = to_array(expected)
    if found.shape != like.shape or found.dtype != like.dtype:
        return f"{found.dtype}{found.shape}, expected {like.dtype}{like.shape}"
    if found.dtype.kind == "i":
        return "" if np.array_equal(np.sort(found, axis=0), np.sort(like, axis=0)) else "no permutation"
    return "" if np.isfinite(found.astype(np.float64)).all() else "no numbers"


def _difference(found: np.ndarray, expected: torch.Tensor, open_values: bool) -> str:
    wanted = to_array(expected.contiguous())
    if open_values:
        wanted = np.zeros_like(wanted)  # whatever lay in memory
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}"
    tolerance = TOLERANCES.get(wanted.dtype.name)
    if tolerance is None:
        return "" if np.array_equal(found, wanted) else "other numbers"
    with np.errstate(invalid="ignore"):  # a sample of `empty` memory may hold a signalling NaN, which widening quiets
        left, right = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.abs(right[np.isfinite(right)])
    scale = max(float(finite.max(initial=0)), 1.0)
    same = np.allclose(left, right, rtol=tolerance, atol=tolerance * min(scale, 10.0), equal_nan=True)
    return "" if same else f"differs by {np.nanmax(np.abs(left - right)):.3g}"
