"""A reference in float64, and how far rounding may take a result from it: what a graph's condition allows.

Monte Carlo arithmetic (Parker, Pierce and Eggert, "Monte Carlo arithmetic: how to gamble with floating point and win",
2000): the graph is computed several times with every operand slightly off, and the results tell how much that matters.
It holds for what is not continuous, too: where floor(x) may be 1 or 2, the bound is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, Function, GlobalVar, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.control_flow import IF, WHILE
from kernelyard.ir.op import Attributes
from kernelyard.ir.types import TensorType, TupleType, tensors_of
from kernelyard_fuzz.errors import UndefinedError
from kernelyard_fuzz.sketch import COMPUTE_ERRORS

Value: TypeAlias = "np.ndarray | tuple[Value, ...]"

# Bits of the significand of a dtype, less three: operands are off by up to eight units in the last place.
BITS = {"float64": 49, "float32": 20, "float16": 7, "bfloat16": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}
FACTOR = 4.0  # the largest of few random errors is less than the largest there may be
RUNS = 4
# By dtype: errors relative to the element and to the largest element that kernels' approximations explain.
FLOORS = {
    "float64": (1e-9, 1e-11),
    "float32": (1e-4, 2e-6),
    "float16": (4e-3, 2e-3),
    "bfloat16": (3e-2, 2e-2),
    "float8_e4m3fn": (1.3e-1, 7e-2),
    "float8_e5m2": (2.6e-1, 1.3e-1),
}


def _of_norm(attrs: Attributes, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return x * scale, of which mean * scale is subtracted: nearly all of it, where a group of channels hardly varies.

    The error of a mean grows with the root of the number of elements.
    """
    if not x.size:
        return np.zeros(x.shape)
    groups = x.reshape(x.shape[0], attrs.get("num_groups", x.shape[1]), -1)
    deviation = np.sqrt(groups.var(-1, keepdims=True) + attrs["epsilon"])
    scaled = (np.sqrt(groups.shape[-1]) * np.abs(groups) / deviation).reshape(x.shape)
    return scaled * np.abs(gamma).reshape(-1, *[1] * (x.ndim - 2))


def _of_resize(attrs: Attributes, x: np.ndarray) -> np.ndarray:
    """Return what a coordinate, whose rounding is that of the size, may change."""
    return np.asarray(max(x.shape[2:]) * np.ptp(x) if x.size else 0.0)


def _of_product(attrs: Attributes, x: np.ndarray) -> np.ndarray:
    """Return inf where the large factors alone overflow float32: in which order they are multiplied, nobody says.

    Such a product may be anything: where another factor is 0, 0 or NaN.
    """
    large = np.fmax(np.abs(x), 1).prod(axis=attrs["axes"] or None, keepdims=attrs["keepdims"])
    return np.where(large > np.finfo(np.float32).max, np.inf, 0.0)


# Operators whose errors do not follow from their operands': how large what they round on their way is, as the terms of
# 1 + erf(x), which nearly cancel far below 0. Kernels round it in float32.
INNER: Mapping[str, Callable[..., np.ndarray]] = {
    "image.resize": _of_resize,
    "nn.gelu": lambda attrs, x: np.abs(x) / 2,
    "nn.gelu_tanh": lambda attrs, x: np.abs(x) / 2,
    "nn.group_norm": _of_norm,
    "nn.instance_norm": _of_norm,
    "nn.mish": lambda attrs, x: np.abs(x),  # x times the tanh of a softplus: (1 + exp(x))^2 - 1 over the same + 1
    "nn.softplus": lambda attrs, x: np.full(x.shape, 4.0),  # 1 + exp(x), and the error of oneDNN's logarithm near 1
    "prod": _of_product,
}
# The least numbers with all of their digits: what is smaller may be rounded to a few bits, or to 0.
UNDERFLOW = {name: float(np.finfo(name).tiny) for name in ("float32", "float64")}
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
EQUALITIES = ("equal", "not_equal")
# Operators that move, compare or round numbers: what they make of numbers that are known exactly is known exactly.
EXACT = (
    *("abs", "all", "any", "argmax", "argmin", "broadcast_to", "ceil", "concat", "equal", "flip", "floor"),
    *("gather_elements", "gather_nd", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_not"),
    *("logical_or", "logical_xor", "max", "maximum", "min", "minimum", "negative", "nn.max_pool1d", "nn.max_pool2d"),
    *("nn.max_pool3d", "nn.relu", "not_equal", "permute_dims", "reshape", "round", "sign", "split", "strided_slice"),
    *("take", "tile", "topk", "trilu", "trunc", "where"),
)
SCALED = ("quantize", "dequantize")  # exact where their scales are powers of two
# Operators that look at bits, or make numbers: in float64 they mean something else.
NATIVE = ("reinterpret", "round_to_format", "random.bits", "random.key", "random.normal", "random.uniform")


class Expected(NamedTuple):
    """Hold a result in float64 (integers as they are) and the error that each element may have; inf: any.

    precision: the dtype whose rounding it may show; that of a float64 which was computed from float32, say.
    """

    value: np.ndarray
    slack: np.ndarray
    dtype: str
    precision: str

    def worst(self, actual: np.ndarray) -> float:
        """Return the largest error of a result, as a multiple of what is allowed; inf for another shape or dtype."""
        if actual.shape != self.value.shape or dtypes.from_numpy(actual.dtype) != self.dtype:
            return np.inf
        if not actual.size:
            return 0.0
        value = self.value.astype(np.float64)
        relative, absolute = FLOORS.get(self.precision, (0.0, 0.0))
        largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
        allowed = self.slack + relative * np.abs(value) + absolute * largest + UNDERFLOW.get(self.precision, 0.0)
        given = actual.astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(given - value)
            error = np.where((given == value) | (np.isnan(given) & np.isnan(value)), 0.0, error)
            share = np.where(error == 0, 0.0, error / allowed)
        share = np.where(np.isinf(allowed), 0.0, share)
        return float(np.where(np.isnan(share), np.inf, share).max())


def compute_expected(module: IRModule, feeds: Sequence[np.ndarray], runs: int = RUNS, seed: int = 0) -> list[Expected]:
    """Return what `main` of a module gives in float64, with bounds.

    Raises: UndefinedError where rounding decides whether there is a result; else as the operators' references.
    """
    main = module["main"]
    assert isinstance(main, Function)
    with np.errstate(all="ignore"):
        exact = _flat(_Evaluator(module, None).call(main, feeds))
        noises = [_Noise(run, seed) for run in range(runs)]
        try:
            others = [_flat(_Evaluator(module, noise).call(main, feeds)) for noise in noises]
        except COMPUTE_ERRORS as error:
            raise UndefinedError(str(error)) from error
    types = main.result_type.fields if isinstance(main.result_type, TupleType) else (main.result_type,)
    names = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    return [
        Expected(value, _slack(value, [other[at] for other in others]), name, _precision(main, name))
        for at, (value, name) in enumerate(zip(exact, names, strict=True))
    ]


def _precision(function: Function, dtype: str) -> str:
    """Return the dtype whose rounding a result may show: float32 for float64 in a function that has it, too."""
    if dtype != "float64":
        return dtype
    values = (*function.params, *(binding.var for binding in function.bindings))
    return "float32" if any(t.dtype == "float32" for var in values for t in tensors_of(var.type)) else dtype


def _slack(value: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    slack = np.zeros(value.shape)
    for other in others:
        if other.shape != value.shape:
            return np.full(value.shape, np.inf)
        with np.errstate(all="ignore"):
            slack = np.fmax(slack, np.abs(other.astype(np.float64) - value.astype(np.float64)))
        is_known = ~(np.isnan(other.astype(np.float64)) | np.isnan(value.astype(np.float64)))
        slack = np.where(is_known, slack, np.inf)
    return FACTOR * slack


def _kernel_errors(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return how far each element may be from what a kernel of its dtype gives."""
    relative, absolute = FLOORS[dtype]
    largest = np.abs(array[np.isfinite(array)]).max(initial=0.0)
    return relative * np.abs(array) + absolute * largest


class _Noise:
    """Factors near 1: the first two runs shift all operands up or down, the others each element by chance."""

    def __init__(self, run: int, seed: int) -> None:
        self._run, self._random = run, np.random.default_rng((seed, run))

    def __call__(self, array: np.ndarray, dtype: str) -> np.ndarray:
        if dtype not in BITS or array.dtype.kind != "f":
            return array
        return self._shift(array, 2.0 ** -BITS[dtype] * array)

    def at_bits(self, array: np.ndarray, dtype: str) -> np.ndarray:
        """Return an operand whose bits are looked at: off by all that its dtype's kernels may be off by."""
        if dtype not in FLOORS or array.dtype.kind != "f":
            return array
        return self._shift(array, _kernel_errors(array, dtype) / FACTOR)

    def of_result(self, call: Call, args: Sequence[np.ndarray], value: Value) -> Value:
        """Return a result with the errors that follow from no operand's."""
        return self._at_equality(call, args, self._underflow(self._round_inside(call, args, value), call.type))

    def _shift(self, array: np.ndarray, size: np.ndarray) -> np.ndarray:
        if self._run < 2:
            return array + (size if self._run else -size)
        return array + size * self._random.uniform(-1, 1, np.shape(array))

    def _round_inside(self, call: Call, args: Sequence[np.ndarray], value: Value) -> Value:
        """Return a result that is off by what its operator rounds on its way; 0 in the first run where that is more."""
        if call.op_name not in INNER or isinstance(value, tuple) or value.dtype.kind != "f":
            return value
        precision = np.float64 if call.tensor_type.dtype == "float64" else np.float32
        size = float(np.finfo(precision).eps) * INNER[call.op_name](call.attrs, *args)
        return np.where(self._run or np.abs(value) > FACTOR * size, self._shift(value, size), 0.0)

    def _at_equality(self, call: Call, args: Sequence[np.ndarray], value: Value) -> Value:
        """Return whether operands are equal; of those that kernels may make equal all in the first run, none in the
        second, and some by chance later: no random error hits one number. A cast to bool asks for 0.
        """
        is_of_zero = call.op_name == "astype" and call.attrs["dtype"] == "bool"
        if not (is_of_zero or call.op_name in EQUALITIES) or args[0].dtype.kind != "f":
            return value
        errors = [_kernel_errors(arg, each.tensor_type.dtype) for arg, each in zip(args, call.args, strict=True)]
        is_near = np.abs(args[0]) <= errors[0] if is_of_zero else np.abs(args[0] - args[1]) <= errors[0] + errors[1]
        chosen = self._random.random(is_near.shape) < 0.5 if self._run > 1 else np.full(is_near.shape, self._run == 0)
        return np.where(is_near, chosen if call.op_name == "equal" else ~chosen, value)

    def _underflow(self, value: Value, type_: Any) -> Value:
        """Return a result; in the first run numbers too small for float32 are 0: softmax of a far lower score, say."""
        if self._run or isinstance(value, tuple) or type_.dtype != "float32":
            return value
        return np.where(np.abs(value) < UNDERFLOW["float32"], 0.0, value)


def _exact_values(function: Function) -> frozenset[Var]:
    """Return the values of a function that no kernel rounds, where its parameters are given exactly."""
    exact = set(function.params)

    def is_exact(operand: Expr) -> bool:
        return isinstance(operand, Constant) or operand in exact

    for binding in function.bindings:
        value = binding.value
        if isinstance(value, TupleGetItem):
            operands: Sequence[Expr] = (value.tuple_value,)
        elif isinstance(value, Call) and _rounds_nothing(value):
            operands = value.args
        else:
            continue
        if all(map(is_exact, operands)):
            exact.add(binding.var)
    return frozenset(exact)


def _rounds_nothing(call: Call) -> bool:
    if call.op_name not in SCALED:
        return call.op_name in EXACT
    scale = call.args[1]
    return isinstance(scale, Constant) and bool(np.all(np.frexp(scale.data.astype(np.float64))[0] == 0.5))


class _Evaluator:
    """Computes functions with float64 in place of every float."""

    def __init__(self, module: IRModule, noise: _Noise | None) -> None:
        self.module, self.noise = module, noise
        main = module["main"]
        assert isinstance(main, Function)
        self.exact = _exact_values(main)

    def call(self, function: Function, args: Sequence[Value]) -> Value:
        wide = [_wide(arg) for arg in args]
        values: dict[Var, Value] = dict(zip(function.params, wide, strict=True))
        for binding in function.bindings:
            noise = None if binding.var in self.exact else self.noise
            values[binding.var] = self._evaluate(binding.value, values, noise)
        return _operand(function.result, values)

    def _evaluate(self, value: Expr, values: Mapping[Var, Value], noise: _Noise | None) -> Value:
        if isinstance(value, TupleGetItem):
            return _operand(value.tuple_value, values)[value.index]
        if not isinstance(value, Call):
            return _operand(value, values)
        if value.op_name == IF:
            then, otherwise, condition, *args = value.args
            chosen = then if _operand(condition, values) else otherwise
            return self.call(self._function(chosen), [_operand(arg, values) for arg in args])
        if value.op_name == WHILE:
            return self._loop(value, values)
        return _compute_call(value, values, noise)

    def _loop(self, call: Call, values: Mapping[Var, Value]) -> Value:
        condition, body, *args = call.args
        state = [_operand(arg, values) for arg in args]
        while self.call(self._function(condition), state):
            result = self.call(self._function(body), state)
            state = list(result) if isinstance(result, tuple) else [result]
        return tuple(state) if len(state) > 1 else state[0]

    def _function(self, name: Expr) -> Function:
        assert isinstance(name, GlobalVar)
        function = self.module[name.name]
        assert isinstance(function, Function)
        return function


def _compute_call(call: Call, values: Mapping[Var, Value], noise: _Noise | None) -> Value:
    args = [_operand(arg, values) for arg in call.args]
    names = [arg.tensor_type.dtype for arg in call.args]
    if noise is not None:
        shifted = noise.at_bits if call.op_name == "reinterpret" else noise
        args = [shifted(arg, name) for arg, name in zip(args, names, strict=True)]  # pyright: ignore[reportArgumentType]
    if call.op_name not in NATIVE:
        attrs = {key: _wide_dtype(key, value) for key, value in call.attrs.items()}
        try:
            result = _as_typed(call.op.reference(*args, **attrs), call.type)  # pyright: ignore[reportOptionalCall, reportAttributeAccessIssue]
            return result if noise is None else noise.of_result(call, args, result)
        except COMPUTE_ERRORS:
            pass  # a reference of fewer dtypes
    native = [arg.astype(dtypes.to_numpy(name)) for arg, name in zip(args, names, strict=True)]  # pyright: ignore[reportAttributeAccessIssue]
    return _wide(call.op.reference(*native, **call.attrs))  # pyright: ignore[reportOptionalCall, reportAttributeAccessIssue]


def _wide_dtype(key: str, value: Any) -> Any:
    return "float64" if key == "dtype" and dtypes.is_float(value) else value


def _operand(expr: Expr, values: Mapping[Var, Value]) -> Any:
    if isinstance(expr, Var):
        return values[expr]
    if isinstance(expr, Tuple):
        return tuple(_operand(field, values) for field in expr.fields)
    assert isinstance(expr, Constant)
    return _wide(expr.data)


def _wide(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wide, value))
    array = np.asarray(value)
    is_float = dtypes.is_float(dtypes.from_numpy(array.dtype))
    return array.astype(np.float64) if is_float else array


def _as_typed(result: Any, type_: Any) -> Any:
    """Return a result whose floats are float64, those of narrow dtypes rounded, and integers of the stated dtypes."""
    if isinstance(result, tuple):
        return tuple(_as_typed(one, each) for one, each in zip(result, type_.fields, strict=True))
    if dtypes.is_float(type_.dtype):
        narrow = dtypes.to_numpy(type_.dtype) if type_.dtype in NARROW else np.float64
        return result.astype(narrow).astype(np.float64)
    if result.dtype != dtypes.to_numpy(type_.dtype):
        raise TypeError("the reference follows the dtype of an operand")
    return result


def _flat(value: Value) -> list[np.ndarray]:
    return [value] if isinstance(value, np.ndarray) else [array for item in value for array in _flat(item)]
