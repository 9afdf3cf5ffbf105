"""The arithmetic of Winograd convolution F(m x m, 3 x 3): its interpolation points and the matrices of its transforms.

m x m results are made of a tile of (m + 2) x (m + 2) pixels: Y = A^T [(G g G^T) * (B^T d B)] A, where * is elementwise.
The points are 0, infinity and pairs of a number and its negative, so that both of a pair share their sums. They have
few binary digits: all numbers of A and B are exact, those of G are rounded once.

Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308; Barabasz, Anderson,
Soodhalter and Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks",
arXiv:1803.10986.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

Matrix: TypeAlias = "tuple[tuple[float, ...], ...]"

WINDOW = 3

# The positive one of each pair, by m. Those of F(4 x 4) have the least error in float32 of the pairs with few binary
# digits: a third of that of 1 and 2, which are usual.
PAIRS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (0.75, 1.5)}


def size_of_tile(m: int) -> int:
    """Return the pixels along one side of a tile."""
    return m + WINDOW - 1


def points(m: int) -> tuple[float, ...]:
    """Return the finite points, in the order of the rows of all matrices; infinity is the last row.

    Example:
        >>> points(4)
        (0.0, 0.75, -0.75, 1.5, -1.5)
    """
    return (0.0, *(signed for point in PAIRS[m] for signed in (point, -point)))


@cache
def data_transform(m: int) -> Matrix:
    """B^T, (m + 2, m + 2): coefficients of the polynomials that vanish at all points but one, then at all.

    Example:
        >>> [[int(number) for number in row] for row in data_transform(2)]
        [[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    """
    all_points = points(m)
    rows = [_polynomial([other for other in all_points if other != point]) for point in all_points]
    return tuple((*row, *[0.0] * (size_of_tile(m) - len(row))) for row in (*rows, _polynomial(all_points)))


@cache
def weight_transform(m: int) -> Matrix:
    """G, (m + 2, 3): the window, taken as a polynomial, at each point, over the product of distances to the others."""
    rows: list[tuple[float, ...]] = []
    for point in points(m):
        scale = 1.0
        for other in points(m):
            scale *= point - other if other != point else 1
        rows.append(tuple(point**power / scale for power in range(WINDOW)))
    return (*rows, (0.0, 0.0, 1.0))


@cache
def result_transform(m: int) -> Matrix:
    """Return A^T, (m, m + 2): powers of the points; infinity counts for the highest power.

    Example:
        >>> [[int(number) for number in row] for row in result_transform(2)]
        [[1, 1, 1, 0], [0, 1, -1, 1]]
    """
    return tuple((*(point**power for point in points(m)), float(power == m - 1)) for power in range(m))


def _polynomial(roots: Sequence[float]) -> tuple[float, ...]:
    """Return the coefficients of the product of (x - root), the constant one first."""
    coefficients = [1.0]
    for root in roots:
        shifted, scaled = [0.0, *coefficients], [*(root * c for c in coefficients), 0.0]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)
