"""Further implementations of a primitive: those that the library has after the one that it prefers."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes import byref, c_char_p

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError, load_library
from kernelyard_dnnl.layout import any_layout, channels_last
from kernelyard_dnnl.primitive import Primitive, Recipe, Vector, primitive_of
from kernelyard_dnnl.primitives.convolution_geometry import TRANSPOSED_DIRECT

NONE, TWO = Vector((0, 0)), Vector((2, 2))


def recipe(channels: int, skipped: int = 0) -> Recipe:
    """Return that of a transposed convolution which doubles an image."""
    source, result = (channels_last((1, channels, size, size), "float32") for size in (10, 20))
    weights = any_layout((channels, channels, 2, 2), "float32")
    what = (enums.FORWARD_INFERENCE, TRANSPOSED_DIRECT, source, weights, None, result)
    return Recipe("deconvolution_forward", (*what, TWO, NONE, NONE, NONE), skipped=skipped)


def implementations(channels: int) -> list[str]:
    """Return the names of all, as the library goes through them."""
    library, names = load_library(), list[str]()
    first = Primitive(recipe(channels), 1)
    first.describe()
    further = first.take_further()
    assert further is not None
    is_last = False
    while not is_last:
        text = c_char_p()
        library.call("dnnl_primitive_desc_query", further.address, enums.QUERY["impl_info_str"], 0, byref(text))
        names.append((text.value or b"").decode())
        try:
            library.call("dnnl_primitive_desc_next_impl", further.address)
        except StatusError as error:
            is_last = error.status == "last_impl_reached"
    assert first.implementation == names[0]
    return names


@pytest.mark.parametrize("order", [(0, 1, 2, 0), (2, 1, 0, 1), (1, 1, 0, 2)])
def test_each_is_the_same_in_whatever_order_they_are_asked_for(order):
    channels = 24 + sum(place * number for place, number in enumerate(order))  # which nobody has asked about yet
    names = implementations(channels)
    assert len(names) == len(set(names)) > 1
    primitive_of.cache_clear()
    made = {skipped: primitive_of(recipe(channels, skipped), 1) for skipped in order if skipped < len(names)}
    assert {skipped: each.implementation for skipped, each in made.items()} == {
        skipped: names[skipped] for skipped in made
    }


def test_after_the_last_there_is_none():
    count = len(implementations(16))
    for _ in range(2):
        with pytest.raises(StatusError):
            primitive_of(recipe(16, count), 1).describe()
    assert primitive_of(recipe(16, count - 1), 1).implementation == implementations(16)[-1]


WITH_VECTORS_OF_8 = """
import sys
import numpy as np
import kernelyard as ky

exe = ky.load(sys.argv[1])
np.save(sys.argv[3], exe(np.load(sys.argv[2])).numpy())
(runtime,) = [module for module in exe.modules if module.kind == "dnnl"]
print(*[name for label, name in runtime.plan(runtime.symbols()[0], {}, 1).implementations if label.startswith("conv")])
"""
CASES = {
    "relu": lambda b, x, y: b.op("nn.relu", y),
    "residual": lambda b, x, y: b.op("nn.relu", b.op("add", y, x)),
    "swish": lambda b, x, y: b.op("nn.silu", y),
}


def convolution(channels: int, window: int, follows: str, strides: tuple[int, int] = (1, 1), is_depthwise: bool = True):
    """Return what builds a convolution that keeps the number of channels, and what follows it."""
    shape = (channels, 1 if is_depthwise else channels, window, window)
    weight = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)

    def build(b, x):
        how = {"strides": strides, "padding": (window // 2,) * 4, "groups": channels if is_depthwise else 1}
        return CASES[follows](b, x, b.op("nn.conv2d", x, weight, **how))

    return build


@pytest.mark.parametrize(
    ("channels", "window", "follows", "strides"),
    [
        *((40, 3, "relu", (1, 1)), (24, 5, "swish", (2, 2)), (16, 7, "residual", (1, 1))),
        *((12, 3, "residual", (1, 1)), (100, 5, "relu", (2, 1))),
    ],
)
def test_depthwise_convolutions_take_the_faster_code_with_vectors_of_8(
    channels, window, follows, strides, offloading, tmp_path
):
    module = offloading.module(convolution(channels, window, follows, strides), (2, channels, 14, 15))
    assert with_vectors_of_8(module, offloading, tmp_path) == ["jit_dw:avx2"]


@pytest.mark.parametrize(
    ("channels", "follows", "strides"),
    [
        *((40, "relu", (1, 1)), (24, "swish", (1, 1)), (16, "residual", (1, 1)), (32, "relu", (2, 1))),
        *((64, "residual", (1, 1)), (152, "swish", (1, 1))),
    ],
)
def test_convolutions_of_one_element_take_the_faster_code_with_vectors_of_8(
    channels, follows, strides, offloading, tmp_path
):
    build = convolution(channels, 1, follows, strides, is_depthwise=False)
    assert with_vectors_of_8(offloading.module(build, (2, channels, 14, 15)), offloading, tmp_path) == ["jit_1x1:avx2"]


def test_one_vector_of_filters_stays(offloading, tmp_path):
    module = offloading.module(convolution(8, 1, "relu", is_depthwise=False), (2, 8, 14, 15))
    assert with_vectors_of_8(module, offloading, tmp_path) == ["brgconv_1x1:avx2"]


def with_vectors_of_8(module, offloading, folder) -> list[str]:
    """Return the implementations of convolutions where oneDNN has AVX2; the results are right."""
    ky.compile(module, backends=["dnnl"]).save(folder / "m.kyar")
    (x,) = offloading.feeds(module)
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-c", WITH_VECTORS_OF_8, *(folder / name for name in ("m.kyar", "x.npy", "y.npy"))]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (expected,) = evaluate(module, [x])
    assert_allclose(np.load(folder / "y.npy"), expected)
    return result.stdout.split()


@pytest.mark.parametrize("is_depthwise", [True, False])
@pytest.mark.parametrize("follows", CASES)
def test_they_are_taken_in_c(follows, is_depthwise, offloading):
    module = offloading.module(
        convolution(24, 3 if is_depthwise else 1, follows, is_depthwise=is_depthwise), (1, 24, 9, 10)
    )
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": "c"}}, strict=True)
    assert {each.kind for each in exe.modules} == {"c_source"}
    offloading.right(module, exe)
