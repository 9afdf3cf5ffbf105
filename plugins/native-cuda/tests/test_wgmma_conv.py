"""Convolutions by warp groups of sm_90a: boxes of channels-last images give what the interpreter gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard.dims import symbol
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.layout.convert_layout import to_last
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import wgmma_conv
from kernelyard_native_cuda.schedule.machine import machine_of
from kernelyard_native_cuda.schedule.rules import schedule
from kernelyard_native_cuda.schedule.wgmma import GroupShape

from .conftest import check_kernel
from .test_conv_and_attention import between_permutations, channels_last_convolution
from .test_rules import whole
from .test_wgmma import multiprocessors, no_compiler  # noqa: F401  a fixture

B = symbol("b")
HOPPER = machine_of(["sm_90"], allows_wgmma=True, allows_wgmma_convolutions=True)
SMALL, WIDE, TALL = GroupShape(64, 64, 1), GroupShape(128, 128, 2), GroupShape(256, 128, 2)
# Images, filters, attributes, the shape, and the box of its rows.
CONVOLUTIONS: dict[str, tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any], GroupShape, tuple[int, ...]]] = {
    "padded": ((3, 10, 9, 64), (72, 64, 3, 3), {"padding": (1, 1, 1, 1)}, SMALL, (1, 8, 8)),
    "padded at two sides": ((2, 9, 12, 40), (64, 40, 2, 3), {"padding": (2, 0, 0, 1)}, SMALL, (2, 4, 8)),
    "dilated": ((2, 11, 9, 72), (64, 72, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}, SMALL, (2, 2, 16)),
    "without padding": ((5, 7, 7, 128), (136, 128, 3, 3), {}, WIDE, (16, 4, 2)),
    "of much padding": ((1, 3, 4, 64), (64, 64, 3, 3), {"padding": (4, 3, 5, 2)}, TALL, (16, 16)),
    "of any number of images": ((B, 9, 9, 64), (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}, SMALL, (1, 4, 16)),
    "strided": ((2, 14, 12, 64), (64, 64, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}, SMALL, (1, 8, 8)),
    "strided by three": (
        (2, 15, 12, 64),
        (72, 64, 5, 2),
        {"strides": (3, 2), "padding": (4, 1, 2, 0)},
        WIDE,
        (2, 8, 8),
    ),
    "strided along rows": (
        (2, 14, 11, 72),
        (64, 72, 3, 3),
        {"strides": (2, 1), "padding": (1, 1, 1, 1)},
        SMALL,
        (1, 4, 16),
    ),
    "of one element, strided": ((3, 12, 10, 128), (64, 128, 1, 1), {"strides": (2, 2)}, SMALL, (2, 4, 8)),
    "of lines, strided": ((2, 70, 64), (64, 64, 5), {"strides": (2,), "padding": (2, 2)}, SMALL, (2, 32)),
    "of lines": ((2, 70, 64), (64, 64, 5), {"padding": (2, 2)}, SMALL, (1, 64)),
}


def convolution(name: str, dtype: str) -> PrimFunc:
    x, w, attributes, *_ = CONVOLUTIONS[name]
    return between_permutations(x, w, dtype, **attributes)


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float16") for name in CONVOLUTIONS), ("padded", "bfloat16")])
def test_boxes(emulator, monkeypatch, name, dtype):
    x, w, _, shape, box = CONVOLUTIONS[name]
    multiprocessors(monkeypatch, 1)  # a block makes several tiles
    monkeypatch.setattr(wgmma_conv, "choose", lambda it, machine: (shape, box))
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True, order=1))
    function = convolution(name, dtype)
    module = NativeCudaGenerator().generate({"f": function}, Target("cuda", arch="sm_90"), {"wgmma_convolutions": True})
    assert isinstance(module, NativeCudaModule)
    assert module.image.source.count("// wgmma_conv: implicit GEMM by warp groups") == 1
    filters = whole(*w, dtype=dtype).transpose(to_last(len(w)))
    for b in (1, 3) if B in x else (1,):
        image = whole(*(b if size == B else size for size in x), dtype=dtype)
        check_kernel(emulator, module, "f", function, [image, np.ascontiguousarray(filters)], {"b": b})


BOXES = {
    "of 64 channels": "boxes of 2x8x8 by 64",
    "of 128 channels, strided": "boxes of 16x4x4 by 128",
    "of 256 channels": "boxes of 32x2x2 by 128",
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_resnet_waste_little(name):
    ((rule, reason),) = schedule(channels_last_convolution(name, "float16"), "f", HOPPER).choices[0][-1:]
    assert (rule, reason.rpartition(", ")[0]) == ("wgmma_conv", f"implicit GEMM by warp groups, {BOXES[name]}")


@pytest.mark.parametrize(
    ("x", "w", "attributes", "words"),
    [
        ((32, 57, 57, 128), (128, 128, 3, 3), {"strides": (2, 2)}, "are no filters, and windows"),
        ((32, 56, 56, 72), (128, 72, 3, 3), {"strides": (2, 2)}, "are no filters, and windows"),
        ((32, 28, 28, 128), (128, 64, 3, 3), {"groups": 2}, "are no filters, and windows"),
        ((32, 28, 28, 132), (128, 132, 3, 3), {}, "are no filters, and windows"),
        ((32, 28, 28, 24), (128, 24, 3, 3), {}, "fewer than 32 channels"),
        ((32, 28, 28, 128), (16, 128, 3, 3), {}, "fewer than 64 rows or columns"),
        ((1, 14, 14, 64), (64, 64, 3, 3), {}, "too few tiles"),
    ],
)
def test_other_convolutions_say_why(x, w, attributes, words):
    choices = schedule(between_permutations(x, w, "float16", **attributes), "f", HOPPER).choices
    assert words in dict(choices[0])["wgmma_conv"]
    assert choices[0][-1][0] == "conv"


def test_they_are_off_unless_an_option_says_otherwise():
    function = channels_last_convolution("of 256 channels", "float16")
    choices = schedule(function, "f", machine_of(["sm_90"], allows_wgmma=True)).choices
    assert "the option wgmma_convolutions is off" in dict(choices[0])["wgmma_conv"]
    assert choices[0][-1][0] == "conv"
