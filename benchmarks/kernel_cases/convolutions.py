"""Convolutions: those of ResNet-50 and MobileNetV2; groups, dilation, one and three axes, transposed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_cases.case import Case, Spec, op, sizes


def cases() -> Iterator[Case]:
    """All of this family."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield _conv(channels, channels, (size, size), 3)
    for channels, size in ((128, 56), (256, 28), (512, 14)):
        yield _conv(channels, channels, (size, size), 3, stride=2)
    yield _conv(3, 64, (224, 224), 7, stride=2)
    for channels, filters, size in ((64, 256, 56), (256, 64, 56), (512, 128, 28), (1024, 256, 14), (512, 2048, 7)):
        yield _conv(channels, filters, (size, size), 1)
    yield _conv(256, 512, (56, 56), 1, stride=2)
    yield _conv(61, 83, (33, 29), 3)
    yield _conv(64, 64, (56, 56), 3, dilation=2)
    yield _conv(32, 64, (28, 28), 5, batch=8)
    yield from _grouped()
    yield from _other_ranks()
    yield from _transposed()


def _grouped() -> Iterator[Case]:
    for channels, size, stride in ((96, 112, 2), (144, 56, 1), (384, 14, 1), (960, 7, 1)):
        yield _conv(channels, channels, (size, size), 3, stride=stride, groups=channels)
    yield _conv(96, 96, (56, 56), 7, groups=96)
    yield _conv(240, 240, (14, 14), 5, groups=240)
    yield _conv(128, 128, (56, 56), 3, groups=32)
    yield _conv(256, 256, (28, 28), 3, groups=8)


def _other_ranks() -> Iterator[Case]:
    yield _conv(80, 384, (3000,), 3)
    yield _conv(512, 512, (400,), 3)
    yield _conv(256, 256, (400,), 31, groups=256)
    yield _conv(3, 64, (16, 56, 56), 3)
    yield _conv(64, 64, (8, 28, 28), 3)


def _transposed() -> Iterator[Case]:
    yield _conv(64, 32, (56, 56), 2, stride=2, transposed=True)
    yield _conv(128, 64, (28, 28), 4, stride=2, transposed=True)
    yield _conv(128, 64, (400,), 16, stride=8, transposed=True)


def _conv(
    channels: int,
    filters: int,
    spatial: tuple[int, ...],
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    batch: int = 1,
    transposed: bool = False,
) -> Case:
    rank = len(spatial)
    x = Spec((batch, channels, *spatial))
    taps = (kernel,) * rank
    w = Spec((channels, filters // groups, *taps) if transposed else (filters, channels // groups, *taps))
    pad = (kernel - stride) // 2 if transposed else dilation * (kernel - 1) // 2
    attributes = {"strides": (stride,) * rank, "padding": (pad,) * (2 * rank), "dilation": (dilation,) * rank}
    suffix = "_transpose" if transposed else ""

    def run(torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        function = getattr(torch.nn.functional, f"conv{'_transpose' * transposed}{rank}d")
        how = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
        return lambda: function(x, w, None, **how)

    if transposed:
        out = tuple((n - 1) * stride - 2 * pad + kernel for n in spatial)
    else:
        out = tuple((n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in spatial)
    y = Spec((batch, filters, *out))
    places = (x if transposed else y).size
    per_place = (filters if transposed else channels) // groups * kernel**rank
    words = [f"{channels}->{filters} {sizes(taps)}/{stride} of {sizes(spatial)}", f"batch {batch}" * (batch > 1)]
    words += [f"dilation {dilation}" * (dilation > 1), f"groups {groups}" * (groups > 1), "transposed" * transposed]
    kind = "conv" if groups == 1 else "depthwise" if groups == channels else "grouped"
    build = op(f"nn.conv{rank}d{suffix}", groups=groups, **attributes)
    nbytes = x.nbytes + w.nbytes + y.nbytes
    return Case(kind, " ".join(filter(None, words)), build, (x,), (w,), 2.0 * places * per_place, nbytes, run)
