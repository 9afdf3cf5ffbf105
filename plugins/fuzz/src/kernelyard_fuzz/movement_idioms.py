"""Idioms of movement: slices, permutations and borders one after the other, and pieces that are joined again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelyard.ir import Var
from kernelyard_fuzz.writer import RefusedError, Writer


def _slices(w: Writer, x: Var) -> Var:
    """Slices of slices."""
    for _ in range(w.chooser.between(2, 3)):
        sizes = [int(size) for size in x.tensor_type.shape]  # pyright: ignore[reportArgumentType]
        axes = tuple(axis for axis in range(len(sizes)) if sizes[axis] > 1 and w.chooser.chance(60))
        if not axes:
            raise RefusedError("strided_slice")
        begin = tuple(w.chooser.below(sizes[axis] - 1) for axis in axes)
        end = tuple(w.chooser.between(low + 1, sizes[axis]) for axis, low in zip(axes, begin, strict=True))
        strides = tuple(w.chooser.pick((1, 1, 1, 2)) for _ in axes)
        x = w.op("strided_slice", x, axes=axes, begin=begin, end=end, strides=strides)
    return x


def _permutations(w: Writer, x: Var) -> Var:
    for _ in range(2):
        left = list(range(x.tensor_type.rank))
        axes = tuple(left.pop(w.chooser.below(len(left))) for _ in range(x.tensor_type.rank))
        x = w.op("permute_dims", x, axes=axes)
        if w.chooser.chance(40):
            x = w.op(w.chooser.pick(("nn.relu", "negative", "sigmoid")), x)
    return x


def _reshape_and_back(w: Writer, x: Var) -> Var:
    """Reshape a value, do something with a number or a vector of the last axis, and reshape it back."""
    shape = x.tensor_type.shape
    rank = w.chooser.between(1, 3)
    y = w.of_rank(x, rank) if rank < len(shape) else w.op("reshape", x, shape=(1, *shape))
    size = int(y.tensor_type.shape[-1])  # pyright: ignore[reportArgumentType]
    for _ in range(w.chooser.between(1, 2)):
        other = w.vector(size, w.chooser.between(1, 2), -1) if w.chooser.chance(70) else w.number(0.5)
        y = w.op(w.chooser.pick(("add", "multiply", "subtract")), y, other)
    return w.op("reshape", y, shape=shape)


def _split(w: Writer, x: Var) -> Var:
    """Pieces joined again, some of them changed."""
    axis = w.chooser.below(x.tensor_type.rank)
    size = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
    at = w.chooser.below(size + 1)
    ends = ((0, at), (at, size)) if w.chooser.chance(70) else ((at, size), (0, at))
    pieces = [w.op("strided_slice", x, axes=(axis,), begin=(a,), end=(b,), strides=(1,)) for a, b in ends]
    if w.chooser.chance(50):
        pieces[0] = w.op("nn.relu", pieces[0])
    return w.op("concat", *pieces, axis=axis)


def write_movements(w: Writer, x: Var) -> Var:
    """Write movements of all kinds in a row, as backends see them without a copy: what lies in what lies in x."""
    for _ in range(w.chooser.between(2, 4)):
        x = w.chooser.pick((_cut, _pad, join_pieces, _permute))(w, x)
    return x


def _cut(w: Writer, x: Var) -> Var:
    axis, size = _axis(w, x)
    if size < 2:
        return w.op("nn.relu", x)
    begin = w.chooser.below(size - 1)
    end = w.chooser.between(begin + 1, size)
    return w.op("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,), strides=(w.chooser.pick((1, 1, 1, 2)),))


def _pad(w: Writer, x: Var) -> Var:
    return w.op("pad", x, pads=tuple(w.chooser.pick((0, 0, 1, 2)) for _ in range(2 * x.tensor_type.rank)))


def join_pieces(w: Writer, x: Var) -> Var:
    """Join x with pieces of it and what is made of it, in any order: pieces of several sizes, mostly."""
    axis, size = _axis(w, x)
    pieces = [x]
    for _ in range(w.chooser.between(1, 3)):
        begin = w.chooser.below(size) if size > 1 and w.chooser.chance(60) else 0
        end = size if begin == 0 else w.chooser.between(begin, size)
        piece = w.op("nn.relu", x)
        if end - begin < size:
            piece = w.op("strided_slice", piece, axes=(axis,), begin=(begin,), end=(end,), strides=(1,))
        pieces.insert(w.chooser.below(len(pieces) + 1), piece)
    return w.op("concat", *pieces, axis=axis)


def _permute(w: Writer, x: Var) -> Var:
    if w.chooser.chance(70):  # the layout of what comes next is that of x otherwise
        return w.op(w.chooser.pick(("nn.relu", "negative")), x)
    left = list(range(x.tensor_type.rank))
    return w.op("permute_dims", x, axes=tuple(left.pop(w.chooser.below(len(left))) for _ in range(len(left))))


def _axis(w: Writer, x: Var) -> tuple[int, int]:
    """Return an axis and its size."""
    axis = w.chooser.below(x.tensor_type.rank)
    return axis, int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]


MOVEMENT_IDIOMS: Mapping[str, Callable[[Writer, Var], object]] = {
    "slices": _slices,
    "permutations": _permutations,
    "reshaped": _reshape_and_back,
    "split": _split,
    "moved": write_movements,
}
