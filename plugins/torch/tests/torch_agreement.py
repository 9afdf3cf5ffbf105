"""Helpers that the tests share: export a model, compile it, compare with PyTorch's own results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import kernelyard as ky

TOLERANCE = 2e-4


def leaves(value: Any) -> list[Any]:
    """The tensors of what a model takes or returns, in order."""
    import torch

    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def check_same(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Results are those of PyTorch: shapes, dtypes, and numbers within a tolerance relative to the largest."""
    results = found if isinstance(found, tuple) else (found,)
    wanted = leaves(expected)
    assert len(results) == len(wanted)
    for result, tensor in zip(results, wanted, strict=True):
        array = tensor.detach().numpy()
        assert result.shape == array.shape
        assert result.dtype == array.dtype.name
        scale = max(float(np.nan_to_num(np.abs(array), nan=0).max(initial=0)), 1.0)
        np.testing.assert_allclose(result.numpy(), array, rtol=tolerance, atol=tolerance * scale)


def check_close(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """The tensors of what a model gives are PyTorch's, within a tolerance relative to the largest number of each."""
    results, wanted = [np.asarray(each) for each in pytree.tree_leaves(found)], leaves(expected)
    assert len(results) == len(wanted)
    for result, tensor in zip(results, wanted, strict=True):
        array = tensor.detach().numpy()
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(result, array, rtol=0, atol=tolerance * float(np.abs(array).max(initial=0)))


def export_and_check(
    model: Any,
    *inputs: Any,
    dynamic_shapes: Any = None,
    others: Sequence[tuple[Any, ...]] = (),
    backends: Sequence[str] | str = (),
    **options: Any,
) -> ky.Executable:
    """Compile what torch.export makes of a model; it agrees with the model on its inputs, and on `others`."""
    model.eval()
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic_shapes)
    exe = ky.compile(program, backends=list(backends), options={"torch": options} if options else None)
    for given in (inputs, *others):
        with torch.no_grad():
            expected = model(*given)
        check_same(exe(*leaves(given)), expected)
    return exe
