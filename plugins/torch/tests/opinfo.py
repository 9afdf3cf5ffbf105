"""Calls of core ATen operators, recorded from PyTorch's own samples of its functions (OpInfo).

Each sample is run while every call of an operator of the core set is recorded, with its arguments.
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
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelyard_torch.tensors import DTYPES

DTYPES_TRIED = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
MOST_SAMPLES = 8  # of one function and dtype
MOST_CALLS = 8  # of one operator and dtype
MOST_ELEMENTS = 20_000
# Functions that come to no core operator of their own, or only after thousands of others.
SKIPPED = (
    *("_", "cholesky", "einsum", "fft", "geqrf", "istft", "jiterator", "linalg", "lu", "masked.", "ops", "ormqr"),
    *("pca_lowrank", "signal", "sparse", "special", "stft", "svd", "to_sparse", "torch."),
    *("nn.functional.adaptive_max_pool", "nn.functional.max_unpool"),
)


def as_real(value: Any) -> Any:
    """Complex tensors as pairs of real numbers, everything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype.is_complex:
        return torch.view_as_real(value.resolve_conj())
    return value


@dataclass(frozen=True)
class RecordedCall:
    """One call of an operator, by what it was given."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: str

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order; complex ones as pairs of real numbers."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [as_real(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the operator with other tensors in place of those recorded; complex results are pairs too."""
        rest = iter(tensors)

        def other(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return torch.view_as_complex(next(rest)) if leaf.dtype.is_complex else next(rest)

        args, kwargs = pytree.tree_map(other, (self.args, self.kwargs))
        return pytree.tree_map(as_real, self.op(*args, **kwargs))


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
        if any(leaf.dtype not in (*DTYPES, *COMPLEX) or leaf.numel() > MOST_ELEMENTS for leaf in tensors):
            return
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "-"
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
                if _has(op, args, kwargs):
                    recorder.record(op, args, kwargs)
    return recorder.calls


def _has(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether PyTorch has an operator for these dtypes."""
    try:
        op(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return False
    return True


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
