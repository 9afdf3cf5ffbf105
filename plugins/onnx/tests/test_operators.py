"""Each operator against onnxruntime, with fixed sizes and with symbolic ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper

from kernelyard.dims import SymbolicDim

RNG = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def scales(names: str) -> dict[str, np.ndarray]:
    """A scale and a zero point per name: "as", "az", "bs", ..."""
    pairs = [
        ((f"{name}s", np.float32(0.02 + 0.01 * i)), (f"{name}z", np.uint8(100 + i))) for i, name in enumerate(names)
    ]
    return dict(entry for pair in pairs for entry in pair)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node. `fixed` are inputs that are weights; positions follow `order` when given."""

    op: str
    data: dict[str, np.ndarray]
    fixed: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    order: tuple[str, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    symbolic: bool = True

    @property
    def label(self) -> str:
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}-{self.opset}-{'x'.join(str(a.ndim) for a in self.data.values())}-{attrs}"[:90]


def case(op: str, *data: np.ndarray, opset: int = 17, outputs: int = 1, symbolic: bool = True, **rest: Any) -> Case:
    fixed = rest.pop("fixed", {})
    order = rest.pop("order", ())
    return Case(op, {f"x{i}": a for i, a in enumerate(data)}, fixed, opset, outputs, order, rest, symbolic)


image = f(2, 3, 9, 11)
NONE = np.zeros(0, np.float32)
MS = "com.microsoft"
CASES = [
    # --- opset 7 and its successors: attributes that became inputs ---
    case("Clip", f(3, 4), opset=7, min=-0.5, max=0.5),
    case("Clip", f(3, 4), opset=13, fixed={"lo": np.float32(-0.5), "hi": np.float32(0.5)}),
    case("Clip", f(3, 4), opset=13, fixed={"hi": np.array(0.5, np.float32)}, order=("x0", "", "hi")),
    case("Clip", RNG.integers(-9, 9, (3, 4)), opset=13, fixed={"lo": np.array(-2), "hi": np.array(3)}),
    case("Clip", f(3, 4), np.float32(0.25), opset=13),
    case("Pad", image, opset=7, pads=[0, 0, 1, 2, 0, 0, 3, 4], value=1.5),
    case("Pad", image, opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 4], mode="reflect"),
    case("Pad", image, opset=13, fixed={"p": i64(0, 0, 1, 2, 0, 0, 3, 4), "v": np.float32(2.5)}),
    case("Pad", image, opset=13, fixed={"p": i64(0, 0, -1, 2, 0, 0, 3, -2)}),
    case("Pad", image, opset=18, fixed={"p": i64(1, 2, 3, 0), "v": np.float32(0), "a": i64(-1, 2)}, mode="edge"),
    case("Slice", image, opset=7, starts=[1, -3], ends=[9, -1], axes=[2, 3]),
    case("Slice", image, opset=9, starts=[0, 1], ends=[1, 2**31 - 1]),
    case("Slice", image, fixed={"s": i64(1, -1), "e": i64(2**62, -(2**62)), "a": i64(2, 3), "t": i64(2, -2)}),
    case("Slice", image, fixed={"s": i64(-100), "e": i64(3), "a": i64(-1)}),
    case("Slice", image, fixed={"s": i64(7), "e": i64(3), "a": i64(2)}, symbolic=False),
    case("Slice", f(2, 0), fixed={"s": i64(-1), "e": i64(-100), "a": i64(1), "t": i64(-1)}, symbolic=False),
    case("Squeeze", f(2, 1, 3, 1), opset=7, axes=[1, 3]),
    case("Squeeze", f(2, 1, 3, 1), fixed={"a": i64(-1, 1)}),
    case("Squeeze", f(2, 1, 3, 1), symbolic=False),
    case("Unsqueeze", f(2, 3), opset=7, axes=[0, 3]),
    case("Unsqueeze", f(2, 3), fixed={"a": i64(-1, 0)}),
    case("ReduceSum", image, opset=7, axes=[1, -1], keepdims=0),
    case("ReduceSum", image, fixed={"a": i64(-1, 1)}),
    case("ReduceSum", image, keepdims=0),
    case("ReduceSum", image, noop_with_empty_axes=1),
    *(case(op, image, opset=11, axes=[2, 3]) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")),
    case("ReduceMean", np.full((2, 3), 2**30, np.int32), opset=13, axes=[1]),
    *(case(op, image, opset=18, fixed={"a": i64(1)}, keepdims=0) for op in ("ReduceMean", "ReduceMax", "ReduceMin")),
    *(case(op, image, opset=13, axes=[-1]) for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")),
    case("ReduceLogSum", np.abs(image) + 1, opset=13, axes=[1], keepdims=0),
    case("ReduceLogSumExp", image * 100, opset=13, axes=[1, 2], keepdims=0),
    *(case(op, np.array([[3, 4], [6, 8]], np.int32), opset=13, axes=[1]) for op in ("ReduceL2", "ReduceLogSum")),
    case("ReduceLogSumExp", np.array([[3, 4], [6, 8]]), opset=18, fixed={"a": i64(-1)}),
    case("Split", f(6, 4), opset=7, outputs=3, axis=0, symbolic=False),
    case("Split", f(6, 4), opset=7, outputs=2, axis=0, split=[2, 4]),
    case("Split", f(6, 7), fixed={"s": i64(3, 4)}, outputs=2, axis=-1),
    case("Split", f(7, 2), opset=18, outputs=3, num_outputs=3, symbolic=False),
    case("Upsample", image, opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", image, opset=9, fixed={"s": np.array([1, 1, 2, 1.5], np.float32)}, mode="linear"),
    case("TopK", f(4, 9), opset=7, outputs=2, k=3),
    case("TopK", f(4, 9), fixed={"k": i64(4)}, outputs=2, largest=0, axis=0),
    case("Dropout", f(3, 4), opset=7, ratio=0.3),
    case("Dropout", f(3, 4), fixed={"r": np.float32(0.3)}),
    case("Softmax", f(2, 3, 4), opset=11, axis=1),
    case("Softmax", f(2, 3, 4), opset=11),
    case("LogSoftmax", f(2, 3, 4), opset=11, axis=2),
    case("Softmax", f(2, 3, 4), axis=1),
    case("LogSoftmax", f(2, 3, 4)),
    case("Hardmax", f(2, 3, 4), opset=13, axis=-1),
    case("Hardmax", f(2, 3, 4), opset=11),
    # --- quantized: scales of one number, and one per column ---
    *(
        case(
            "QLinearMatMul",
            u8(*shape),
            fixed={
                "as": np.float32(0.02),
                "az": np.uint8(120),
                "w": u8(4, 5),
                "ws": scale,
                "wz": zero,
                "ys": np.float32(0.5),
                "yz": np.uint8(100),
            },
        )
        for shape in ((3, 4), (2, 3, 4))
        for scale, zero in ((np.float32(0.03), np.uint8(99)), (np.abs(f(5)) / 50, u8(5)))
    ),
    # --- elementwise ---
    *(case(op, f(3, 4)) for op in ("Abs", "Neg", "Exp", "Floor", "Ceil", "Sign", "Erf", "Sigmoid", "Tanh", "Round")),
    *(case(op, np.abs(f(3, 4)) + 0.1) for op in ("Log", "Sqrt", "Reciprocal")),
    *(case(op, f(3, 4)) for op in ("Sin", "Cos", "Tan", "Sinh", "Cosh", "Atan", "Asinh")),
    *(case(op, f(3, 4) / 3) for op in ("Asin", "Acos", "Atanh")),
    *(case(op, f(3, 4)) for op in ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid")),
    *(case(op, f(3, 4)) for op in ("Softplus", "Softsign", "HardSwish")),
    case("Mish", f(3, 4), opset=18),
    case("Gelu", f(3, 4), opset=20, approximate="tanh"),
    case("Gelu", f(3, 4), opset=20),
    case("PRelu", f(2, 3, 4), fixed={"s": f(3, 1)}),
    case("Shrink", f(3, 4), lambd=0.7, bias=0.2),
    case("Shrink", np.arange(6, dtype=np.uint8), lambd=1.5, bias=0.5),
    case("Shrink", np.arange(-3, 3), lambd=0.7, bias=1.0),
    *(case(op, f(2, 3, 4), f(3, 1)) for op in ("Add", "Sub", "Mul", "Div")),
    case("Div", i64(7, -7, 8, -9), i64(2, 2, -3, -3)),
    case("Mod", i64(7, -7, 8, -9), i64(2, 2, -3, -3)),
    case("Mod", f(3, 4), np.abs(f(3, 4)) + 0.5, fmod=1),
    case("Pow", np.abs(f(3, 4)), f(4)),
    case("Pow", np.abs(f(3, 4)), i64(2), opset=15),
    case("Pow", RNG.integers(1, 4, (3, 4)).astype(np.int32), np.array([2.0], np.float32), opset=15),
    *(case(op, f(3, 4), f(3, 4)) for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")),
    *(case(op, f(3, 4) > 0, f(4) > 0) for op in ("And", "Or", "Xor")),
    case("Not", f(3, 4) > 0),
    *(case(op, i64(5, 6, 7), i64(3, 3, 3), opset=18) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    case("BitShift", np.array([1, 2, 8], np.uint32), np.array([1, 2, 3], np.uint32), direction="LEFT"),
    case("Where", f(3, 4) > 0, f(4), f(3, 1)),
    *(case(op, f(3, 4), f(4), f(3, 1)) for op in ("Max", "Min", "Sum", "Mean")),
    case("IsNaN", np.array([1, np.nan, np.inf], np.float32)),
    case("IsInf", np.array([1, np.nan, np.inf, -np.inf], np.float32), detect_positive=0),
    case("Cast", np.array([1.7, -1.7, 0], np.float32), to=7),
    case("Cast", np.array([1.7, -1.7, 0], np.float32), to=9),
    case("Cast", i64(1, 2, 3), to=10),
    # --- data movement ---
    case("Reshape", f(2, 3, 4), fixed={"s": i64(0, -1)}),
    case("Reshape", f(2, 3, 4), fixed={"s": i64(4, -1, 2)}, symbolic=False),
    case("Reshape", f(2, 3, 4), fixed={"s": i64(-1)}),
    case("Flatten", image, axis=2),
    case("Flatten", image, axis=-1),
    case("Flatten", image, axis=0),
    case("Transpose", f(2, 3, 4)),
    case("Transpose", f(2, 3, 4), perm=[1, 0, 2]),
    case("Concat", f(2, 3), f(2, 4), axis=-1),
    case("Expand", f(3, 1), fixed={"s": i64(2, 1, 4)}),
    case("Tile", f(3, 2), fixed={"r": i64(2, 3)}),
    case("DepthToSpace", f(2, 8, 3, 5), blocksize=2),
    case("DepthToSpace", f(2, 8, 3, 5), blocksize=2, mode="CRD"),
    case("SpaceToDepth", f(2, 3, 4, 6), blocksize=2),
    case("Gather", f(5, 4), fixed={"i": np.array([[0, -1], [2, 3]])}),
    case("Gather", f(5, 4), i64(1, 0), axis=1),
    case("GatherElements", f(5, 4), RNG.integers(-4, 4, (5, 2)), axis=1),
    case("GatherND", f(2, 3, 4), fixed={"i": np.array([[0, 1], [1, 2]])}),
    case("GatherND", f(2, 3, 4), fixed={"i": np.array([[1], [2]])}, batch_dims=1),
    case("ScatterElements", f(4, 5), fixed={"i": np.array([[0, 2]]), "u": f(1, 2)}, axis=1),
    case("ScatterElements", f(4, 5), fixed={"i": np.array([[0, 0]]), "u": f(1, 2)}, axis=0, reduction="add", opset=18),
    case("ScatterND", f(4, 5), fixed={"i": np.array([[0], [3]]), "u": f(2, 5)}),
    case("OneHot", i64(0, 2, -1), fixed={"d": np.array(3), "v": np.array([0.5, 2.5], np.float32)}),
    case("OneHot", i64(0, 2, -1), np.array([0.5, 2.5], np.float32), fixed={"d": np.array(3)}, order=("x0", "d", "x1")),
    case("CumSum", f(3, 4), fixed={"a": np.array(-1)}, exclusive=1, reverse=1),
    case("ArgMax", f(3, 4), axis=-1),
    case("ArgMin", f(3, 4), axis=0, keepdims=0),
    case("Trilu", f(2, 4, 5), fixed={"k": np.array(1)}, upper=0),
    case("Compress", f(3, 4), fixed={"c": np.array([False, True, True])}, axis=1),
    case("ReverseSequence", f(4, 3, 2), fixed={"l": i64(4, 2, 1)}),
    case("EyeLike", f(3, 5), k=1),
    case("Shape", image),
    case("Shape", image, start=1, end=-1),
    case("Size", image),
    # --- linear ---
    case("MatMul", f(2, 3, 4), f(4, 5)),
    case("MatMul", f(4), f(2, 4, 5)),
    case("Gemm", f(3, 4), f(5, 4), f(5), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f(4, 3), f(4, 5), transA=1),
    case(
        "MatMulInteger",
        RNG.integers(0, 9, (3, 4)).astype(np.uint8),
        RNG.integers(-9, 9, (4, 5)).astype(np.int8),
        fixed={"a": np.uint8(3), "b": np.int8(1)},
    ),
    *(case("Einsum", f(2, 3, 4), f(2, 4, 5), equation=e) for e in ("bij,bjk->bik", "bij, bjk", "bij,bjk->kb")),
    case("Einsum", f(3, 3), equation="ii->i"),
    case("Einsum", f(2, 3, 4), equation="...ij->...ji"),
    case("Einsum", f(2, 3, 4), f(3, 4), f(5, 4), equation="abc,bc,dc->ad"),
    # --- windows ---
    case("Conv", image, fixed={"w": f(4, 3, 3, 3), "b": f(4)}, pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
    *(
        case("Conv", image, fixed={"w": f(4, 3, 3, 2)}, auto_pad=p, strides=[2, 3])
        for p in ("SAME_UPPER", "SAME_LOWER")
    ),
    case("Conv", image, fixed={"w": f(4, 3, 2, 2)}, auto_pad="SAME_UPPER"),
    case("Conv", image, fixed={"w": f(4, 3, 1, 1)}, auto_pad="SAME_UPPER", strides=[3, 2]),
    case("Conv", image, fixed={"w": f(4, 3, 2, 2)}, auto_pad="VALID"),
    case("Conv", f(2, 4, 9), fixed={"w": f(6, 2, 3)}, group=2),
    case("Conv", f(1, 2, 5, 6, 7), fixed={"w": f(3, 2, 2, 3, 2)}),
    case("ConvTranspose", image, fixed={"w": f(3, 4, 3, 3), "b": f(4)}, strides=[2, 2], pads=[1, 0, 1, 1]),
    case("ConvTranspose", image, fixed={"w": f(3, 4, 3, 3)}, strides=[2, 2], output_padding=[1, 1]),
    case("ConvTranspose", image, fixed={"w": f(3, 4, 3, 3)}, strides=[2, 2], auto_pad="SAME_UPPER"),
    case(
        "ConvTranspose",
        image,
        fixed={"w": f(3, 2, 2, 2)},
        group=1,
        strides=[3, 3],
        output_shape=[27, 33],
        symbolic=False,
    ),
    case("MaxPool", image, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", image, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    case("MaxPool", image, kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", image, kernel_shape=[3, 3], auto_pad="SAME_LOWER", strides=[2, 2]),
    *(  # an image that is smaller than the window
        case(op, image[:, :, :1], kernel_shape=[2, 2], strides=[2, 2], symbolic=False, **attrs)
        for op, attrs in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}))
    ),
    *(  # an image that is smaller than the window, or smaller than all positions reach, rounded up
        case(op, image, kernel_shape=[size, 2], strides=[size - 1, 3], ceil_mode=1, symbolic=False, **attrs)
        for size in (3, 20)
        for op, attrs in (
            ("AveragePool", {}),
            ("AveragePool", {"count_include_pad": 1}),
            ("AveragePool", {"count_include_pad": 1, "pads": [1, 0, 1, 1]}),
            ("LpPool", {"opset": 18}),
            ("LpPool", {"opset": 18, "pads": [1, 0, 1, 1]}),
        )
    ),
    case("AveragePool", image, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("AveragePool", image, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    case("AveragePool", image, kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
    case("LpPool", image, kernel_shape=[2, 2], p=3, opset=18),
    *(case(op, image) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")),
    # --- normalization ---
    case("BatchNormalization", image, fixed={"g": f(3), "b": f(3), "m": f(3), "v": np.abs(f(3))}, epsilon=1e-3),
    case("BatchNormalization", image, fixed={"g": f(3), "b": f(3), "m": f(3), "v": np.abs(f(3))}, opset=8),
    case("BatchNormalization", f(4), fixed={"g": f(1), "b": f(1), "m": f(1), "v": np.abs(f(1))}, opset=15),
    case("LayerNormalization", f(2, 3, 4), fixed={"g": f(4), "b": f(4)}),
    case("LayerNormalization", f(2, 3, 4), fixed={"g": f(3, 4)}, axis=1),
    case("InstanceNormalization", image, fixed={"g": f(3), "b": f(3)}),
    case("LRN", f(2, 7, 3, 4), size=5, alpha=0.1),
    case("LpNormalization", f(3, 4), p=1),
    case("LpNormalization", f(3, 4)),
    case("MeanVarianceNormalization", image),
    # --- resize ---
    *(
        case("Resize", image, fixed={"r": NONE, "s": np.array([1, 1, 2, 1.5], np.float32)}, opset=o, **a)
        for o in (11, 13, 19)
        for a in (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
            {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
        )
    ),
    case("Resize", image, fixed={"n": i64(2, 3, 5, 20)}, order=("x0", "", "", "n"), mode="linear", symbolic=False),
    # Up to opset 10, the nearest of an axis that shrinks is the one above: ONNX's own test has 1 and 3 of 1 to 4.
    *(
        case("Resize", image, fixed={"s": np.array([1, 1, *scales], np.float32)}, opset=10, mode=mode)
        for scales in ((2, 2), (0.6, 0.75), (0.6, 2.5))
        for mode in ("nearest", "linear")
    ),
    *(
        case(
            "Resize",
            np.arange(-10, 10, dtype=t).reshape(1, 1, 4, 5),
            opset=13,
            order=("x0", "", "s"),
            mode="linear",
            fixed={"s": np.array([1, 1, 1.7, 3], np.float32)},
        )
        for t in (np.int8, np.int32)
    ),
    # A size is floor(size * scale) in float32, which makes 37 of 3 and 12.333333, in exact arithmetic 36.999999.
    case("Resize", f(1, 1, 3, 4), fixed={"r": NONE, "s": np.array([1, 1, 37 / 3, 5 / 3], np.float32)}, mode="linear"),
    # Where scales do not give whole sizes, onnxruntime's reading of align_corners is followed, not the node tests'.
    case(
        "Resize",
        f(1, 1, 2, 4),
        fixed={"r": NONE, "s": np.array([1, 1, 0.6, 0.6], np.float32)},
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    case("GridSample", f(2, 3, 5, 6), f(2, 4, 7, 2) * 0.6),
    case("GridSample", f(2, 3, 5, 6), f(2, 4, 7, 2), padding_mode="reflection", mode="nearest", align_corners=1),
    # --- quantization ---
    case("QuantizeLinear", f(3, 4), fixed={"s": np.float32(0.02), "z": np.uint8(120)}),
    case(
        "DequantizeLinear", RNG.integers(0, 255, (3, 4)).astype(np.uint8), fixed={"s": f(4), "z": np.zeros(4, np.uint8)}
    ),
    case("DynamicQuantizeLinear", f(3, 4), outputs=3),
    # --- what onnxruntime's optimizers write ---
    *(case(op, f(3, 4), domain=MS) for op in ("Gelu", "FastGelu", "QuickGelu")),
    case("FastGelu", f(3, 4), fixed={"b": f(4)}, domain=MS),
    case("BiasGelu", f(2, 3, 4), fixed={"b": f(4)}, domain=MS),
    case("FusedMatMul", f(2, 4, 3), f(2, 5, 4), transA=1, transB=1, alpha=0.5, domain=MS),
    case("FusedMatMul", f(4), f(4, 5), transA=1, domain=MS, symbolic=False),
    case("FusedConv", image, fixed={"w": f(3, 3, 3, 3), "b": f(3)}, activation="Relu", domain=MS, symbolic=False),
    case(
        "FusedConv",
        image,
        fixed={"w": f(3, 3, 1, 1), "b": f(3), "z": f(2, 3, 9, 11)},
        activation="LeakyRelu",
        activation_params=[0.2],
        domain=MS,
        symbolic=False,
    ),
    case("SkipLayerNormalization", f(2, 3, 4), f(2, 3, 4), fixed={"g": f(4), "b": f(4), "c": f(4)}, domain=MS),
    case("SkipSimplifiedLayerNormalization", f(2, 3, 4), f(2, 3, 4), fixed={"g": f(4)}, domain=MS, epsilon=1e-6),
    case("SimplifiedLayerNormalization", f(2, 3, 4), fixed={"g": f(4)}),
    *(
        case(
            op,
            u8(3, 4),
            u8(3, 4),
            fixed=scales("abc"),
            order=("x0", "as", "az", "x1", "bs", "bz", "cs", "cz"),
            domain=MS,
        )
        for op in ("QLinearAdd", "QLinearMul")
    ),
    *(
        case(op, u8(3, 4), fixed=scales("ab"), order=("x0", "as", "az", "bs", "bz"), domain=MS)
        for op in ("QLinearSigmoid", "QLinearLeakyRelu")
    ),
    case(
        "QLinearGlobalAveragePool", u8(2, 3, 4, 5), fixed=scales("ab"), order=("x0", "as", "az", "bs", "bz"), domain=MS
    ),
    case(
        "QLinearConcat",
        u8(2, 3),
        u8(2, 4),
        fixed=scales("abc"),
        order=("cs", "cz", "x0", "as", "az", "x1", "bs", "bz"),
        axis=1,
        domain=MS,
    ),
    case(
        "DynamicQuantizeMatMul",
        f(3, 4),
        fixed={"b": u8(4, 5), "s": np.float32(0.1), "z": np.uint8(7), "c": f(5)},
        domain=MS,
    ),
    case(
        "MatMulIntegerToFloat",
        u8(3, 4),
        fixed={"b": u8(4, 5), "as": np.float32(0.1), "bs": f(5), "az": np.uint8(3), "bz": np.zeros(5, np.uint8)},
        domain=MS,
    ),
    # --- recurrent ---
    case(
        "LSTM",
        f(4, 2, 3),
        fixed={"w": f(1, 20, 3), "r": f(1, 20, 5), "b": f(1, 40)},
        outputs=3,
        hidden_size=5,
        symbolic=False,
    ),
    case(
        "LSTM",
        f(4, 2, 3),
        fixed={"w": f(2, 20, 3), "r": f(2, 20, 5)},
        outputs=3,
        hidden_size=5,
        direction="bidirectional",
        symbolic=False,
    ),
    case(
        "GRU",
        f(4, 2, 3),
        fixed={"w": f(1, 15, 3), "r": f(1, 15, 5), "b": f(1, 30)},
        outputs=2,
        hidden_size=5,
        linear_before_reset=1,
        symbolic=False,
    ),
    case(
        "GRU",
        f(4, 2, 3),
        fixed={"w": f(1, 15, 3), "r": f(1, 15, 5), "b": f(1, 30)},
        outputs=2,
        hidden_size=5,
        direction="reverse",
        symbolic=False,
    ),
    case(
        "RNN",
        f(4, 2, 3),
        fixed={"w": f(1, 5, 3), "r": f(1, 5, 5), "b": f(1, 10), "l": np.array([4, 2], np.int32)},
        outputs=2,
        hidden_size=5,
        symbolic=False,
    ),
]


def model_of(case: Case, make: Any, shapes: dict[str, list[str]] | None) -> Any:
    inputs = case.order or (*case.data, *case.fixed)
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, inputs, outputs, name="n", **case.attrs)
    fixed = {name: np.asarray(array) for name, array in case.fixed.items()}
    data = {name: np.asarray(array) for name, array in case.data.items()}
    model = make([node], data, outputs, weights=fixed, shapes=shapes, opset=case.opset)
    if "domain" in case.attrs:
        model.opset_import.append(helper.make_opsetid(case.attrs["domain"], 1))
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_fixed_sizes(case, make, agree) -> None:
    main = agree(model_of(case, make, None), {name: np.asarray(a) for name, a in case.data.items()})
    assert all(param.tensor_type.is_static for param in main.params)


@pytest.mark.parametrize("case", [c for c in CASES if c.symbolic], ids=lambda case: case.label)
def test_symbolic_sizes(case, make, agree) -> None:
    """All sizes are symbols; equal sizes share one, so that what must be equal is known to be."""
    names = {size: f"d{size}" for array in case.data.values() for size in np.shape(array) if size != 1}
    shapes = {name: [1 if size == 1 else names[size] for size in np.shape(array)] for name, array in case.data.items()}
    keep_channels = case.op in (
        "Conv",
        "ConvTranspose",
        "BatchNormalization",
        "InstanceNormalization",
        "GatherND",
        "LayerNormalization",
        "ScatterND",
        "DepthToSpace",
        "Reshape",
        "GridSample",
        "DequantizeLinear",
        "Compress",
        "PRelu",
        "ReverseSequence",
    )
    if keep_channels:
        for name, array in case.data.items():
            shapes[name] = [names.get(array.shape[0], 1), *array.shape[1:]]
        if case.op in ("Conv", "ConvTranspose"):
            shapes["x0"] = [f"s{axis}" if axis != 1 else size for axis, size in enumerate(case.data["x0"].shape)]
    main = agree(model_of(case, make, shapes), {name: np.asarray(a) for name, a in case.data.items()})
    assert any(isinstance(dim, SymbolicDim) for p in main.params for dim in p.tensor_type.shape) or not any(
        size != 1 for array in case.data.values() for size in np.shape(array)
    )
