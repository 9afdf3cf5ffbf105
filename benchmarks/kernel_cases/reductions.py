"""Reductions along each axis, and poolings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_cases.case import Case, Spec, op, sizes

REDUCED = (
    ((2048, 1024), (1,)),
    ((2048, 1024), (0,)),
    ((1000, 37), (1,)),
    ((1000, 37), (0,)),
    ((1, 2048, 7, 7), (2, 3)),
    ((64, 128, 256), (1,)),
    ((64, 128, 256), (0, 2)),
    ((300, 500), (0, 1)),
)


def cases() -> Iterator[Case]:
    """All of this family."""
    for shape, axes in REDUCED:
        for name, of_torch in (("sum", "sum"), ("max", "amax")):
            yield _reduction(name, of_torch, shape, axes)
    yield _argmax((128, 32000))
    yield from _pools()


def _reduction(name: str, of_torch: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> Case:
    x = Spec(shape)

    def run(torch: Any, x: Any) -> Callable[[], Any]:
        function = getattr(torch, of_torch)
        return lambda: function(x, dim=axes)

    label = f"{name} {sizes(shape)} over {axes}"
    return Case("reduction", label, op(name, axes=axes), (x,), (), float(x.size), x.nbytes, run)


def _argmax(shape: tuple[int, int]) -> Case:
    x = Spec(shape)

    def run(torch: Any, x: Any) -> Callable[[], Any]:
        return lambda: torch.argmax(x, 1)

    return Case("reduction", f"argmax {sizes(shape)}", op("argmax", axis=1), (x,), (), float(x.size), x.nbytes, run)


def _pools() -> Iterator[Case]:
    for channels, size, window, stride, kind in (
        (64, 112, 3, 2, "max"),
        (192, 35, 3, 1, "avg"),
        (128, 56, 2, 2, "max"),
    ):
        x, pad = Spec((1, channels, size, size)), window // 2 if stride < window else 0
        attributes = {"pool_size": (window,) * 2, "strides": (stride,) * 2, "padding": (pad,) * 4}

        def run(torch: Any, x: Any, kind: str = kind, how: tuple[int, ...] = (window, stride, pad)) -> Any:
            function = getattr(torch.nn.functional, f"{kind}_pool2d")
            return (lambda: function(x, *how)) if kind == "max" else lambda: function(x, *how, count_include_pad=False)

        name = f"{kind}_pool {sizes(x.shape[1:])} {window}/{stride}"
        build, result = op(f"nn.{kind}_pool2d", **attributes), x.size / stride**2
        nbytes = x.nbytes + 4.0 * result
        yield Case("reduction", name, build, (x,), (), result * window**2, nbytes, run)
