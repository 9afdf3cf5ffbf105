"""Spell the norms out in elementary operators, for backends and code generators that have no norms of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.simplify.simplify_inference import decompose_batch_norm

Axes = tuple[int, ...]


class DecomposeOpsForInference(FunctionPass):
    """Norms become means, differences, products and roots.

    ops: those to decompose, default all of `DECOMPOSITIONS`. A norm whose shape is in the way (a group norm with a
    symbolic number of channels) stays.
    Raises: PassError for an operator that has no decomposition.
    """

    name = "decompose_ops_for_inference"

    def __init__(self, ops: Collection[str] | None = None) -> None:
        self._ops = frozenset(DECOMPOSITIONS if ops is None else ops)
        unknown = sorted(self._ops - DECOMPOSITIONS.keys())
        if unknown:
            raise PassError(
                "these operators have no decomposition",
                found=", ".join(unknown),
                expected=", ".join(DECOMPOSITIONS),
            )

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Decomposer(self._ops).mutate(function)


class _Decomposer(FunctionMutator):
    def __init__(self, ops: Collection[str]) -> None:
        super().__init__()
        self._ops = ops

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in self._ops:
            return value
        new = DECOMPOSITIONS[value.op_name](self, value)
        return value if new is None else new

    def op(self, name: str, *operands: Expr, **attrs: object) -> Expr:
        """Bind a call of an op."""
        return self.emit(Call(get_op(name), operands, attrs))


def _layer_norm(d: _Decomposer, call: Call) -> Expr:
    x, gamma, beta = call.args
    axes = call.attrs["axes"]
    scaled = d.op("multiply", _normalize(d, x, axes, call.attrs["epsilon"]), _broadcast_over(d, gamma, x, axes))
    return d.op("add", scaled, _broadcast_over(d, beta, x, axes))


def _rms_norm(d: _Decomposer, call: Call) -> Expr:
    x, gamma = call.args
    axes = call.attrs["axes"]
    normal = d.op("divide", x, _deviation(d, x, axes, call.attrs["epsilon"]))
    return d.op("multiply", normal, _broadcast_over(d, gamma, x, axes))


def _instance_norm(d: _Decomposer, call: Call) -> Expr:
    x, gamma, beta = call.args
    normal = _normalize(d, x, tuple(range(2, x.tensor_type.rank)), call.attrs["epsilon"])
    return d.op("add", d.op("multiply", normal, _broadcast_over(d, gamma, x, (1,))), _broadcast_over(d, beta, x, (1,)))


def _group_norm(d: _Decomposer, call: Call) -> Expr | None:
    x, gamma, beta = call.args
    batch, channels, *spatial = x.tensor_type.shape
    groups = call.attrs["num_groups"]
    if not isinstance(channels, int):
        return None
    grouped = d.op("reshape", x, shape=(batch, groups, channels // groups, *spatial))
    normal = _normalize(d, grouped, tuple(range(2, grouped.tensor_type.rank)), call.attrs["epsilon"])
    normal = d.op("reshape", normal, shape=x.tensor_type.shape)
    return d.op("add", d.op("multiply", normal, _broadcast_over(d, gamma, x, (1,))), _broadcast_over(d, beta, x, (1,)))


def _normalize(d: _Decomposer, x: Expr, axes: Axes, epsilon: float) -> Expr:
    centred = d.op("subtract", x, d.op("mean", x, axes=axes, keepdims=True))
    return d.op("divide", centred, _deviation(d, centred, axes, epsilon))


def _deviation(d: _Decomposer, x: Expr, axes: Axes, epsilon: float) -> Expr:
    """sqrt(mean(x * x) + epsilon)."""
    mean = d.op("mean", d.op("square", x), axes=axes, keepdims=True)
    small = np.asarray(epsilon).astype(dtypes.to_numpy(x.tensor_type.dtype))
    return d.op("sqrt", d.op("add", mean, Constant(small)))


def _broadcast_over(d: _Decomposer, parameter: Expr, x: Expr, axes: Axes) -> Expr:
    """Return a parameter with one element for each place along `axes`, so that it broadcasts to `x`."""
    shape = tuple(dim if i in axes else 1 for i, dim in enumerate(x.tensor_type.shape))
    return parameter if parameter.tensor_type.shape == shape else d.op("reshape", parameter, shape=shape)


DECOMPOSITIONS: Mapping[str, Callable[[_Decomposer, Call], Expr | None]] = MappingProxyType(
    {
        "nn.batch_norm": decompose_batch_norm,
        "nn.layer_norm": _layer_norm,
        "nn.rms_norm": _rms_norm,
        "nn.instance_norm": _instance_norm,
        "nn.group_norm": _group_norm,
    }
)
