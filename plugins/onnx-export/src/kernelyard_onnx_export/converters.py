"""Converters: for each operator of the vocabulary, the ONNX nodes that compute it.

A converter is given the writer and the call, adds nodes, and returns the name of the result, or the names of several.
Definitions: https://onnx.ai/onnx/operators/, opset 20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Call, TensorType, is_nonnegative
from kernelyard_onnx_export.graph_writer import GraphWriter, MeaningError
from kernelyard_onnx_export.registry import CONVERTERS, Converter, converter, inputs_of

# --- one node each ----------------------------------------------------------------------------------------------------
# By operator: ONNX's, and for its attributes ours.
ONE_NODE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    **{
        name: (name.title(), {})
        for name in ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "det", "erf")
    },
    **{
        name: (name.title(), {})
        for name in ("exp", "floor", "log", "reciprocal", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan")
    },
    **{name: (name.title(), {}) for name in ("add", "equal", "greater", "less", "tanh", "where")},
    "divide": ("Div", {}),
    "greater_equal": ("GreaterOrEqual", {}),
    "isinf": ("IsInf", {}),
    "isnan": ("IsNaN", {}),
    "less_equal": ("LessOrEqual", {}),
    "logical_and": ("And", {}),
    "logical_not": ("Not", {}),
    "logical_or": ("Or", {}),
    "logical_xor": ("Xor", {}),
    "matmul": ("MatMul", {}),
    "maximum": ("Max", {}),
    "minimum": ("Min", {}),
    "multiply": ("Mul", {}),
    "negative": ("Neg", {}),
    "power": ("Pow", {}),
    "subtract": ("Sub", {}),
    **{f"bitwise_{name}": (f"Bitwise{name.title()}", {}) for name in ("and", "not", "or", "xor")},
    "concat": ("Concat", {"axis": "axis"}),
    "gather_elements": ("GatherElements", {"axis": "axis"}),
    "gather_nd": ("GatherND", {"batch_dims": "batch_dims"}),
    "permute_dims": ("Transpose", {"perm": "axes"}),
    "scatter_elements": ("ScatterElements", {"axis": "axis", "reduction": "reduction"}),
    "scatter_nd": ("ScatterND", {"reduction": "reduction"}),
    "take": ("Gather", {"axis": "axis"}),
    "nn.elu": ("Elu", {"alpha": "alpha"}),
    "nn.gelu": ("Gelu", {}),
    "nn.hard_sigmoid": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "nn.instance_norm": ("InstanceNormalization", {"epsilon": "epsilon"}),
    "nn.leaky_relu": ("LeakyRelu", {"alpha": "alpha"}),
    "nn.log_softmax": ("LogSoftmax", {"axis": "axis"}),
    "nn.lrn": ("LRN", {"size": "size", "alpha": "alpha", "beta": "beta", "bias": "bias"}),
    "nn.mish": ("Mish", {}),
    "nn.prelu": ("PRelu", {}),
    "nn.relu": ("Relu", {}),
    "nn.selu": ("Selu", {"alpha": "alpha", "gamma": "gamma"}),
    "nn.softmax": ("Softmax", {"axis": "axis"}),
    "nn.softplus": ("Softplus", {}),
    "nn.softsign": ("Softsign", {}),
    "nn.thresholded_relu": ("ThresholdedRelu", {"alpha": "alpha"}),
}


def _one_node(op_type: str, attributes: Mapping[str, str]) -> Converter:
    def convert(writer: GraphWriter, call: Call) -> str:
        attrs = {theirs: call.attrs[ours] for theirs, ours in attributes.items()}
        return writer.node(op_type, *inputs_of(writer, call), **attrs)

    return convert


CONVERTERS.update({name: _one_node(*row) for name, row in ONE_NODE.items()})


# --- several nodes ----------------------------------------------------------------------------------------------------
@converter("astype")
def _astype(writer: GraphWriter, call: Call) -> str:
    return writer.cast(writer.name(call.args[0]), call.attrs["dtype"])


@converter("isfinite")
def _isfinite(writer: GraphWriter, call: Call) -> str:
    (x,) = inputs_of(writer, call)
    return writer.node("Not", writer.node("Or", writer.node("IsNaN", x), writer.node("IsInf", x)))


@converter("rsqrt")
def _rsqrt(writer: GraphWriter, call: Call) -> str:
    return writer.node("Reciprocal", writer.node("Sqrt", *inputs_of(writer, call)))


@converter("square")
def _square(writer: GraphWriter, call: Call) -> str:
    return writer.node("Mul", *inputs_of(writer, call) * 2)


@converter("not_equal")
def _not_equal(writer: GraphWriter, call: Call) -> str:
    return writer.node("Not", writer.node("Equal", *inputs_of(writer, call)))


@converter("nn.celu")
def _celu(writer: GraphWriter, call: Call) -> str:
    alpha = float(np.float32(call.attrs["alpha"]))
    if alpha == 0:
        raise MeaningError("Celu divides by alpha on both sides of 0; alpha is 0")
    return writer.node("Celu", *inputs_of(writer, call), alpha=alpha)


@converter("nn.silu")
def _silu(writer: GraphWriter, call: Call) -> str:
    x = writer.name(call.args[0])
    return writer.node("Mul", x, writer.node("Sigmoid", x))


@converter("nn.hard_swish")
def _hard_swish(writer: GraphWriter, call: Call) -> str:
    x = writer.name(call.args[0])
    return writer.node("Mul", x, writer.node("HardSigmoid", x, alpha=call.attrs["alpha"], beta=call.attrs["beta"]))


@converter("nn.gelu_tanh")
def _gelu_tanh(writer: GraphWriter, call: Call) -> str:
    x = writer.name(call.args[0])
    if call.tensor_type.dtype != "float64":
        return writer.node("Gelu", x, approximate="tanh")
    # The standard's function has its constants in float32, for float64, too.
    cube = writer.node("Mul", x, writer.node("Mul", x, x))
    inner = writer.node("Add", x, writer.node("Mul", writer.number(0.044715, "float64"), cube))
    tanh = writer.node("Tanh", writer.node("Mul", writer.number(math.sqrt(2 / math.pi), "float64"), inner))
    half = writer.node("Mul", writer.number(0.5, "float64"), x)
    return writer.node("Mul", half, writer.node("Add", writer.number(1, "float64"), tanh))


@converter("trunc")
def _trunc(writer: GraphWriter, call: Call) -> str:
    x = writer.name(call.args[0])
    return writer.node("Mul", writer.node("Sign", x), writer.node("Floor", writer.node("Abs", x)))


@converter("mod", "fmod")
def _mod(writer: GraphWriter, call: Call) -> str:
    x, y = inputs_of(writer, call)
    if call.op_name == "fmod" or not is_float(call.tensor_type.dtype):
        return writer.node("Mod", x, y, fmod=int(call.op_name == "fmod"))
    whole = writer.node("Floor", writer.node("Div", x, y))
    return writer.node("Sub", x, writer.node("Mul", whole, y))


@converter("clip")
def _clip(writer: GraphWriter, call: Call) -> str:
    x = call.args[0]
    bounds = (call.attrs[name] for name in ("min", "max"))
    names = ["" if bound is None else writer.number(bound, x.tensor_type.dtype) for bound in bounds]
    return writer.node("Clip", writer.name(x), *names)


@converter("sum", "mean", "max", "min", "prod")
def _reduce(writer: GraphWriter, call: Call) -> str:
    x, axes = call.args[0], call.attrs["axes"] or tuple(range(call.args[0].tensor_type.rank))
    keepdims = int(call.attrs["keepdims"])
    if not axes:  # a number: nothing to reduce, and ONNX's noop flag would be needed
        return writer.node("Identity", writer.name(x))
    if call.op_name == "mean" and keepdims and axes == tuple(range(2, x.tensor_type.rank)):
        return writer.node("GlobalAveragePool", writer.name(x))  # which engines have quantized forms of
    return writer.node(f"Reduce{call.op_name.title()}", writer.name(x), writer.integers(axes), keepdims=keepdims)


@converter("any", "all")
def _any_or_all(writer: GraphWriter, call: Call) -> str:
    x, axes = call.args[0], call.attrs["axes"] or tuple(range(call.args[0].tensor_type.rank))
    reduce = "ReduceMax" if call.op_name == "any" else "ReduceMin"
    number = writer.cast(writer.name(x), "int32")
    found = writer.node(reduce, number, writer.integers(axes), keepdims=int(call.attrs["keepdims"]))
    return writer.cast(found, "bool")


@converter("argmax", "argmin")
def _arg(writer: GraphWriter, call: Call) -> str:
    flags = {name: int(call.attrs[name]) for name in ("keepdims", "select_last_index")}
    op_type = f"Arg{call.op_name.removeprefix('arg').title()}"
    return writer.node(op_type, *inputs_of(writer, call), axis=call.attrs["axis"], **flags)


@converter("cumsum")
def _cumsum(writer: GraphWriter, call: Call) -> str:
    axis = writer.number(call.attrs["axis"], "int64")
    flags = {name: int(call.attrs[name]) for name in ("exclusive", "reverse")}
    return writer.node("CumSum", writer.name(call.args[0]), axis, **flags)


@converter("topk")
def _topk(writer: GraphWriter, call: Call) -> Sequence[str]:
    flags = {name: int(call.attrs[name]) for name in ("largest", "sorted")}
    inputs = [writer.name(call.args[0]), writer.shape([call.attrs["k"]])]
    return writer.nodes_of("TopK", inputs, 2, axis=call.attrs["axis"], **flags)


# --- shapes -----------------------------------------------------------------------------------------------------------
@converter("reshape")
def _reshape(writer: GraphWriter, call: Call) -> str:
    x, shape = call.args[0], call.attrs["shape"]
    target = _reshape_target(writer, x.tensor_type, shape)
    zeros = {"allowzero": 1} if 0 in shape else {}  # else a 0 stands for the operand's size there
    return writer.node("Reshape", writer.name(x), target, **zeros)


def _reshape_target(writer: GraphWriter, x: TensorType, shape: Sequence[dims.Dim]) -> str:
    """Return the name of a shape, in which 0 stands for the size of the operand there, and -1 for one that follows."""
    short: list[dims.Dim] = [
        0 if not isinstance(size, int) and place < x.rank and x.shape[place] == size else size
        for place, size in enumerate(shape)
    ]
    open_places = [place for place, size in enumerate(short) if not isinstance(size, int)]
    if 0 in shape or len(open_places) > 1:
        return writer.shape(shape)
    for place in open_places:
        short[place] = -1
    return writer.shape(short)


@converter("broadcast_to")
def _broadcast_to(writer: GraphWriter, call: Call) -> str:
    return writer.node("Expand", writer.name(call.args[0]), writer.shape(call.attrs["shape"]))


@converter("tile")
def _tile(writer: GraphWriter, call: Call) -> str:
    return writer.node("Tile", writer.name(call.args[0]), writer.integers(call.attrs["repeats"]))


@converter("split")
def _split(writer: GraphWriter, call: Call) -> Sequence[str]:
    sections = call.attrs["sections"]
    inputs = [writer.name(call.args[0]), writer.shape(sections)]
    return writer.nodes_of("Split", inputs, len(sections), axis=call.attrs["axis"])


@converter("strided_slice")
def _strided_slice(writer: GraphWriter, call: Call) -> str:
    axes, strides = call.attrs["axes"], call.attrs["strides"]
    beyond = np.iinfo(np.int64).min  # a walk back to the first element ends before it
    ends = [beyond if stride < 0 and end == -1 else end for end, stride in zip(call.attrs["end"], strides, strict=True)]
    # A walk back that begins before the first element has none. In ONNX, -1 is the last one; from 0 to 0 is none.
    is_empty = [stride < 0 and begin == -1 for begin, stride in zip(call.attrs["begin"], strides, strict=True)]
    begins = [0 if none else begin for none, begin in zip(is_empty, call.attrs["begin"], strict=True)]
    ends = [0 if none else end for none, end in zip(is_empty, ends, strict=True)]
    bounds = [writer.shape(each) for each in (begins, ends)]
    return writer.node("Slice", writer.name(call.args[0]), *bounds, writer.integers(axes), writer.integers(strides))


@converter("flip")
def _flip(writer: GraphWriter, call: Call) -> str:
    axes = call.attrs["axes"]
    limits = np.iinfo(np.int64)
    bounds = [writer.integers([value] * len(axes)) for value in (limits.max, limits.min)]
    return writer.node(
        "Slice", writer.name(call.args[0]), *bounds, writer.integers(axes), writer.integers([-1] * len(axes))
    )


@converter("trilu")
def _trilu(writer: GraphWriter, call: Call) -> str:
    inputs = writer.name(call.args[0]), writer.number(call.attrs["k"], "int64")
    return writer.node("Trilu", *inputs, upper=int(call.attrs["upper"]))


@converter("pad")
def _pad(writer: GraphWriter, call: Call) -> str:
    x, pads = call.args[0], call.attrs["pads"]
    if call.attrs["mode"] != "constant":
        return writer.node("Pad", writer.name(x), writer.shape(pads), mode=call.attrs["mode"])
    value, rank = writer.number(call.attrs["value"], x.tensor_type.dtype), x.tensor_type.rank
    axes = list(zip(x.tensor_type.shape, pads[:rank], pads[rank:], strict=True))
    if all(is_nonnegative(size + dims.minimum(b, 0) + dims.minimum(e, 0)) for size, b, e in axes):
        return writer.node("Pad", writer.name(x), writer.shape(pads), value)
    # ONNX does not say what cropping more than there is means: pad, then slice
    wide = writer.node("Pad", writer.name(x), writer.shape([dims.maximum(pad, 0) for pad in pads]), value)
    starts = [dims.maximum(-b, 0) for _, b, _ in axes]
    stops = [dims.maximum(size + dims.maximum(b, 0) + e, 0) for size, b, e in axes]
    return writer.node("Slice", wide, writer.shape(starts), writer.shape(stops))


@converter("shape_tensor")
def _shape_tensor(writer: GraphWriter, call: Call) -> str:
    return writer.shape(call.attrs["dims"])


@converter("arange")
def _arange(writer: GraphWriter, call: Call) -> str:
    dtype, count = call.attrs["dtype"], writer.size(call.attrs["count"])
    places = writer.node("Range", *(writer.number(0, "int64"), _scalar(writer, count), writer.number(1, "int64")))
    steps = writer.node("Mul", writer.cast(places, dtype), writer.number(call.attrs["step"], dtype))
    return writer.node("Add", steps, writer.number(call.attrs["start"], dtype))


def _scalar(writer: GraphWriter, vector: str) -> str:
    return writer.node("Squeeze", vector, writer.integers([0]))


@converter("one_hot")
def _one_hot(writer: GraphWriter, call: Call) -> str:
    dtype = call.attrs["dtype"]
    values = writer.node("Concat", *(_one(writer, call.attrs[n], dtype) for n in ("off_value", "on_value")), axis=0)
    depth = writer.number(call.attrs["depth"], "int64")
    indices = writer.name(call.args[0])
    if call.args[0].tensor_type.rank:
        return writer.node("OneHot", indices, depth, values, axis=call.attrs["axis"])
    row = writer.node("OneHot", writer.node("Unsqueeze", indices, writer.integers([0])), depth, values)
    return _scalar(writer, row)


def _one(writer: GraphWriter, value: float, dtype: str) -> str:
    return writer.node("Reshape", writer.number(value, dtype), writer.integers([1]))
