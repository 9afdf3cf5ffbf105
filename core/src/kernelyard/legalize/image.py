"""Rule of resizing: per axis, which input positions make an output position and with which weights, then the sums.

The definitions are those of ONNX's Resize operator (https://onnx.ai/onnx/operators/onnx__Resize.html); the cubic kernel
is that of Keys (1981). Positions are computed in float64, once per axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.legalize.common import Source
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Expr, cast, const, index, maximum, minimum, select, unary

WIDE = "float64"
ROUNDINGS: dict[str, Callable[[Expr], Expr]] = {
    "round_prefer_floor": lambda x: unary("ceil", x - 0.5),
    "round_prefer_ceil": lambda x: unary("floor", x + 0.5),
    "floor": lambda x: unary("floor", x),
    "ceil": lambda x: unary("ceil", x),
}
TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


@dataclass(frozen=True)
class _Sampling:
    """Resampling of an axis from `size` to `out` positions."""

    size: Dim
    out: Dim
    scale: float | None
    mode: str

    @property
    def is_identity(self) -> bool:
        return self.size == self.out and self.scale in (None, 1.0)

    def coordinate(self, at: Expr) -> Expr:
        """Return the source coordinate of output position `at`."""
        position, size, out = cast(at, WIDE), _wide(self.size), _wide(self.out)
        # Without a stated scale the ratio is exact: multiply first, divide once.
        numerator, denominator = (size, out) if self.scale is None else (const(1, WIDE), const(self.scale, WIDE))
        if self.mode == "align_corners":
            return self._unless_single(position * (size - 1) / (out - 1))
        if self.mode == "asymmetric":
            return position * numerator / denominator
        centred = (position + 0.5) * numerator / denominator - 0.5
        if self.mode == "pytorch_half_pixel":
            return self._unless_single(centred)
        if self.mode == "half_pixel_symmetric" and self.scale is not None:
            return centred + size / 2 * (1 - out / (size * self.scale))
        return centred

    def _unless_single(self, coordinate: Expr) -> Expr:
        return select(index(self.out) > 1, coordinate, const(0, WIDE))


def _wide(dim: Dim) -> Expr:
    return cast(index(dim), WIDE)


@legalize("image.resize", widen=True)
def resize(
    b: RuleBuilder,
    x: Operand,
    *,
    sizes: tuple[Dim, ...],
    scales: tuple[float, ...],
    method: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
) -> Buffer:
    samplings = {
        2 + n: _Sampling(x.shape[2 + n], out, scales[n] if scales else None, coordinate_transformation_mode)
        for n, out in enumerate(sizes)
    }
    changed = {axis: sampling for axis, sampling in samplings.items() if not sampling.is_identity}
    if method == "nearest":
        return _nearest(b, x, changed, ROUNDINGS[nearest_mode])
    result: Source = x
    for axis, sampling in changed.items():
        result = _interpolate(b, result, axis, sampling, method, cubic_coeff_a)
    return result if isinstance(result, Buffer) else b.compute(x.shape, lambda *at: x[at])


def _nearest(b: RuleBuilder, x: Operand, changed: dict[int, _Sampling], rounding: Callable[[Expr], Expr]) -> Buffer:
    tables = {axis: _position_table(b, s, lambda at, s=s: rounding(s.coordinate(at))) for axis, s in changed.items()}

    def place(axis: int, at: Axis) -> Expr:
        return tables[axis][at] if axis in tables else at

    return b.compute(b.result.shape, lambda *at: x[tuple(place(n, value) for n, value in enumerate(at))])


def _position_table(b: RuleBuilder, sampling: _Sampling, position: Callable[[Expr], Expr]) -> Buffer:
    """Return for each output position the input position, kept inside the input."""

    def body(at: Axis) -> Expr:
        return minimum(maximum(cast(position(at), INDEX), 0), index(sampling.size) - 1)

    return b.compute((sampling.out,), body, "positions")


def _interpolate(b: RuleBuilder, x: Source, axis: int, sampling: _Sampling, method: str, a: float) -> Buffer:
    """Resample `x` along one axis."""

    def coordinate(at: Expr) -> Expr:
        found = sampling.coordinate(at)
        return found if method == "cubic" else minimum(maximum(found, 0), _wide(sampling.size) - 1)

    def offset(at: Expr) -> Expr:
        return coordinate(at) - unary("floor", coordinate(at))

    taps = []
    for tap in TAPS[method]:
        positions = _position_table(b, sampling, lambda at, tap=tap: unary("floor", coordinate(at)) + tap)
        weights = b.compute(
            (sampling.out,), lambda at, tap=tap: cast(_weight(method, offset(at), tap, a), x.dtype), "weights"
        )
        taps.append((positions, weights))

    def body(*at: Axis) -> Expr:
        where = at[axis]
        parts = [x[(*at[:axis], positions[where], *at[axis + 1 :])] * weights[where] for positions, weights in taps]
        return sum(parts[1:], parts[0])

    return b.compute((*x.shape[:axis], sampling.out, *x.shape[axis + 1 :]), body, "resized")


def _weight(method: str, offset: Expr, tap: int, a: float) -> Expr:
    if method == "linear":
        return offset if tap else 1 - offset
    distance = unary("abs", offset - tap)
    near = (distance * (a + 2) - (a + 3)) * distance * distance + 1
    far = ((distance * a - 5 * a) * distance + 8 * a) * distance - 4 * a
    return select(distance <= 1, near, select(distance < 2, far, const(0, WIDE)))
