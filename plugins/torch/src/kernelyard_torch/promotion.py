"""Torch's promotion of dtypes: tensors win over numbers, and floats over integers over truth values."""

from __future__ import annotations

import torch

from kernelyard.dims import SymbolicDim
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch.node import Node
from kernelyard_torch.tensors import DTYPES

_TORCH = {name: dtype for dtype, name in DTYPES.items()}


def promote(node: Node, *operands: Operand) -> tuple[Expr, ...]:
    """Return the operands as tensors of the dtype that they have in common."""
    dtype = common_dtype(*operands)
    return tuple(node.cast(node.expr(operand, dtype), dtype) for operand in operands)


def common_dtype(*operands: Operand) -> str:
    """Return the dtype that tensors (also those of rank 0, which count less) and numbers have in common."""
    dtypes = [_tensor_example(operand) for operand in operands if isinstance(operand, Expr)]
    numbers = [_number_example(operand) for operand in operands if not isinstance(operand, Expr)]
    result: torch.Tensor | None = None
    for item in (*dtypes, *numbers):
        result = item if result is None else _join(result, item)
    assert result is not None
    return DTYPES[result.dtype]


def _join(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    dtype = torch.result_type(left, right)
    return torch.empty((1,) * max(left.dim(), right.dim()), dtype=dtype, device="meta")


def _tensor_example(operand: Expr) -> torch.Tensor:
    type_ = operand.tensor_type
    return torch.empty((1,) * min(type_.rank, 1), dtype=_TORCH[type_.dtype], device="meta")


def _number_example(operand: Operand) -> torch.Tensor:
    kind = torch.int64 if isinstance(operand, SymbolicDim) else torch.tensor(operand).dtype
    return torch.empty((), dtype=kind, device="meta")
