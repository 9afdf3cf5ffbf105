"""Patterns of onnxruntime: each operator that can be written as ONNX, where onnxruntime opens a model of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import onnx

from kernelyard.plugins.api import (
    Accept,
    Answer,
    Binding,
    Call,
    Constant,
    Decline,
    Expr,
    Function,
    FusionPattern,
    IRModule,
    Match,
    Pattern,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    is_nonnegative,
    is_op,
    tensors_of,
    with_operands,
)
from kernelyard_onnx_export import SMALL, ExportError, to_onnx
from kernelyard_onnx_export.registry import CONVERTERS
from kernelyard_onnxruntime.runtime import open_session

DTYPES = frozenset({"float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"})
LRN_RANK = 4
# Across these onnxruntime moves quantize and dequantize, to find them around a layer.
MOVES = ("reshape", "permute_dims", "strided_slice", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
CHANNELS = {"nn.conv1d": 0, "nn.conv2d": 0, "nn.conv3d": 0, "matmul": -1}  # the axis of weights
DIVISIONS = ("divide", "mod", "fmod")


def fusion_patterns() -> Sequence[FusionPattern]:
    """Return a pattern for each operator; answers are kept, since models repeat themselves."""
    checks = _Checks()
    return [FusionPattern(f"onnxruntime.{name}", pattern, checks.check) for name, pattern in _calls().items()]


@cache
def _calls() -> Mapping[str, Pattern]:
    """Return a pattern of any call of each operator: the same in every compile, which then knows its parts."""
    return {name: is_op(name)(varargs=True) for name in sorted(CONVERTERS)}


class _Checks:
    def __init__(self) -> None:
        self._answers: dict[object, Answer] = {}

    def check(self, match: Match) -> Answer:
        """Accept an operator that onnxruntime opens a model of."""
        call = match.call
        types = [type_ for each in (call, *call.args) for type_ in tensors_of(each.type)]
        for type_ in types:
            if type_.dtype not in DTYPES:
                return Decline(
                    "dtype", f"{call.op_name} of {type_.dtype}; onnxruntime is given {', '.join(sorted(DTYPES))}"
                )
            if 0 in type_.shape:
                return Decline("shape", f"{call.op_name} of empty tensors, which some kernels of onnxruntime refuse")
        refused = _decline_unsupported(call) or _decline_zero_divisor(call) or _decline_quantized(match)
        if refused is not None:
            return refused
        key = call.op_name, repr(dict(call.attrs)), *map(_key_of, call.args)
        if key not in self._answers:
            self._answers[key] = _probe(call)
        return self._answers[key]


def _decline_unsupported(call: Call) -> Decline | None:
    """Decline what onnxruntime opens, and then computes otherwise than the operator is defined."""
    name, shapes = call.op_name, [type_.shape for arg in call.args for type_ in tensors_of(arg.type)]
    if name == "nn.lrn" and (len(shapes[0]) != LRN_RANK or call.attrs["size"] % 2 == 0):
        return Decline("attribute", "onnxruntime has nn.lrn of images and of odd sizes alone")
    if name == "matmul" and min(map(len, shapes)) == 1:
        return Decline("rank", "onnxruntime confuses the axes of a transposed batch that is multiplied by a vector")
    if name.endswith("_transpose") and not _is_padded_within_a_step(call):
        return Decline("attribute", f"onnxruntime refuses an output padding of a step and more when it runs {name}")
    if name == "pad" and call.attrs["mode"] == "reflect" and not _is_reflected_once(call):
        return Decline("attribute", "onnxruntime refuses to reflect more than an axis has when it runs a pad")
    if "_pool" in name and call.attrs["ceil_mode"]:
        return Decline("attribute", f"onnxruntime counts other windows in {name} with ceil_mode")
    return None


def _is_padded_within_a_step(call: Call) -> bool:
    window = zip(*(call.attrs[name] for name in ("output_padding", "strides", "dilation")), strict=True)
    return all(extra < max(stride, dilation) for extra, stride, dilation in window)


def _is_reflected_once(call: Call) -> bool:
    shape = call.args[0].tensor_type.shape
    beyond = [size - 1 - pad for size, pad in zip((*shape, *shape), call.attrs["pads"], strict=True)]
    return all(map(is_nonnegative, beyond))


def _decline_zero_divisor(call: Call) -> Decline | None:
    """Decline integers that may be divided by 0, which ends a run of onnxruntime, and gives 0 here."""
    if call.op_name not in DIVISIONS or call.tensor_type.dtype.startswith("float"):
        return None
    divisor = call.args[1]
    if isinstance(divisor, Constant) and divisor.data.all():
        return None
    return Decline("zero", f"{call.op_name} of integers; onnxruntime ends a run that divides by 0")


def _decline_quantized(match: Match) -> Decline | None:
    """Decline what onnxruntime fuses with the dequantize before and the quantize after it to other numbers, or to what
    it then refuses when it runs.
    """
    call = match.call
    name = call.op_name
    if name in CHANNELS and not _is_scaled_by_channel(_maker(match, call.args[1]), CHANNELS[name]):
        return Decline("attribute", f"onnxruntime scales weights of integers by the channels of the result of {name}")
    is_of_layer = name == "quantize" or (name == "dequantize" and not isinstance(call.args[0], Constant))
    if is_of_layer and not all(map(_is_one_number, call.args[1:])):
        return Decline("attribute", f"onnxruntime has one scale for the integers of a layer, and {name} several")
    if "avg_pool" in name and set(call.attrs["dilation"]) != {1}:
        return Decline("attribute", "onnxruntime has no average of integers with dilation")
    if name == "nn.softmax" and _is_decoded(match, call.args[0]) and _is_encoded(match, match.root):
        return Decline("numbers", "onnxruntime cuts a softmax of integers, where it should be rounded")
    return None


def _is_one_number(parameter: Expr) -> bool:
    """Return True for what is written as a number, which onnxruntime wants, and not a vector."""
    shape = parameter.tensor_type.shape
    return shape == () or (isinstance(parameter, Constant) and shape == (1,))


def _is_scaled_by_channel(weight: Call | None, axis: int) -> bool:
    """Return True but for what is dequantized by several scales along another axis."""
    if weight is None or weight.op_name != "dequantize" or weight.attrs["axis"] is None:
        return True
    rank = weight.tensor_type.rank
    return weight.args[1].tensor_type.shape in ((), (1,)) or weight.attrs["axis"] % rank == axis % rank


def _maker(match: Match, value: Expr) -> Call | None:
    """Return the call that makes a value, which may have been lifted into a composite."""
    made = match.value_of(value)
    composite = match.callee(made)
    made = composite.bindings[-1].value if composite is not None and composite.bindings else made
    return made if isinstance(made, Call) else None


def _is_decoded(match: Match, value: Expr) -> bool:
    """Return True for what is dequantized, and then moved at most."""
    made = _maker(match, value)
    while made is not None and made.op_name in MOVES:
        outer = match.value_of(value)
        assert isinstance(outer, Call)
        value = outer.args[0]
        made = _maker(match, value)
    return made is not None and made.op_name == "dequantize"


def _is_encoded(match: Match, value: Var) -> bool:
    """Return True for what some reader quantizes, after it was moved at most."""
    for user in match.users(value):
        made = _maker(match, user)
        if made is not None and (made.op_name == "quantize" or (made.op_name in MOVES and _is_encoded(match, user))):
            return True
    return False


def _key_of(operand: Expr) -> object:
    return operand.digest if _is_small(operand) and isinstance(operand, Constant) else repr(operand.type)


def _is_small(operand: Expr) -> bool:
    return isinstance(operand, Constant) and operand.data.size <= SMALL


def _probe(call: Call) -> Answer:
    """Accept a call where onnxruntime opens a model of nothing but it, with large constants as inputs."""
    replaced: dict[Expr, Var] = {}
    for operand in call.args:
        if not _is_small(operand):
            replaced.setdefault(operand, Var(f"x{len(replaced)}", operand.type))
    result = Var("y", call.type)
    bindings = [Binding(result, with_operands(call, [replaced.get(operand, operand) for operand in call.args]))]
    results: Expr = result
    if isinstance(call.type, TupleType):
        fields = [Var(f"y{index}", type_) for index, type_ in enumerate(call.type.fields)]
        bindings += [Binding(field, TupleGetItem(result, index)) for index, field in enumerate(fields)]
        results = Tuple(fields)
    model = write(Function(list(replaced.values()), bindings, results), call.op_name)
    if isinstance(model, Decline):
        return model
    try:
        open_session(model.SerializeToString(), {}, threads=1, is_quick=True)
    except Exception as error:  # those of onnxruntime share no class but this
        return Decline("reference-implementation", f"onnxruntime cannot run {call.op_name}: {error}")
    return Accept()


def write(function: Function, what: str) -> onnx.ModelProto | Decline:
    """Return a function as an ONNX model without the data of its large constants, or why there is none."""
    try:
        return to_onnx(IRModule({"main": function}), external={})
    except ExportError as error:
        return Decline("onnx", f"{what} cannot be written as ONNX: {error.message}, {error.found}")
