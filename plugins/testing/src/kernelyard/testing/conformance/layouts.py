"""Layouts: how operands may lie in memory and come about in a graph, without a change to what they are.

The IR has no layouts in its types: every value is dense and row-major in meaning. What a backend has to get right is an
operand that another operator leaves in another order (a transposed matrix, an image with its channels last), a part of
a larger one, and a feed that a caller has in memory in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.testing.op_cases import OpCase

MARGIN = 1  # elements on each side of a sliced operand, along each of its axes
OUTSIDE = 77  # what is there


@dataclass(frozen=True)
class LaidOut:
    """A module with an operator whose operands come about in some way, its inputs, and the operators that were added
    for that: who runs these is not what the case is about."""

    module: IRModule
    feeds: Sequence[np.ndarray]
    added: frozenset[str]


# --- in memory: what a caller hands over ------------------------------------------------------------------------------
def _make_strided(array: np.ndarray) -> np.ndarray:
    """With gaps between the elements, the axes reversed in memory."""
    memory = np.empty([2 * size for size in reversed(array.shape)], array.dtype)
    view = memory.T[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def _make_reversed(array: np.ndarray) -> np.ndarray:
    """Return the last element first in memory, as `x[::-1]` leaves it."""
    backwards = tuple(slice(None, None, -1) for _ in array.shape)
    return array[backwards].copy()[backwards]


def _byte_swapped(array: np.ndarray) -> np.ndarray:
    """Return the array in the byte order of other machines, as files have it."""
    return array.astype(array.dtype.newbyteorder()) if array.dtype.isbuiltin == 1 else array


def _make_misaligned(array: np.ndarray) -> np.ndarray:
    """At an odd address, as in the middle of a file."""
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    memory[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory.view(array.dtype).reshape(array.shape)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.copy()
    view.flags.writeable = False
    return view


IN_MEMORY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "strided": _make_strided,
    "fortran": np.asfortranarray,
    "reversed": _make_reversed,
    "byte-swapped": _byte_swapped,
    "misaligned": _make_misaligned,
    "read-only": _read_only,
}


def lay_out(layout: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the same tensors, laid out otherwise; what has but one element or none stays as it is."""
    return [IN_MEMORY[layout](array) if array.size > 1 else array for array in arrays]


def changes(layout: str, arrays: Sequence[np.ndarray]) -> bool:
    """Return True where any of these tensors does not lie as it would anyway."""
    return not all(map(_is_plain, lay_out(layout, arrays)))


def _is_plain(array: np.ndarray) -> bool:
    return array.flags.carray and array.dtype.isnative


# --- in the graph: what another operator leaves -----------------------------------------------------------------------
def _permute(builder: FunctionBuilder, name: str, array: np.ndarray) -> tuple[Var, np.ndarray] | None:
    """Return the operand with axis 1 last in memory: a transposed matrix, a channels-last image."""
    return _reorder(builder, name, array, [0, *range(2, array.ndim), 1]) if array.ndim > 1 else None


def _is_transposed(builder: FunctionBuilder, name: str, array: np.ndarray) -> tuple[Var, np.ndarray] | None:
    """Return True when the last two axes, of more than two, are transposed in memory."""
    rank = array.ndim
    return _reorder(builder, name, array, [*range(rank - 2), rank - 1, rank - 2]) if rank > 2 else None


def _reorder(builder: FunctionBuilder, name: str, array: np.ndarray, order: Sequence[int]) -> tuple[Var, np.ndarray]:
    """`order`: the operand's axes as they lie in memory."""
    given = np.ascontiguousarray(array.transpose(order))
    value = builder.input(name, given.shape, dtypes.from_numpy(array.dtype))
    return builder.op("permute_dims", value, axes=tuple(int(axis) for axis in np.argsort(order))), given


def _slice(builder: FunctionBuilder, name: str, array: np.ndarray) -> tuple[Var, np.ndarray] | None:
    """Return a part of a larger tensor, away from all its edges."""
    if not array.ndim:
        return None
    given = np.full([size + 2 * MARGIN for size in array.shape], OUTSIDE).astype(array.dtype)
    given[tuple(slice(MARGIN, MARGIN + size) for size in array.shape)] = array
    value = builder.input(name, given.shape, dtypes.from_numpy(array.dtype))
    where = {
        "axes": tuple(range(array.ndim)),
        "begin": (MARGIN,) * array.ndim,
        "end": tuple(MARGIN + size for size in array.shape),
        "strides": (1,) * array.ndim,
    }
    return builder.op("strided_slice", value, **where), given


_IN_GRAPH: dict[str, tuple[str, Callable[[FunctionBuilder, str, np.ndarray], tuple[Var, np.ndarray] | None]]] = {
    "permuted": ("permute_dims", _permute),
    "transposed": ("permute_dims", _is_transposed),
    "sliced": ("strided_slice", _slice),
}
IN_GRAPH = tuple(_IN_GRAPH)
LAYOUTS = (*IN_MEMORY, *IN_GRAPH)


def insert_into_graph(layout: str, case: OpCase) -> LaidOut | None:
    """Return the case with every operand that can come about so; None where there is no such operand."""
    added, make = _IN_GRAPH[layout]
    builder = FunctionBuilder()
    args: list[Var] = []
    feeds: list[np.ndarray] = []
    is_any = False
    for number, array in enumerate(case.sample.inputs):
        name = f"x{number}"
        made = make(builder, name, array)
        is_any |= made is not None
        arg, feed = made or (builder.input(name, array.shape, dtypes.from_numpy(array.dtype)), array)
        args.append(arg)
        feeds.append(feed)
    if not is_any:
        return None
    return LaidOut(case.call(builder, args), feeds, frozenset({added} - {case.op.name}))
