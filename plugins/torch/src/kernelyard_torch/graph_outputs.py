"""Give the results of a compiled graph back as PyTorch would: as numbers or tensors, with the strides of eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node as FxNode

from kernelyard.plugins.api import Expr, FunctionBuilder
from kernelyard.runtime.api import Tensor
from kernelyard_torch.complex_numbers import Complex, is_complex
from kernelyard_torch.tensors import to_tensor


class GraphOutput(NamedTuple):
    """One result of a graph.

    position: which of the values that there are for results it is. is_number: it is no tensor. order: the axes as they
    lie in memory, outermost first; () where that is their own order. is_complex: its parts lie innermost.
    """

    position: int
    is_number: bool = False
    order: tuple[int, ...] = ()
    is_complex: bool = False

    def permute_to_memory_order(self, builder: FunctionBuilder, result: Expr | Complex) -> Expr:
        """Return what the program computes: the result with its axes as they shall lie in memory."""
        if isinstance(result, Complex):
            parts = [self.permute_to_memory_order(builder, part) for part in (result.real, result.imag)]
            shape = (*parts[0].tensor_type.shape, 1)
            return builder.op(
                "concat", *(builder.op("reshape", part, shape=shape) for part in parts), axis=len(shape) - 1
            )
        return builder.op("permute_dims", result, axes=self.order) if self.order else result

    def to_torch(self, results: Sequence[Any]) -> Any:
        """Return a value for PyTorch: a view of the memory that it was computed into, or a number."""
        result = results[self.position]
        if self.is_number:
            return result.numpy().item() if isinstance(result, Tensor) else result
        tensor = torch.view_as_complex(to_tensor(result)) if self.is_complex else to_tensor(result)
        return tensor.permute(_inverse(self.order)) if self.order else tensor


def graph_output(given: Any, position: int) -> GraphOutput:
    """Describe one result, a node of the graph or a number.

    Where eager mode gives a tensor with its axes in another order, such as `torch.channels_last`, the program does too:
    what comes after may take a view that only such strides allow.
    """
    value = given.meta.get("val") if isinstance(given, FxNode) else given
    if not isinstance(value, torch.Tensor):
        return GraphOutput(position, is_number=True)
    return GraphOutput(position, order=memory_order(value), is_complex=is_complex(value))


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the axes by falling strides; () for dense rows, and for strides with gaps or overlaps."""
    sizes, strides = ([size_hint(number) for number in numbers] for numbers in (tensor.shape, tensor.stride()))
    order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
    distance = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != distance:
            return ()
        distance *= max(sizes[axis], 1)
    moved = [axis for axis in order if sizes[axis] != 1]
    return tuple(order) if moved != sorted(moved) else ()


def size_hint(number: int | torch.SymInt) -> int:
    """Return a size or stride; of a symbolic one, its value in the call that was captured."""
    if isinstance(number, int):
        return number
    hint = number.node.hint
    return 1 if hint is None else int(hint)


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]
