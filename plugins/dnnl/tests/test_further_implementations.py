"""Further implementations of a primitive: those that the library has after the one that it prefers."""

from __future__ import annotations

from ctypes import byref, c_char_p

import pytest

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
