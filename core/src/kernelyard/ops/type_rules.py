"""Building blocks of type rules: what operands must satisfy, and how their shapes combine.

Dims that must be equal but cannot be proved equal are taken to be equal; `assumptions` lists them, so that whoever
runs the program can check them once the sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from kernelyard import dims
from kernelyard.dims import Dim, Shape, Symbol, SymbolicDim
from kernelyard.dtypes import DTYPES, FLOATS, SIGNED, UNSIGNED
from kernelyard.errors import ShapeError, TypeInferenceError
from kernelyard.ir.op import Attributes, TypeRule
from kernelyard.ir.types import TensorType, Type

INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
BOOL = ("bool",)
ANY = DTYPES

_assumed: ContextVar[list[tuple[Dim, Dim]] | None] = ContextVar("_assumed", default=None)


@contextmanager
def assumptions() -> Iterator[list[tuple[Dim, Dim]]]:
    """Collect the pairs of dims that the type rules inside the block take to be equal without proof."""
    pairs: list[tuple[Dim, Dim]] = []
    token = _assumed.set(pairs)
    try:
        yield pairs
    finally:
        _assumed.reset(token)


def require(
    condition: bool, message: str, *, found: object = None, expected: object = None, hint: str | None = None
) -> None:
    """Raise TypeInferenceError unless the condition holds."""
    if not condition:
        raise TypeInferenceError(message, found=found, expected=expected, hint=hint)


def require_dtype(type_: TensorType, allowed: Sequence[str], what: str = "the operand") -> None:
    """Require that the element type is one of `allowed`."""
    if type_.dtype not in allowed:
        raise TypeInferenceError(f"wrong dtype of {what}", found=type_.dtype, expected=", ".join(allowed))


def require_same_dtype(types: Sequence[TensorType]) -> str:
    """Return the common element type of all operands."""
    names = {type_.dtype for type_ in types}
    if len(names) != 1:
        raise TypeInferenceError(
            "operands must have the same dtype",
            found=", ".join(type_.dtype for type_ in types),
            hint="convert with astype first",
        )
    return types[0].dtype


def require_rank(type_: TensorType, rank: int, what: str = "the operand") -> None:
    """Require that the number of dims is `rank`."""
    if type_.rank != rank:
        raise TypeInferenceError(f"{what} has the wrong rank", found=repr(type_), expected=f"rank {rank}")


def require_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return an axis in [0, rank)."""
    if not 0 <= axis < rank:
        valid = f"0 to {rank - 1}" if rank else "no axis: the operand has rank 0"
        hint = f"axes count from the front: write {axis + rank}" if -rank <= axis < 0 else None
        raise TypeInferenceError(f"{what} is out of range", found=axis, expected=valid, hint=hint)
    return axis


def require_axes(axes: Sequence[int], rank: int, *, ordered: bool = True) -> tuple[int, ...]:
    """Require distinct axes in [0, rank), ascending unless `ordered` is False."""
    for axis in axes:
        require_axis(axis, rank, "an axis")
    require(len(set(axes)) == len(axes), "an axis is given twice", found=tuple(axes))
    require(
        not ordered or list(axes) == sorted(axes), "axes must ascend", found=tuple(axes), expected=tuple(sorted(axes))
    )
    return tuple(axes)


def require_length(values: Sequence[object], length: int, what: str) -> None:
    """Require that an attribute has `length` entries."""
    require(len(values) == length, f"{what} has the wrong length", found=tuple(values), expected=f"{length} entries")


# --- dims -------------------------------------------------------------------------------------------------------------
def unify(left: Dim, right: Dim, what: str) -> Dim:
    """Return the one size that two dims must both have; the simpler of the two when that cannot be proved.

    Raises: TypeInferenceError when they are known to differ.
    """
    if left == right:
        return left
    if are_different(left, right):
        raise TypeInferenceError(f"{what} must have the same size", found=f"{left} and {right}")
    pairs = _assumed.get()
    if pairs is not None:
        pairs.append((left, right))
    return min(left, right, key=lambda dim: (not isinstance(dim, int), len(str(dim)), str(dim)))


def require_within(bound: Dim, first: Dim, last: Dim, what: str) -> None:
    """Require that `bound` lies between two dims, both included; what cannot be proved is noted as an assumption."""
    below, above = first - bound, bound - last
    outside = is_nonnegative(below - 1) or is_nonnegative(above - 1)
    require(not outside, f"{what} is out of range", found=bound, expected=f"{first} to {last}")
    pairs = _assumed.get()
    if pairs is not None and not (is_nonnegative(-below) and is_nonnegative(-above)):
        pairs.append((bound, dims.minimum(dims.maximum(bound, first), last)))


def require_multiple(size: Dim, of: Dim, message: str) -> None:
    """Require that a size is a multiple of another; what cannot be proved is noted as an assumption."""
    multiple = size + 1 if of == 0 else dims.floordiv(size, of) * of
    require(not are_different(size, multiple), message, found=f"{size} and {of}")
    unify(size, multiple, message)


def assume_nonnegative(dim: Dim) -> None:
    """Note as an assumption that a dim is not negative, where that cannot be proved."""
    pairs = _assumed.get()
    if pairs is not None and not is_nonnegative(dim):
        pairs.append((dim, dims.maximum(dim, 0)))


def unify_shapes(left: Shape, right: Shape, what: str) -> Shape:
    """Apply `unify` to every axis."""
    require(len(left) == len(right), f"{what} must have the same rank", found=f"{left} and {right}")
    return tuple(unify(a, b, f"axis {i} of {what}") for i, (a, b) in enumerate(zip(left, right, strict=True)))


def are_different(left: Dim, right: Dim) -> bool:
    """Return True when two dims are proved to differ for all sizes of at least 1."""
    difference = left - right
    if isinstance(difference, int):
        return difference != 0
    if not _is_plain_polynomial(difference):
        return False
    return _is_positive(difference) or _is_positive(-difference)


def _is_plain_polynomial(dim: SymbolicDim) -> bool:
    return all(isinstance(atom, Symbol) for monomial, _ in dim.terms for atom in monomial)


def _is_positive(dim: Dim) -> bool:
    """Return True when a polynomial is proved positive.

    In n' = n - 1 the constant and all coefficients are positive.
    """
    shifted = dims.substitute(dim, {name: dims.symbol(name) + 1 for name in dims.symbols_of(dim)})
    if isinstance(shifted, int):
        return shifted > 0
    constant = sum(coefficient for monomial, coefficient in shifted.terms if not monomial)
    return constant > 0 and all(coefficient > 0 for _, coefficient in shifted.terms)


def is_nonnegative(dim: Dim, depth: int = 4) -> bool:
    """Return True when a dim is proved to be at least 0 for all sizes of at least 1.

    Extrema and floor divisions are replaced by their bounds, at most `depth` of them.
    """
    if isinstance(dim, int):
        return dim >= 0
    for monomial, coefficient in dim.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if atom is None or isinstance(atom, Symbol):
            continue
        if depth == 0:
            return False
        rest = dim - SymbolicDim(((monomial, coefficient),))
        options = [rest + coefficient * atom.left, rest + coefficient * atom.right]
        if atom.name == "floordiv":
            # right * (left // right) lies in [left - right + 1, left]
            slack = atom.right - 1 if coefficient > 0 else 0
            scaled = rest * atom.right + coefficient * (atom.left - slack)
            dropped = coefficient > 0 and is_nonnegative(atom.left, depth - 1) and is_nonnegative(rest, depth - 1)
            return dropped or is_nonnegative(scaled, depth - 1)
        # The larger one bounds from below, the smaller one from above; a broadcast is the larger one.
        either = (atom.name == "min") == (coefficient < 0)
        return (any if either else all)(is_nonnegative(option, depth - 1) for option in options)
    return _is_plain_polynomial(dim) and (_is_positive(dim + 1))


def clamp_size(dim: Dim) -> Dim:
    """Return `max(dim, 0)`, or `dim` if it is provably non-negative."""
    return dim if is_nonnegative(dim) else dims.maximum(dim, 0)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the common shape under NumPy's rule.

    Raises: TypeInferenceError when known sizes disagree.
    """
    result: list[Dim] = []
    for back in range(1, max(map(len, shapes), default=0) + 1):
        size: Dim = 1
        for shape in shapes:
            if len(shape) >= back:
                size = _broadcast(size, shape[-back], shapes)
        result.append(size)
    return tuple(reversed(result))


def _broadcast(left: Dim, right: Dim, shapes: Sequence[Shape]) -> Dim:
    try:
        return dims.broadcast(left, right)
    except ShapeError as error:
        raise TypeInferenceError(
            "shapes do not broadcast", found=" and ".join(map(str, shapes)), expected="equal sizes, or one of them 1"
        ) from error


def require_broadcastable(shape: Shape, target: Shape, what: str) -> None:
    """Require that `shape` broadcasts to exactly `target`; what cannot be proved is noted as an assumption."""
    sizes = tuple(zip(reversed(shape), reversed(target), strict=False))
    require(
        len(shape) <= len(target) and not any(_overflows(a, b) for a, b in sizes),
        f"{what} does not broadcast to the target shape",
        found=str(shape),
        expected=str(target),
    )
    pairs = _assumed.get()
    if pairs is not None:
        pairs += [(dims.broadcast(a, b), b) for a, b in sizes if a not in (1, b)]


def _overflows(size: Dim, target: Dim) -> bool:
    return size != 1 and are_different(size, target) and isinstance(size, int)


# --- whole rules ------------------------------------------------------------------------------------------------------
def elementwise(allowed: Sequence[str], result: str | None = None) -> TypeRule:
    """Infer the type of broadcast operands of one dtype; `result` is the dtype of the result, if it is another."""

    def rule(types: Sequence[TensorType], attrs: Attributes) -> Type:
        dtype = require_same_dtype(types)
        require_dtype(types[0], allowed)
        shape = types[0].shape if len(types) == 1 else broadcast_shapes(*(type_.shape for type_ in types))
        return TensorType(shape, result or dtype)

    return rule


def same_as_first(check: Callable[[Sequence[TensorType], Attributes], None]) -> TypeRule:
    """Return the first operand's type, after a check."""

    def rule(types: Sequence[TensorType], attrs: Attributes) -> Type:
        check(types, attrs)
        return types[0]

    return rule
