"""Operators of the domain com.microsoft against onnxruntime, over spreads of their attributes and left-out inputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from microsoft_cases import MICROSOFT, RNG, Case, Inputs, assert_agrees, case, f, i8, i32, model_of, number, u8
from onnx import helper

import kernelyard as ky
from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.session import Session


def spread(**choices: Any) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


B, S, T, N, H = 2, 5, 3, 4, 8
D = N * H
HIDDEN = "keys, one hidden everywhere"
MASKS = {
    "none": None,
    "lengths": i32(3, 5),
    "ends and begins": i32(4, 5, 1, 0),
    "keys": i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 1]),
    HIDDEN: i32([0, 0, 0, 0, 0], [0, 1, 1, 1, 1]),
    "rows": RNG.integers(0, 2, (B, S, S)).astype(np.int32),
}


def round_to_halves(x: np.ndarray) -> np.ndarray:
    """Return numbers whose sums of products are exact, in whatever order they are added."""
    return np.round(2 * x) / 2


def attention_cases() -> list[Case]:
    cases = []
    for mask, unidirectional, scale in itertools.product(MASKS, (0, 1), (None, 0.3)):
        attrs = {"num_heads": N, "unidirectional": unidirectional} | ({} if scale is None else {"scale": scale})
        inputs = {"x": f(B, S, 12), "w": f(12, 3 * D), "wb": f(3 * D)}
        if mask == HIDDEN:  # a score of -10,000 keeps three digits of what is added to it: these are to be the same
            inputs = {name: round_to_halves(each) for name, each in inputs.items()}
        inputs["m"] = MASKS[mask]
        cases.append(Case("Attention", inputs, attrs))
    whole = {"x": f(B, S, 12), "w": f(12, 3 * D), "wb": f(3 * D)}
    past = f(2, B, N, T, H)
    keys = RNG.integers(0, 2, (B, S + T)).astype(np.int32)
    for m, unidirectional in itertools.product((None, keys), (0, 1)):
        inputs = {**whole, "m": m, "past": past}
        cases.append(Case("Attention", inputs, {"num_heads": N, "unidirectional": unidirectional}, ("y", "present")))
    sizes = {"num_heads": N, "qkv_hidden_sizes": [16, 16, 24]}
    cases.append(Case("Attention", {"x": f(B, S, 12), "w": f(12, 56), "wb": f(56)}, sizes))
    bias = {"m": MASKS["keys"], "past": None, "bias": f(1, N, S, S)}
    cases.append(Case("Attention", {**whole, **bias}, {"num_heads": N, "unidirectional": 1}))
    cases.append(
        Case("Attention", {**whole, "m": MASKS["keys"]}, {"num_heads": N, "mask_filter_value": -100.0}, ("y",))
    )
    quantized = {"x": u8(B, S, 12), "w": i8(12, 3 * D), "b": f(3 * D), "s": number(0.01), "ws": number(0.02)}
    for m, zero, past_ in itertools.product((None, MASKS["lengths"]), (None, number(120, np.uint8)), (None, past)):
        if past_ is not None and m is not None:
            continue
        rest = {"m": m, "z": zero, "wz": None, "past": past_}
        outputs = ("y",) if past_ is None else ("y", "present")
        cases.append(Case("QAttention", {**quantized, **rest}, {"num_heads": N, "unidirectional": 1}, outputs, 1e-4))
    return cases


def multi_head_cases() -> list[Case]:
    cases = []
    lengths = {"same": S, "cross": 7}
    for kind, bias, mask, unidirectional in itertools.product(lengths, (False, True), ("none", "keys"), (0, 1)):
        length = lengths[kind]
        hidden = RNG.integers(0, 2, (B, length)).astype(np.int32)
        hidden[:, 0] = 1
        inputs = {"q": f(B, S, D), "k": f(B, length, D), "v": f(B, length, 2 * D), "b": f(4 * D) if bias else None}
        inputs |= {"m": hidden if mask == "keys" else None}
        if unidirectional and kind == "cross":
            continue
        cases.append(Case("MultiHeadAttention", inputs, {"num_heads": N, "unidirectional": unidirectional}))
    q, k, v = f(B, S, D), f(B, S, D), f(B, S, D)
    state = {"pk": f(B, N, T, H), "pv": f(B, N, T, H)}
    for bias, wide, unidirectional in itertools.product((None, f(3 * D)), (None, f(B, 1, S, S + T)), (0, 1)):
        inputs = {"q": q, "k": k, "v": v, "b": bias, "m": None, "a": wide, **state}
        attrs = {"num_heads": N, "unidirectional": unidirectional, "scale": 0.4}
        cases.append(Case("MultiHeadAttention", inputs, attrs, ("y", "pk_", "pv_")))
    made = {"q": q, "k": f(B, N, 6, H), "v": f(B, N, 6, H)}
    cases.append(Case("MultiHeadAttention", made, {"num_heads": N}))
    return cases


def grouped_cases() -> list[Case]:
    cases = []
    few, rows, size, width = 2, 4, 16, N * 16
    angles = np.outer(np.arange(32), 1 / 100 ** (np.arange(size // 2) / (size // 2)))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    # (rows, in the state, room in the state, how many keys each sequence has)
    stages = {
        "first": (rows, 0, 0, [rows, rows]),
        "first, padded": (rows, 0, 0, [rows, rows - 1]),
        "next": (1, 6, 6, [7, 7]),
        "next, of different lengths": (1, 6, 6, [7, 5]),
        "next, in a buffer": (1, 6, 16, [7, 4]),
        "first, in a buffer": (rows, 0, 16, [rows, rows]),
    }
    options = [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"local_window_size": 3},
        {"softcap": 2.0, "scale": 0.5},
        {"smooth_softmax": 1},
    ]
    for (name, (count, _, room, keys)), option, packed in itertools.product(stages.items(), options, (False, True)):
        if packed and (name != "next" or len(option) > 1):
            continue
        inputs: Inputs = {"q": f(B, count, width + (2 * few * size if packed else 0))}
        inputs |= {"k": None, "v": None} if packed else {"k": f(B, count, few * size), "v": f(B, count, few * size)}
        inputs |= {"pk": f(B, few, room, size), "pv": f(B, few, room, size)}
        inputs |= {"wn": i32(*(n - 1 for n in keys)), "wt": i32(max(keys))}
        inputs |= tables if option.get("do_rotary") else {}
        attrs = {"num_heads": N, "kv_num_heads": few, **option}
        cases.append(Case("GroupQueryAttention", inputs, attrs, ("y", "pk_", "pv_")))
    inputs = {
        "q": f(B, 1, width),
        "k": f(B, 1, few * size),
        "v": f(B, 1, few * size),
        "pk": f(B, few, 6, size),
        "pv": f(B, few, 6, size),
    }
    inputs |= {"wn": i32(6, 6), "wt": i32(7)}
    nothing = {"cos": None, "sin": None, "p": None}
    attrs = {"num_heads": N, "kv_num_heads": few}
    cases.append(Case("GroupQueryAttention", {**inputs, **nothing, "a": f(B, N, 1, 7)}, attrs, ("y", "pk_", "pv_")))
    sink = {"a": None, "sink": f(N)}
    cases.append(Case("GroupQueryAttention", {**inputs, **nothing, **sink}, attrs, ("y", "pk_", "pv_")))
    return cases


def rotary_cases() -> list[Case]:
    angles = np.outer(np.arange(16), 1 / 10 ** np.arange(4))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, each = np.array([3]), RNG.integers(0, 16, (B, S))
    cases = []
    for interleaved, at in itertools.product((0, 1), (first, each)):
        for x, attrs in (
            (f(B, S, D), {}),
            (f(B, N, S, 8), {}),
            (f(B, S, 48), {"num_heads": N, "rotary_embedding_dim": 8}),
            (f(B, N, S, 12), {"num_heads": N, "rotary_embedding_dim": 8}),
        ):
            inputs = {"x": x, "p": at, "wc": cos, "ws": sin}
            cases.append(Case("RotaryEmbedding", inputs, {"interleaved": interleaved, **attrs}))
    return cases


def embedding_cases() -> list[Case]:
    words = RNG.integers(0, 9, (B, S)).astype(np.int32)
    kinds, at = RNG.integers(0, 2, (B, S)).astype(np.int32), RNG.integers(0, 6, (B, S)).astype(np.int32)
    tables = {"ww": f(9, 16), "wp": f(6, 16)}
    norm = {"wg": f(16), "wb": f(16)}
    cases = []
    for with_kinds, mask, positions in itertools.product((True, False), (None, MASKS["keys"]), (None, at)):
        inputs = {"x": words, "s": kinds if with_kinds else None, **tables, "wk": f(2, 16) if with_kinds else None}
        inputs |= {**norm, "m": mask, "p": positions}
        outputs = ("y", "count", "total")
        cases.append(Case("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs))
    return cases


def few_bits_cases() -> list[Case]:
    cases = []
    for bits, k, block, zeros, bias in itertools.product(
        (4, 8, 2), (32, 40), (16, 32), ("none", "bytes", "floats"), (False, True)
    ):
        n, blocks = 6, -(-k // block)
        inputs: Inputs = {"x": f(2, 3, k), "w": u8(n, blocks, block * bits // 8), "ws": np.abs(f(n * blocks)) / 2**bits}
        given = {"none": None, "bytes": u8(n * -(-blocks * bits // 8)), "floats": 2 * np.abs(f(n * blocks))}
        if bits != 4 and zeros == "floats":  # onnxruntime has it for 4 alone
            continue
        inputs |= {"wz": given[zeros], "wg": None, "wb": f(n) if bias else None}
        attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
        cases.append(Case("MatMulNBits", inputs, attrs, atol=1e-4))
        if bits != 2 and zeros != "floats":
            cases.append(Case("MatMulNBits", inputs, {**attrs, "accuracy_level": 4}, atol=1e-5))
    for bits, zeros in itertools.product((4, 8), (False, True)):
        width = 32 * bits // 8
        inputs = {"w": u8(7, width), "x": RNG.integers(0, 7, (2, 3)), "ws": np.abs(f(7, 2))}
        inputs |= {"wz": u8(7, 2 * bits // 8) if zeros else None}
        cases.append(Case("GatherBlockQuantized", inputs, {"block_size": 16, "bits": bits}))
    return cases


def quantized_cases() -> list[Case]:
    def pair(name: str, scale: float, zero: int | None, dtype: Any = np.uint8) -> Inputs:
        return {f"w{name}s": number(scale), f"w{name}z": None if zero is None else number(zero, dtype)}

    cases = []
    for make, dtype, zero in ((u8, np.uint8, 120), (i8, np.int8, -5)):
        a, b = pair("a", 0.02, zero, dtype), pair("b", 0.03, zero + 3, dtype)
        y = pair("y", 0.05, zero - 1, dtype)
        for op in ("QLinearAdd", "QLinearMul"):
            cases.append(Case(op, {"x": make(3, 4), **a, "b": make(4), **b, **y}, {}, atol=1.01))
        erf, unit = pair("a", 2 / 255, 128 if dtype is np.uint8 else 0, dtype), pair("b", 1 / 255, 0, dtype)
        total = pair("y", 2 / 255, 0 if dtype is np.uint8 else -128, dtype)
        ones = {"wb": number(255 if dtype is np.uint8 else 127, dtype)}
        cases.append(Case("QLinearAdd", {"x": make(16, 30), **erf, **ones, **unit, **total}, {}, atol=0))
        cases.append(Case("QLinearSigmoid", {"x": make(3, 4), **a, **pair("y", 1 / 256, 0, dtype)}, {}, atol=1.01))
        cases.append(Case("QLinearLeakyRelu", {"x": make(3, 4), **a, **y}, {"alpha": 0.3}, atol=1.01))
        for (opset, axis), largest in itertools.product(((11, 1), (13, 1), (13, -1)), (255 / 256, 1.0, 0.8)):
            scale = pair("y", largest / 255, 0 if dtype is np.uint8 else -128, dtype)
            attrs = {"opset": opset, "axis": axis}
            cases.append(Case("QLinearSoftmax", {"x": make(2, 30, 4), **a, **scale}, attrs, atol=0))
        cases.append(
            Case("QLinearWhere", {"c": make(3, 4) > 0, "x": make(3, 4), **a, "b": make(4), **b, **y}, {}, atol=1.01)
        )
        for last, extra in itertools.product(
            (0, 1), ({}, {"pads": [1, 0, 1, 2], "count_include_pad": 1}, {"ceil_mode": 1})
        ):
            x = make(1, 6, 7, 4) if last else make(1, 4, 6, 7)
            attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "channels_last": last, **extra}
            cases.append(Case("QLinearAveragePool", {"x": x, **a, **y}, attrs, atol=1.01))
            cases.append(Case("QLinearGlobalAveragePool", {"x": x, **a, **y}, {"channels_last": last}, atol=1.01))
        cases.append(Case("QLinearConcat", {**y, "x": make(2, 3), **a, "b": make(2, 4), **b}, {"axis": 1}, atol=1.01))
        for last in (0, 1):
            x = make(1, 6, 7, 4) if last else make(1, 4, 6, 7)
            weight = {"wk": i8(6, 4, 3, 3) if dtype is np.uint8 else make(6, 4, 3, 3), "wks": number(0.01)}
            weight |= {"wkz": number(0, np.int8)}
            attrs = {"channels_last": last, "pads": [1, 1, 1, 1], "strides": [2, 1]}
            y_ = pair("y", 2.0, zero, dtype)
            cases.append(Case("QLinearConv", {"x": x, **a, **weight, **y_, "wb": i32(*range(6))}, attrs, atol=1.01))
        cases.append(Case("NhwcMaxPool", {"x": make(1, 6, 7, 4)}, {"kernel_shape": [3, 3], "strides": [2, 2]}))
        whole = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "dilations": [2, 1], "ceil_mode": 1}
        cases.append(Case("NhwcMaxPool", {"x": make(1, 6, 7, 4)}, whole))
        for ta, tb, alpha, c, out in itertools.product((0, 1), (0, 1), (1.0, 0.5), (False, True), (False, True)):
            left = make(5, 3) if ta else make(3, 5)
            right = make(4, 5) if tb else make(5, 4)
            inputs = {"x": left, **a, "wr": right, **b, "wc": i32(*range(4)) if c else None}
            inputs |= pair("y", 3.0, zero, dtype) if out else {}
            attrs = {"transA": ta, "transB": tb, "alpha": alpha}
            cases.append(Case("QGemm", inputs, attrs, atol=1.01 if out else 1e-3))
        stored = {"x": make(3, 5), "wr": make(5, 4), "was": number(0.02), "wbs": np.abs(f(4))}
        stored |= {"waz": number(zero, dtype), "wbz": make(4), "wb": f(4)}
        cases.append(Case("MatMulIntegerToFloat", stored, {}, atol=1e-3))
        cases.append(Case("MatMulIntegerToFloat", {**stored, "waz": None, "wbz": None, "wb": None}, {}, atol=1e-3))
        dynamic = {"x": f(3, 5), "wr": make(5, 4), "wbs": np.abs(f(4)) / 9, "wbz": make(4), "wb": f(4)}
        cases.append(Case("DynamicQuantizeMatMul", dynamic, {}, atol=1e-3))
        cases.append(Case("DequantizeLinear", {"x": make(3, 4), **a}, {}))
        cases.append(Case("QuantizeLinear", {"x": f(3, 4), **a}, {}))
        per_axis = {"ws": np.abs(f(4)) + 0.1, "wz": make(4)}
        cases.append(Case("DequantizeLinear", {"x": make(3, 4), **per_axis}, {"axis": 1}))
        cases.append(Case("QuantizeLinear", {"x": 9 * f(3, 4), **per_axis}, {"axis": 1}))
    wide = {"x": RNG.integers(0, 2**16, (3, 4)).astype(np.uint16), "ws": number(0.01), "wz": number(3, np.uint16)}
    cases.append(Case("DequantizeLinear", wide, {}))
    cases.append(
        Case(
            "MatMulInteger16",
            {"x": i32(*range(6)).astype(np.int16).reshape(2, 3), "w": i32(*range(9)).astype(np.int16).reshape(3, 3)},
            {},
        )
    )
    for direction, per_gate in itertools.product(("forward", "reverse", "bidirectional"), (False, True)):
        count, hidden = 2 if direction == "bidirectional" else 1, 4
        scale = (count, 4 * hidden) if per_gate else (count,)
        inputs = {
            "x": f(S, B, 6),
            "w": i8(count, 6, 4 * hidden),
            "wr": i8(count, hidden, 4 * hidden),
            "wb": f(count, 8 * hidden),
        }
        inputs |= {"l": None, "h": f(count, B, hidden), "c": f(count, B, hidden), "p": None}
        inputs |= {
            "ws": np.abs(f(*scale)) / 128,
            "wz": np.zeros(scale, np.int8),
            "wrs": np.abs(f(*scale)) / 128,
            "wrz": np.zeros(scale, np.int8),
        }
        attrs = {"hidden_size": hidden, "direction": direction}
        cases.append(Case("DynamicQuantizeLSTM", inputs, attrs, ("y", "h_", "c_"), 0.05))
    return cases


def embedding_of_bytes() -> Case:
    inputs = {"x": RNG.integers(0, 9, (B, S)).astype(np.int32), "s": RNG.integers(0, 2, (B, S)).astype(np.int32)}
    inputs |= {"ww": u8(9, 16), "wp": u8(6, 16), "wk": u8(2, 16), "wg": u8(16), "wb": u8(16), "m": MASKS["keys"]}
    inputs |= {f"ws{index}": number(0.01 * (index + 1)) for index in range(5)}
    inputs |= {f"wz{index}": number(100 + index, np.uint8) for index in range(5)}
    return Case("QEmbedLayerNormalization", inputs, {"epsilon": 1e-5}, ("y", "count"), 1e-4)


def product_cases() -> list[Case]:
    cases = []
    for a, b, alpha in itertools.product((0, 1), (0, 1), (1.0, 0.25)):
        for batch_a, batch_b in itertools.product((0, 1), (0, 1)):
            shapes = []
            for batched, transposed, (rows, columns) in ((batch_a, a, (3, 4)), (batch_b, b, (4, 5))):
                shape = (columns, rows) if transposed else (rows, columns)
                shapes.append((shape[0], 2, shape[1]) if batched else (2, *shape))
            attrs = {"transA": a, "transB": b, "alpha": alpha, "transBatchA": batch_a, "transBatchB": batch_b}
            cases.append(Case("FusedMatMul", {"x": f(*shapes[0]), "w": f(*shapes[1])}, attrs))
        attrs = {"transA": a, "transB": b, "alpha": alpha}
        cases.append(
            Case("TransposeMatMul", {"x": f(*((4, 3) if a else (3, 4))), "w": f(*((5, 4) if b else (4, 5)))}, attrs)
        )
    for name, numbers in {
        "Relu": (),
        "LeakyRelu": (0.2,),
        "Sigmoid": (),
        "Tanh": (),
        "HardSigmoid": (0.3, 0.4),
        "Elu": (0.7,),
        "Softplus": (),
        "Softsign": (),
    }.items():
        attrs = {"activation": name, **dict(zip(("activation_alpha", "activation_beta"), numbers, strict=False))}
        cases.append(Case("FusedGemm", {"x": f(3, 4), "w": f(5, 4), "wc": f(5)}, {**attrs, "transB": 1, "beta": 0.5}))
    for name, numbers in {
        "Relu": [],
        "LeakyRelu": [0.2],
        "Sigmoid": [],
        "Tanh": [],
        "Clip": [-0.5, 0.5],
        "HardSigmoid": [0.3, 0.4],
    }.items():
        attrs = {"activation": name, "pads": [1, 1, 1, 1]} | ({"activation_params": numbers} if numbers else {})
        for residual in (None, f(1, 6, 5, 5)) if name == "Relu" else (None,):
            inputs = {"x": f(1, 4, 5, 5), "w": f(6, 4, 3, 3), "wb": f(6), "r": residual}
            cases.append(Case("FusedConv", inputs, attrs))
    return cases


CASES = [
    *(case(op, x=3 * f(3, 4)) for op in ("Gelu", "FastGelu", "QuickGelu")),
    case("QuickGelu", x=f(3, 4), alpha=0.7),
    case("BiasGelu", x=f(2, 3, 4), b=f(4)),
    case("FastGelu", x=f(2, 3, 4), b=f(4)),
    case("LayerNormalization", x=f(2, 3, 4), w=f(4), wb=f(4), domain="", outputs="y mean inv"),
    case("SimplifiedLayerNormalization", x=f(2, 3, 4), w=f(4), domain="", axis=-1),
    *(
        case("SkipLayerNormalization", x=f(2, 3, 4), skip=skip, w=f(4), wb=wb, wbias=bias, outputs="y   ".strip())
        for skip, wb, bias in itertools.product((f(2, 3, 4), f(1, 3, 4), f(3, 4)), (None, f(4)), (None, f(4)))
    ),
    *(
        case("SkipSimplifiedLayerNormalization", x=f(2, 3, 4), skip=f(2, 3, 4), w=f(4), wbias=bias, epsilon=1e-4)
        for bias in (None, f(4))
    ),
    *attention_cases(),
    *multi_head_cases(),
    *grouped_cases(),
    *rotary_cases(),
    *embedding_cases(),
    embedding_of_bytes(),
    *few_bits_cases(),
    *quantized_cases(),
    *product_cases(),
    case("Inverse", x=f(4, 4), atol=1e-3),
    case("Inverse", x=f(2, 3, 5, 5), atol=1e-2),
    case("Inverse", x=np.array([[0, 1], [1, 0]], np.float32)),
    *(
        case("Trilu", x=f(3, 4), upper=upper, **({} if k is None else {"wk": np.array(k)}))
        for upper, k in itertools.product((0, 1), (None, 1, -1))
    ),
    case("Unique", x=np.array([2, 1, 1, 3, 2], np.float32), outputs="y at count"),
    case("GatherND", x=f(3, 4, 5), i=np.array([[0, 1], [2, 3]])),
    *(case("CDist", x=f(3, 4), b=f(5, 4), metric=metric, atol=1e-4) for metric in ("euclidean", "sqeuclidean")),
    case("ExpandDims", x=f(3, 4), w=number(1, np.int32)),
    case("ExpandDims", x=f(3, 4), w=number(-1, np.int32)),
    case("Pad", x=f(3, 4), w=np.array([1, 0, 2, 3]), wv=np.array([0.5], np.float32)),
    case("Pad", x=f(3, 4), w=np.array([1, 0, 2, 3]), mode="reflect"),
    case("Range", w=number(1), wl=number(9), wd=number(2)),
    case("Range", w=number(1, np.int32), wl=number(9, np.int32)),
    case("GridSample", x=f(1, 2, 4, 5), g=f(1, 3, 3, 2), mode="bilinear", padding_mode="border", align_corners=1),
    case("UnfoldTensor", x=f(3, 9), size=3, step=2),
    case("UnfoldTensor", x=f(9, 4), size=4, step=1, dim=0),
    case("ConvTransposeWithDynamicPads", x=f(1, 3, 5, 5), w=f(3, 2, 3, 3), wp=np.array([1, 0, 1, 1]), strides=[2, 2]),
    *(case("ScaledSiLU", x=f(3, 4), alpha=0.7, ws=scale) for scale in (None, number(1.3))),
    *(case("GatedRMSNorm", x=f(2, 3, 8), w=f(4), g=f(2, 3, 8), activation=name) for name in ("silu", "sigmoid")),
    case(
        "MatMulNBits",
        x=f(2, 64),
        w=u8(6, 2, 16),
        ws=np.abs(f(12)),
        wz=None,
        wg=RNG.integers(0, 2, 64).astype(np.int32),
        K=64,
        N=6,
        bits=4,
        block_size=32,
        atol=1e-4,
    ),
    *(
        case("MatMulBnb4", x=f(2, 3, 32), w=u8(7 * 16), ws=np.abs(f(14)), K=32, N=7, block_size=16, quant_type=kind)
        for kind in (0, 1)
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_onnxruntime(case: Case, make, agree) -> None:
    model, data = model_of(case, make)
    agree(model, data, rtol=1e-4, atol=case.atol)


COMPILED = {case.op: case for case in CASES if case.op not in ("Inverse", "Unique")}


@pytest.mark.parametrize("case", COMPILED.values(), ids=list(COMPILED))
def test_compiled(case: Case, make) -> None:
    """One of each operator, through the code generator."""
    assert_agrees(case, make)


def decoder(few: int, size: int) -> onnx.ModelProto:
    """Attention of a text that is written on, as exporters write it: the mask says how long the text is."""
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=onnx.TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"], axis=0),
        helper.make_node("Cast", ["length"], ["total"], to=onnx.TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "pk", "pv", "seqlens", "total", "cos", "sin"],
            ["y", "pk_", "pv_"],
            domain=MICROSOFT,
            num_heads=4,
            kv_num_heads=few,
            do_rotary=1,
        ),
    ]
    float_, shapes = onnx.TensorProto.FLOAT, {"q": ["b", "s", 4 * size], "pk": ["b", few, "past", size]}
    shapes |= {name: ["b", "s", few * size] for name in "kv"} | {"pv": shapes["pk"]}
    inputs = [helper.make_tensor_value_info(name, float_, shapes[name]) for name in ("q", "k", "v", "pk", "pv")]
    inputs.append(helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, ["b", "t"]))
    outputs = [helper.make_tensor_value_info(name, float_, None) for name in ("y", "pk_", "pv_")]
    angles = np.outer(np.arange(32), 1 / 10 ** (np.arange(size // 2) / size)).astype(np.float32)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles), "one": np.array([1])}
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_text_that_is_written_on_is_one_program() -> None:
    few, size = 2, 16
    model = decoder(few, size)
    ours, theirs = Session(model, []), onnxruntime.InferenceSession(model.SerializeToString())
    assert ours.executable is not None
    for batch in (1, 3):
        state = {"pk": f(batch, few, 0, size), "pv": f(batch, few, 0, size)}
        for rows in (5, 1, 1):
            mask = np.ones((batch, state["pk"].shape[2] + rows), np.int64)
            feeds = {"q": f(batch, rows, 4 * size), "k": f(batch, rows, few * size), "v": f(batch, rows, few * size)}
            feeds |= {**state, "mask": mask}
            expected = theirs.run(None, feeds)
            for found, wanted in zip(ours.run(feeds), expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
            state = {"pk": expected[1], "pv": expected[2]}


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_attention_of_open_sizes(op, make) -> None:
    inputs: Inputs = {"q": f(B, S, 12), "w": f(12, 3 * D), "wb": f(3 * D), "m": MASKS["keys"]}
    if op == "MultiHeadAttention":
        inputs = {"q": f(B, S, D), "k": f(B, S, D), "v": f(B, S, D), "wb": f(3 * D), "m": MASKS["keys"]}
    case = Case(op, inputs, {"num_heads": N, "unidirectional": 1})
    shapes = {name: ["b", "s", *array.shape[2:]] for name, array in inputs.items() if array is not None}
    model, data = model_of(case, make, shapes)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    session = Session(model, [])
    assert session.executable is not None
    np.testing.assert_allclose(session.run(data)[0], expected, rtol=1e-4, atol=1e-5)


REFUSED = {
    "past_present_share_buffer": ("Attention", {"past_present_share_buffer": 1}),
    "qk_output": ("GroupQueryAttention", {"qk_output": 1, "kv_num_heads": 1}),
    "a quantized KV cache": ("GroupQueryAttention", {"k_quant_type": "PER_TENSOR", "kv_num_heads": 1}),
    "cannot be shared by": ("MultiHeadAttention", {"num_heads": 5}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason, make) -> None:
    op, attrs = REFUSED[reason]
    inputs: Inputs = {"q": f(B, S, 12), "w": f(12, 12)} if op == "Attention" else {name: f(B, S, 12) for name in "qkv"}
    model, _ = model_of(Case(op, inputs, {"num_heads": 1, **attrs}), make)
    with pytest.raises(UnsupportedOperatorError, match=reason):
        Session(model, [])


@pytest.mark.parametrize("level", [1, 4])
def test_an_accuracy_level_allows_products_of_integers(make, level: int) -> None:
    attrs = {"K": 256, "N": 96, "bits": 4, "block_size": 32, "accuracy_level": level}
    inputs: Inputs = {"x": f(3, 256), "w": u8(96, 8, 16), "ws": np.abs(f(96 * 8))}
    model, data = model_of(Case("MatMulNBits", inputs, attrs), make)
    exe = ky.compile(model, backends=[])
    assert [kernel.ops[0] for kernel in exe.report.kernels] == (
        ["fake_quantize", "dequantize"] if level == 4 else ["dequantize"]
    )
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    (found,) = exe.run(data).values()
    # A rounding to int8 is a hundredth of the result; equal roundings leave those of float32.
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
