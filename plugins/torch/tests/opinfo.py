"""Calls of core ATen operators, recorded from PyTorch's own samples of its functions (OpInfo).

Each sample is run while every call of an operator of the core set is recorded, with its arguments. A recorded call is
then a graph of one node, which is imported and run by the reference interpreter, and compared with what PyTorch gave.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from more_calls import more_calls
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import kernelyard.ops  # noqa: F401
from kernelyard.ir import Function, IRModule, Tuple
from kernelyard.ir.verify import verify
from kernelyard.ops.interpreter import run
from kernelyard_torch.decompositions import inference_decompositions
from kernelyard_torch.importer import MAIN, GraphImporter, Shared
from kernelyard_torch.sizes import Sizes
from kernelyard_torch.tensors import DTYPES, to_array

DTYPES_TRIED = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
MOST_SAMPLES = 8  # of one function and dtype
MOST_CALLS = 8  # of one operator and dtype
MOST_ELEMENTS = 20_000
_REDUCED = (torch.ops.aten.max.dim, torch.ops.aten.min.dim)
_TOPK = (torch.ops.aten.topk.default,)
_OPEN = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)
_TIES = (*_REDUCED, *_TOPK, torch.ops.aten.sort.default)
# Functions that come to no core operator of their own, or only after thousands of others.
SKIPPED = (
    *("_", "cholesky", "einsum", "fft", "geqrf", "istft", "jiterator", "linalg", "lu", "masked.", "ops", "ormqr"),
    *("pca_lowrank", "signal", "sparse", "special", "stft", "svd", "to_sparse", "torch."),
    *("nn.functional.adaptive_max_pool", "nn.functional.max_unpool"),
)
TOLERANCES = {"float64": 1e-7, "float32": 3e-5, "bfloat16": 3e-2, "float16": 5e-3}


@dataclass(frozen=True)
class RecordedCall:
    """One call of an operator, by what it was given."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: str

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the operator with other tensors in place of those recorded."""
        rest = iter(tensors)
        args, kwargs = pytree.tree_map(
            lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf, (self.args, self.kwargs)
        )
        return self.op(*args, **kwargs)


@dataclass
class Recorder(TorchDispatchMode):
    """Keeps calls of core operators."""

    calls: dict[tuple[str, str], list[RecordedCall]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.core in func.tags:
            self.record(func, args, kwargs)
            return func(*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        how = torch._decomp.decomposition_table.get(func)
        if how is None:
            return func(*args, **kwargs)
        with self:
            return how(*args, **kwargs)

    def record(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep a call, if it is one of a pure function of dense tensors."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        returned = func._schema.returns
        if func._schema.is_mutable or not any("Tensor" in str(each.type) for each in returned):
            return  # no graph has calls that write, and what gives a number is read where it is used
        if any(isinstance(leaf, torch.dtype) and leaf not in DTYPES for leaf in leaves):
            return
        if any(leaf.dtype not in DTYPES or leaf.numel() > MOST_ELEMENTS for leaf in tensors):
            return
        dtype = DTYPES[tensors[0].dtype] if tensors else "-"
        calls = self.calls.setdefault((str(func), dtype), [])
        if len(calls) < MOST_CALLS:
            args, kwargs = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
            calls.append(RecordedCall(func, tuple(args), kwargs, dtype))


def recorded(names: frozenset[str] | None = None) -> dict[tuple[str, str], list[RecordedCall]]:
    """The calls that the samples of all functions (or those named) make, by operator and dtype of its first tensor."""
    recorder = Recorder()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for info in op_db:
            if info.name in names if names else not info.name.startswith(SKIPPED):
                for call in _samples(info):
                    _try(recorder, *call)
        if names is None:
            for op, args, kwargs in more_calls():
                recorder.record(op, args, kwargs)
    return recorder.calls


def _try(recorder: Recorder, function: Any, sample: Any) -> None:
    _seed()
    try:
        with recorder:
            function(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError, AssertionError):
        return  # what the recorder cannot take apart: the calls until then are kept


def _seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def _samples(info: Any) -> Iterator[tuple[Any, Any]]:
    for dtype in DTYPES_TRIED:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        _seed()
        for count, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
            if count == MOST_SAMPLES:
                break
            yield info.op, sample


def outcome(call: RecordedCall) -> str:
    """Why our result of a call is not PyTorch's; empty where it is."""
    tensors = [tensor.contiguous() for tensor in call.tensors()]
    with torch.no_grad():
        expected = [x for x in pytree.tree_leaves(call(*tensors)) if isinstance(x, torch.Tensor)]
        graph = make_fx(lambda *given: call(*given), inference_decompositions(), tracing_mode="fake")(*tensors)
    found = run(_module(graph), [to_array(tensor) for tensor in tensors])
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    if call.op in _TIES:
        found[1] = _settled_ties(call, tensors[0], found[1], expected)
    problems = [_difference(a, b, call.op in _OPEN) for a, b in zip(found, expected, strict=True)]
    return next(filter(None, problems), "")


def _settled_ties(call: RecordedCall, x: torch.Tensor, found: np.ndarray, expected: list[torch.Tensor]) -> np.ndarray:
    """Among equal elements any place is right: PyTorch's places, if those found have the same elements."""
    values, places = expected
    if not x.dim() or found.shape != tuple(places.shape):
        return found
    axis = _axis_of(call)

    kept = call.op in _REDUCED and values.dim() < x.dim()
    given, wanted = torch.from_numpy(found), values
    if kept:
        given, wanted = given.unsqueeze(axis), wanted.unsqueeze(axis)
    return to_array(places) if torch.equal(x.gather(axis, given), wanted) else found


def _module(graph: GraphModule) -> IRModule:
    importer = GraphImporter(graph, Shared(Sizes({})))
    for placeholder in importer.placeholders:
        type_ = importer.shared.type_of(placeholder.meta["val"])
        importer.feed(placeholder, importer.builder.parameter(type_, placeholder.name))
    importer.run()
    leaves = pytree.tree_leaves(importer.outputs())
    results = [result for leaf in leaves if (result := importer.tensor(leaf)) is not None]
    importer.shared.check()
    body = results[0] if len(results) == 1 else Tuple(results)
    module = IRModule({MAIN: Function(importer.builder.params, importer.builder.bindings, body)})
    verify(module)
    return module


def _difference(found: np.ndarray, expected: torch.Tensor, open_values: bool) -> str:
    wanted = to_array(expected.contiguous())
    if open_values:
        wanted = np.zeros_like(wanted)  # whatever lay in memory
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}"
    tolerance = TOLERANCES.get(wanted.dtype.name)
    if tolerance is None:
        return "" if np.array_equal(found, wanted) else "other numbers"
    left, right = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.abs(right[np.isfinite(right)])
    scale = max(float(finite.max(initial=0)), 1.0)
    same = np.allclose(left, right, rtol=tolerance, atol=tolerance * min(scale, 10.0), equal_nan=True)
    return "" if same else f"differs by {np.nanmax(np.abs(left - right)):.3g}"


def _axis_of(call: RecordedCall) -> int:
    position = 2 if call.op in _TOPK else 1
    return call.args[position] if len(call.args) > position else call.kwargs.get("dim", -1)
