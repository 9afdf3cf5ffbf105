"""Choice of Winograd's algorithm and its tiles for a convolution, by a roofline estimate of each way.

Multiplications are bound by the processor; a tile's transformed pixels and products are written to the second-level
cache and read again; transformed weights, 16/9 or 4 times as many as there were, come from further away. Images that
are no whole number of tiles lose a part of the gain, and small images with many channels all of it.
"""

from __future__ import annotations

from kernelyard.records import NamedTuple
from kernelyard_llvm.winograd import algorithm

# What one core does in a second, roughly; only the proportions matter. Weights come from memory, or from a cache that
# cores share where a network is small. As more cores share all of it alike, the choice does not depend on their number,
# and so neither do the bits of results nor which weights are kept.
MULTIPLICATIONS = 5e10
CACHE_BYTES = 4e10
WEIGHT_BYTES = 3e10
# The memory that transformed weights take wants a reason.
WORTHWHILE = 1.15

FLOAT = 4
# Tiles whose sums are kept in registers at once: with the vectors of a panel, 24 of 32 registers, or 12 of 16.
ROWS = 6
FEW_ROWS = 4  # what is left of a block does less needlessly


class Shape(NamedTuple):
    """A convolution of 3 x 3 windows: images, their results' height and width, channels and filters.

    planes: of a window of volumes, whose planes are the images.
    """

    images: int
    height: int
    width: int
    channels: int
    filters: int
    planes: int = 1

    @property
    def reduced(self) -> int:
        """What is summed for each result, beside the window of a plane."""
        return self.planes * self.channels

    def tiles(self, m: int) -> tuple[int, int]:
        """Return the number of tiles down and across an image."""
        return -(-self.height // m), -(-self.width // m)


def best_tile(shape: Shape, lanes: int) -> int | None:
    """m of the fastest F(m x m, 3 x 3); None where the convolution is better done directly.

    Example:
        >>> best_tile(Shape(1, 56, 56, 64, 64), lanes=16)
        4
        >>> best_tile(Shape(1, 7, 7, 512, 512), lanes=16)
        2
        >>> best_tile(Shape(1, 56, 56, 3, 8), lanes=16)
    """
    if not shape.images * shape.height * shape.width * shape.channels * shape.filters:
        return None
    times = {m: seconds(shape, m, lanes) for m in algorithm.PAIRS}
    best = min(times, key=lambda m: times[m])
    return best if times[best] * WORTHWHILE < direct_seconds(shape) else None


def direct_seconds(shape: Shape) -> float:
    """Return one core's time for the convolution as it is defined."""
    weights = algorithm.WINDOW**2 * shape.reduced * shape.filters
    pixels = shape.images * shape.height * shape.width
    return pixels * weights / MULTIPLICATIONS + FLOAT * weights / WEIGHT_BYTES


def seconds(shape: Shape, m: int, lanes: int) -> float:
    """Return one core's time by F(m x m, 3 x 3)."""
    places = algorithm.size_of_tile(m) ** 2
    down, across = shape.tiles(m)
    tiles = shape.images * down * across
    rest = tiles % ROWS
    rows = tiles - rest + (0 if not rest else FEW_ROWS if rest <= FEW_ROWS else ROWS)
    channels, filters = shape.planes * pad_to_vectors(shape.channels, lanes), pad_to_vectors(shape.filters, lanes)
    weights = places * shape.reduced * filters
    moved = 2 * FLOAT * places * tiles * (channels + filters)
    return rows * weights / MULTIPLICATIONS + moved / CACHE_BYTES + FLOAT * weights / WEIGHT_BYTES


def pad_to_vectors(count: int, lanes: int) -> int:
    """Return the next whole number of vectors."""
    return -(-count // lanes) * lanes


def panel_width(lanes: int) -> int:
    """Return the most vectors in a panel of weights, as many as the registers hold."""
    return 4 if lanes == 16 else 2
