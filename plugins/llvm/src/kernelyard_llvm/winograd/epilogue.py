"""Post-ops as generated code: what a convolution's kernel does to a vector of results before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernelyard.records import NamedTuple
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Operand, Value


class Stage(NamedTuple):
    """One post-op. eltwise: algorithm, alpha and beta as oneDNN names them. binary: algorithm and `operand`, the number
    of a tensor; is_scalar: it has one value for all channels of a pixel.
    """

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0
    operand: int | None = None
    is_scalar: bool = False


def finish(
    f: FunctionEmitter, stages: Sequence[Stage], value: Value, places: Mapping[int, Value], channel: Value, mask: Value
) -> Value:
    """Return the vector after all stages; `places` are the addresses of the operands' pixels."""
    for stage in stages:
        if stage.operand is None:
            value = ELTWISE[stage.algorithm](f, value, stage.alpha, stage.beta)
            continue
        place = places[stage.operand]
        if stage.is_scalar:
            operand = f.load(place)
        else:
            operand = f.load(f.element(place, channel), value.lanes, mask)
        value = BINARY[stage.algorithm](f, value, operand)
    return value


def _maximum(f: FunctionEmitter, left: Value, right: Operand) -> Value:
    """Return the larger one; right where one is NaN."""
    return f.select(f.compare("ogt", left, right), left, right)


def _minimum(f: FunctionEmitter, left: Value, right: Operand) -> Value:
    """Return the smaller one; right where one is NaN."""
    return f.select(f.compare("olt", left, right), left, right)


def _relu(f: FunctionEmitter, value: Value, alpha: float, beta: float) -> Value:
    return f.select(f.compare("ogt", value, 0.0), value, f.mul(value, alpha) if alpha else 0.0)


def _prelu(f: FunctionEmitter, value: Value, slope: Value) -> Value:
    return f.select(f.compare("ogt", value, 0.0), value, f.mul(value, slope))


def _clip(f: FunctionEmitter, value: Value, alpha: float, beta: float) -> Value:
    return _minimum(f, _maximum(f, value, alpha), beta)


def _hard_sigmoid(f: FunctionEmitter, value: Value, alpha: float, beta: float) -> Value:
    return _clip(f, f.fma(value, alpha, beta), 0.0, 1.0)


ELTWISE: Mapping[str, Callable[[FunctionEmitter, Value, float, float], Value]] = {
    "relu": _relu,
    "clip": _clip,
    "linear": FunctionEmitter.fma,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda f, value, alpha, beta: f.mul(value, _hard_sigmoid(f, value, alpha, beta)),
    "abs": lambda f, value, alpha, beta: f.intrinsic("fabs", value),
    "round": lambda f, value, alpha, beta: f.intrinsic("roundeven", value),
    "square": lambda f, value, alpha, beta: f.mul(value, value),
}

BINARY: Mapping[str, Callable[[FunctionEmitter, Value, Value], Value]] = {
    "add": FunctionEmitter.add,
    "sub": FunctionEmitter.sub,
    "mul": FunctionEmitter.mul,
    "max": _maximum,
    "min": _minimum,
    "prelu": _prelu,
}
