"""Convolutions and attention: which rule takes them, and that their kernels give what the interpreter gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernelyard import dims, dtypes
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.tir import PrimFunc, parse_primfunc
from kernelyard.tir.interpreter import evaluate
from kernelyard.transform import FuseTransposeMatmul
from kernelyard.transform.layout.convert_layout import to_first, to_last
from kernelyard.transform.pipelines import channels_last
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import assert_close, check_kernel, generate, run_on
from .test_rules import lower, random, rules_of, whole

N = dims.symbol("n")


def check_module(
    emulator, function: PrimFunc, inputs: Sequence[np.ndarray], symbols: dict[str, int] | None = None
) -> NativeCudaModule:
    module = generate({"kernel": function})
    check_kernel(emulator, module, "kernel", function, inputs, symbols)
    return module


# --- convolutions -----------------------------------------------------------------------------------------------------
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "padded": ((2, 8, 14, 13), (20, 8, 3, 3), {"padding": (1, 1, 1, 1)}, "conv"),
    "strided": ((1, 6, 15, 15), (10, 6, 3, 3), {"strides": (2, 2), "padding": (1, 0, 1, 0)}, "conv"),
    "dilated": ((1, 6, 15, 15), (10, 6, 3, 3), {"dilation": (2, 2), "padding": (2, 2, 2, 2)}, "conv"),
    "of one element": ((2, 16, 6, 6), (24, 16, 1, 1), {}, "matmul"),
    "in groups": ((1, 12, 9, 9), (8, 6, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}, "conv"),
    "by channel": ((1, 12, 9, 9), (12, 1, 3, 3), {"groups": 12, "padding": (1, 1, 1, 1)}, "fallback"),
}


DTYPES = ("float32", "float16", "bfloat16")
HALVES = DTYPES[1:]


def convolution(name: str, dtype: str) -> PrimFunc:
    x, w, attributes, _ = CONVOLUTIONS[name]
    whole_attributes = {"strides": (1, 1), "padding": (0, 0, 0, 0), **attributes}
    return lower("nn.conv2d", TensorType(x, dtype), TensorType(w, dtype), **whole_attributes)


@pytest.fixture(scope="module")
def convolutions() -> NativeCudaModule:
    """All of them as one program: most of what the emulator compiles is in every program."""
    return generate({f"{name}_{dtype}": convolution(name, dtype) for name in CONVOLUTIONS for dtype in DTYPES})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(emulator, convolutions, name, dtype):
    x, w, _, rule = CONVOLUTIONS[name]
    function = convolution(name, dtype)
    assert rules_of(function) == [rule]
    assert not schedule(function, "kernel", ANY_MACHINE).function.blocks[0].output.name.startswith("padded")
    inputs = [whole(*x, dtype=dtype), whole(*w, dtype=dtype)]
    check_kernel(emulator, convolutions, f"{name}_{dtype}", function, inputs)
    text = generate({"kernel": function}).image.source.split("// --- generated")[1]
    assert ("tensor cores" in text) == (dtype != "float32" and rule != "fallback")


# Images, filters, attributes, the rule, and the bytes of the copies of both operands.
CHANNELS_LAST: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str, tuple[int, ...]]] = {
    "padded": ((2, 13, 11, 16), (24, 16, 3, 3), {"padding": (1, 1, 1, 1)}, "conv", (16, 16)),
    "padded at one side": ((1, 9, 9, 8), (10, 8, 3, 2), {"padding": (2, 0, 0, 1)}, "conv", (16, 16)),
    "strided": ((2, 15, 13, 24), (40, 24, 3, 3), {"strides": (2, 3), "padding": (1, 1, 1, 1)}, "conv", (16, 16)),
    "dilated": ((1, 15, 15, 8), (16, 8, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}, "conv", (16, 16)),
    "of many taps": ((1, 20, 18, 8), (8, 8, 11, 7), {"padding": (5, 3, 5, 3)}, "conv", (16, 16)),
    "of more taps than bits": ((1, 30, 1, 8), (8, 8, 33, 1), {"padding": (16, 0, 16, 0)}, "conv", (16, 16)),
    "of few channels": ((2, 9, 9, 6), (12, 6, 3, 3), {"padding": (1, 1, 1, 1)}, "conv", (4, 4)),
    "in groups": ((2, 9, 9, 32), (48, 16, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}, "conv", (16, 16)),
    "of one element": ((2, 7, 7, 72), (40, 72, 1, 1), {}, "matmul", (16, 16)),
    "of one element, strided": ((2, 9, 7, 64), (40, 64, 1, 1), {"strides": (2, 2)}, "matmul", (16, 16)),
    "of lines": ((2, 40, 16), (24, 16, 5), {"padding": (2, 2)}, "conv", (16, 16)),
    "of volumes": ((1, 5, 6, 7, 8), (16, 8, 3, 3, 3), {"padding": (1,) * 6}, "conv", (16, 16)),
    "of many images": ((N, 6, 6, 8), (16, 8, 3, 3), {"padding": (1, 1, 1, 1)}, "conv", (16, 16)),
}


# Those of ResNet-50, whose machine code is counted.
LARGE: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "of 64 channels": ((32, 56, 56, 64), (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    "of 256 channels": ((32, 14, 14, 256), (256, 256, 3, 3), {"padding": (1, 1, 1, 1)}),
    "of 128 channels, strided": ((32, 56, 56, 128), (128, 128, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "of 1024 channels, of one element": ((32, 14, 14, 1024), (256, 1024, 1, 1), {}),
}


def channels_last_convolution(name: str, dtype: str) -> PrimFunc:
    """One of those, as one function; its filters are in the order in which they are read."""
    x, w, attributes, *_ = {**CHANNELS_LAST, **LARGE}[name]
    return between_permutations(x, w, dtype, **attributes)


def between_permutations(x: tuple[Any, ...], w: tuple[int, ...], dtype: str, **attributes: Any) -> PrimFunc:
    """A convolution between permutations."""
    rank = len(x)
    b = FunctionBuilder()
    first = b.op("permute_dims", b.input("x", x, dtype), axes=to_first(rank))
    y = b.op(f"nn.conv{rank - 2}d", first, whole(*w, dtype=dtype), **attributes)
    module = channels_last()(IRModule({"main": b.function(b.op("permute_dims", y, axes=to_last(rank)))}))
    (function,) = (each for each in module.functions.values() if isinstance(each, PrimFunc))
    return function


@pytest.fixture(scope="module")
def channels_last_convolutions() -> NativeCudaModule:
    """All of them as one program: see `convolutions`."""
    return generate(
        {f"{name}_{dtype}": channels_last_convolution(name, dtype) for name in CHANNELS_LAST for dtype in HALVES}
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_convolutions(emulator, channels_last_convolutions, name, dtype):
    x, w, _, rule, nbytes = CHANNELS_LAST[name]
    function = channels_last_convolution(name, dtype)
    assert rules_of(function) == [rule]
    filters = whole(*w, dtype=dtype).transpose(to_last(len(w)))
    for n in (1, 3) if N in x else (1,):
        image = whole(*(n if size == N else size for size in x), dtype=dtype)
        check_kernel(emulator, channels_last_convolutions, f"{name}_{dtype}", function, [image, filters], {"n": n})
    text = generate({"kernel": function}).image.source.split("// --- generated")[1]
    assert [int(found) for found in re.findall(r"cp_async<(\d+),", text)] == list(nbytes)
    assert "put_shared<" not in text


@pytest.mark.parametrize("dtype", HALVES)
def test_a_convolution_of_channels_last_copies_channels_sixteen_bytes_at_a_time(emulator, dtype):
    inside = "and(and(ge(add(h, r, -1), 0), lt(add(h, r, -1), 9)), and(ge(add(w, s, -1), 0), lt(add(w, s, -1), 7)))"
    inside = inside.replace("add(h, r, -1)", "sub(add(h, r), 1)").replace("add(w, s, -1)", "sub(add(w, s), 1)")
    function = parse_primfunc(f"""
input x: Tensor[(2, 9, 7, 16), {dtype}]
input filters: Tensor[(24, 3, 3, 16), {dtype}]
output y: Tensor[(2, 9, 7, 24), {dtype}]
local wide: Tensor[(2, 9, 7, 24), float32]
block conv(i: 2, h: 9, w: 7, f: 24, reduce r: 3, reduce s: 3, reduce c: 16) {{
  wide[i, h, w, f] = mul(select({inside}, cast(float32, x[i, sub(add(h, r), 1), sub(add(w, s), 1), c]), float32(0.0)), cast(float32, filters[f, r, s, c]))
  reducer sum
}}
block t(i: 2, h: 9, w: 7, f: 24) {{
  y[i, h, w, f] = cast({dtype}, max(wide[i, h, w, f], float32(0.0)))
}}""")
    assert rules_of(function) == ["conv"]
    inputs = [whole(2, 9, 7, 16, dtype=dtype), whole(24, 3, 3, 16, dtype=dtype)]
    text = check_module(emulator, function, inputs).image.source.split("// --- generated")[1]
    assert text.count("cp_async<16, ") == 2
    assert "put_shared<" not in text
    assert "put_pack<8, " in text


def test_padding_that_others_read_differently_stays_right(emulator):
    function = lower(
        "nn.max_pool2d", TensorType((1, 3, 9, 9), "float32"), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)
    )
    check_module(emulator, function, [random(1, 3, 9, 9)])


# --- attention --------------------------------------------------------------------------------------------------------
def attention(
    q: tuple[Any, ...], k: tuple[Any, ...], v: tuple[Any, ...], dtype: str, causal: str, bias: tuple[Any, ...] = ()
) -> PrimFunc:
    types = [TensorType(shape, dtype) for shape in (q, k, v, bias) if shape]
    return lower("nn.attention_bias" if bias else "nn.attention", *types, scale=None, causal=causal)


def numbers(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [random(*shape).astype(dtypes.to_numpy(dtype)) for shape in shapes]


CAUSAL = ("none", "top_left", "bottom_right")
ROWS = {"q": 20, "k": 70, "v": 70}
# Heads of queries, and of keys and values; elements of queries and keys, and of values.
ATTENTIONS = [(2, 2, 64, 64), (4, 2, 16, 24), (1, 1, 40, 128), (2, 1, 33, 7)]


def attention_of(sizes: tuple[int, int, int, int], causal: str, dtype: str) -> PrimFunc:
    heads, groups, size, wide = sizes
    return attention((2, N, heads, size), (2, N + 7, groups, size), (2, N + 7, groups, wide), dtype, causal)


@pytest.fixture(scope="module")
def attentions() -> NativeCudaModule:
    """All of them as one program: see `convolutions`."""
    cases = product(ATTENTIONS, CAUSAL, HALVES)
    return generate({f"{sizes}_{causal}_{dtype}": attention_of(sizes, causal, dtype) for sizes, causal, dtype in cases})


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("sizes", ATTENTIONS, ids=str)
def test_attention_is_one_kernel(emulator, attentions, dtype, causal, sizes):
    function = attention_of(sizes, causal, dtype)
    assert rules_of(function) == ["attention"]
    heads, groups, size, wide = sizes
    for n in (1, 20, 70, 128):
        given = numbers(dtype, (2, n, heads, size), (2, n + 7, groups, size), (2, n + 7, groups, wide))
        (found,) = run_on(emulator, attentions, f"{sizes}_{causal}_{dtype}", given, {"n": n})
        assert_close(found, evaluate(function, given, {"n": n})[0], dtype)


@pytest.mark.parametrize("heads_first", ["qkv", "kv"])
def test_attention_reads_operands_with_heads_first(emulator, heads_first):
    """As caches of keys and values lie, and as models have them that permute nothing."""
    b = FunctionBuilder()
    shapes = {name: (2, 2, rows, 32) if name in heads_first else (2, rows, 2, 32) for name, rows in ROWS.items()}
    operands = [b.input(name, shape, "float16") for name, shape in shapes.items()]
    permuted = [b.op("permute_dims", x, axes=(0, 2, 1, 3)) if x.name in heads_first else x for x in operands]
    after = FuseTransposeMatmul()(IRModule({"main": b.function(b.op("nn.attention", *permuted))}))
    (function,) = (each for each in after.functions.values() if isinstance(each, PrimFunc))
    assert rules_of(function) == ["attention"]
    check_module(emulator, function, numbers("float16", *shapes.values()))


@pytest.mark.parametrize("bias", [(1, 2, 20, 130), (3, 1, 1, 130), (1, 1, 20, 1)])
def test_a_bias_is_added_to_scores_in_registers(emulator, bias):
    function = attention((3, 20, 2, 32), (3, 130, 2, 32), (3, 130, 2, 32), "float16", "none", bias)
    assert rules_of(function) == ["attention"]
    check_module(emulator, function, numbers("float16", (3, 20, 2, 32), (3, 130, 2, 32), (3, 130, 2, 32), bias))


def test_rows_that_see_nothing_are_no_numbers(emulator):
    function = attention((1, 20, 1, 16), (1, 8, 1, 16), (1, 8, 1, 16), "float16", "bottom_right")
    given = numbers("float16", (1, 20, 1, 16), (1, 8, 1, 16), (1, 8, 1, 16))
    (found,) = run_on(emulator, generate({"kernel": function}), "kernel", given)
    assert np.isnan(found[0, :12]).all()
    assert_close(found[0, 12:], evaluate(function, given)[0][0, 12:], "float16")


@pytest.mark.parametrize(
    ("q", "k", "dtype", "words"),
    [
        ((1, 20, 2, 32), (1, 40, 2, 32), "float32", "tensor cores do not support"),
        ((1, 20, 2, 160), (1, 40, 2, 160), "float16", "more than 128 elements"),
        ((1, 4, 2, 32), (1, 40, 2, 32), "float16", "fewer than 16 queries"),
    ],
)
def test_other_attention_is_several_kernels_and_says_why(emulator, q, k, dtype, words):
    function = attention(q, k, k, dtype, "none")
    choices = schedule(function, "kernel", ANY_MACHINE).choices
    assert words in dict(choices[0])["attention"]
    assert len(choices) > 1
    check_module(emulator, function, numbers(dtype, q, k, k))


def test_a_step_of_decoding_reads_keys_and_values_as_matrices(emulator):
    function = attention((1, 1, 4, 64), (1, N, 2, 64), (1, N, 2, 64), "float16", "bottom_right")
    assert rules_of(function) == ["low_batch_gemv", "general_reduction", "low_batch_gemv"]  # two heads for each group
    for n in (1, 33, 200):
        check_module(emulator, function, numbers("float16", (1, 1, 4, 64), (1, n, 2, 64), (1, n, 2, 64)), {"n": n})
