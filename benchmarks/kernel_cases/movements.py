"""Elements that change their place: transpositions, concatenations, slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_cases.case import Case, Spec, op, sizes


def cases() -> Iterator[Case]:
    """All of this family."""
    yield _transpose((1024, 1024), (1, 0))
    yield _transpose((333, 517), (1, 0))
    yield _transpose((1, 128, 12, 64), (0, 2, 1, 3))
    yield _transpose((1, 256, 56, 56), (0, 2, 3, 1))
    yield _transpose((1, 56, 56, 256), (0, 3, 1, 2))
    yield _transpose((32, 100, 24), (2, 1, 0))
    yield _concat(((128, 768), (128, 768)), 1)
    yield _concat(((1, 64, 56, 56), (1, 64, 56, 56)), 1)
    yield _concat(((512, 33), (512, 70)), 1)


def _transpose(shape: tuple[int, ...], axes: tuple[int, ...]) -> Case:
    x = Spec(shape)

    def run(torch: Any, x: Any) -> Callable[[], Any]:
        out = torch.empty([x.shape[axis] for axis in axes])
        return lambda: out.copy_(x.permute(axes))

    name = f"transpose {sizes(shape)} by {axes}"
    return Case("movement", name, op("permute_dims", axes=axes), (x,), (), 0.0, 2.0 * x.nbytes, run)


def _concat(shapes: tuple[tuple[int, ...], ...], axis: int) -> Case:
    operands = tuple(map(Spec, shapes))

    def run(torch: Any, *args: Any) -> Callable[[], Any]:
        out = torch.cat(args, axis)
        return lambda: torch.cat(args, axis, out=out)

    name = f"concat {', '.join(map(sizes, shapes))} on {axis}"
    nbytes = 2.0 * sum(each.nbytes for each in operands)
    return Case("movement", name, op("concat", axis=axis), operands, (), 0.0, nbytes, run)
