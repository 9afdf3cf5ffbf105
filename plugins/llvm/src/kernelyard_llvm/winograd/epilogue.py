"""Post-ops as generated code: what a convolution's kernel does to a vector of results before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernelyard_llvm.winograd.emitter import Emitter


class Stage(NamedTuple):
    """One post-op. eltwise: algorithm, alpha and beta as oneDNN names them. binary: algorithm and `operand`, the number
    of a tensor; is_scalar: it has one value for all channels of a pixel.
    """

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0
    operand: int | None = None
    is_scalar: bool = False


def finish(f: Emitter, stages: Sequence[Stage], value: str, places: Mapping[int, str], channel: str, mask: str) -> str:
    """The vector after all stages; `places` are the addresses of the operands' pixels."""
    for stage in stages:
        if stage.operand is None:
            value = ELTWISE[stage.algorithm](f, value, stage.alpha, stage.beta)
            continue
        place = places[stage.operand]
        if stage.is_scalar:
            operand = f.broadcast(f.value(f"load float, ptr {place}, align 4"))
        else:
            operand = f.load_lanes(f.at(place, channel), mask)
        value = BINARY[stage.algorithm](f, value, operand)
    return value


def _at_least(f: Emitter, value: str, bound: str) -> str:
    """NaN becomes the bound."""
    return _selected(f, "ogt", value, bound)


def _selected(f: Emitter, how: str, left: str, right: str) -> str:
    condition = f.value(f"fcmp {how} {f.vector} {left}, {right}")
    return f.value(f"select {f.mask} {condition}, {f.vector} {left}, {f.vector} {right}")


def _relu(f: Emitter, value: str, alpha: float, beta: float) -> str:
    if alpha == 0:
        return _at_least(f, value, "zeroinitializer")
    positive = f.value(f"fcmp ogt {f.vector} {value}, zeroinitializer")
    scaled = f.multiply(value, f.splat(alpha))
    return f.value(f"select {f.mask} {positive}, {f.vector} {value}, {f.vector} {scaled}")


def _clip(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return _selected(f, "olt", _at_least(f, value, f.splat(alpha)), f.splat(beta))


def _linear(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return f.fma(value, f.splat(alpha), f.splat(beta))


def _hard_sigmoid(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return _clip(f, _linear(f, value, alpha, beta), 0.0, 1.0)


def _hard_swish(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return f.multiply(value, _hard_sigmoid(f, value, alpha, beta))


def _absolute(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return f.value(f"call {f.vector} @llvm.fabs.v{f.lanes}f32({f.vector} {value})")


def _square(f: Emitter, value: str, alpha: float, beta: float) -> str:
    return f.multiply(value, value)


ELTWISE: Mapping[str, Callable[[Emitter, str, float, float], str]] = {
    "relu": _relu,
    "clip": _clip,
    "linear": _linear,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "abs": _absolute,
    "square": _square,
}

BINARY: Mapping[str, Callable[[Emitter, str, str], str]] = {
    "add": Emitter.add,
    "sub": Emitter.subtract,
    "mul": Emitter.multiply,
    "max": lambda f, a, b: _selected(f, "ogt", a, b),
    "min": lambda f, a, b: _selected(f, "olt", a, b),
}
