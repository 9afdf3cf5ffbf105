"""Compute no place of a convolution that is cut off at once: it has less padding instead.

Causal convolutions are written so: padding on both sides, then a slice without the places that saw the future (the
chomp of temporal convolutional networks, https://arxiv.org/abs/1803.01271).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kernelyard.dims import Dim
from kernelyard.ir import Binding, Call, Expr, Function, IRModule, Op, Var, get_op, operands
from kernelyard.ir.visitor import result_vars
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.algebraic.hoist_strides import CONVOLUTIONS
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

_FIRST_SPATIAL = 2  # the axis behind batch and channels


class CropConvolutions(FunctionPass):
    """`slice(f(conv(x)))` becomes `f(conv(x))` with as much less padding as the slice cuts off.

    f: elementwise operators whose other operands are the same at all places. What goes beyond the padding stays a
    slice.
    """

    name = "crop_convolutions"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        crops = _crops(function)
        return _replace_slices(function, crops) if crops else function


@dataclass(frozen=True)
class _Crop:
    """Describe what takes the place of a slice.

    chain: the variables from the convolution to what is sliced. padding: the convolution's. rest: begin and end of the
    slice that stays, by axis.
    """

    chain: Sequence[Var]
    padding: tuple[int, ...]
    rest: dict[int, tuple[int, Dim]]


def _crops(function: Function) -> dict[Var, _Crop]:
    """Return the slices that become cropped convolutions, by their variables."""
    values = {binding.var: binding.value for binding in function.bindings}
    read = [operand for value in values.values() for operand in operands(value)]
    reads = Counter([*read, *result_vars(function)])
    found: dict[Var, _Crop] = {}
    for binding in function.bindings:
        value = binding.value
        if not _is_call(value, "strided_slice") or any(stride != 1 for stride in value.attrs["strides"]):
            continue
        chain = _chain(value.args[0], values, reads, value.attrs["axes"])
        crop = _crop(value, chain, values[chain[0]]) if chain else None
        if crop is not None:
            found[binding.var] = crop
    return found


def _is_call(value: Expr, *names: str) -> TypeGuard[Call]:
    return isinstance(value, Call) and isinstance(value.op, Op) and value.op_name in names


def _chain(sliced: Expr, values: dict[Var, Expr], reads: Counter[Expr], axes: Sequence[int]) -> list[Var]:
    """Return the variables from a convolution to what is sliced, each of which is read once; none where there are
    other operators between."""
    chain: list[Var] = []
    while isinstance(sliced, Var) and reads[sliced] == 1 and sliced in values:
        value = values[sliced]
        chain.append(sliced)
        if _is_call(value, *CONVOLUTIONS):
            return chain[::-1]
        if not _is_call(value, *ELEMENTWISE):
            return []
        whole = [arg for arg in value.args if _varies(arg, value.tensor_type.rank, axes)]
        if len(whole) != 1:
            return []
        (sliced,) = whole
    return []


def _varies(operand: Expr, rank: int, axes: Sequence[int]) -> bool:
    """Return True for an operand that has more than one place along an axis of a result of this rank."""
    shape = operand.tensor_type.shape
    missing = rank - len(shape)
    return any(axis >= missing and shape[axis - missing] != 1 for axis in axes)


def _crop(cut: Call, chain: Sequence[Var], convolution: Expr) -> _Crop | None:
    """Return what a slice becomes; None where it cuts nothing off that padding made."""
    assert isinstance(convolution, Call)
    strides, padding = convolution.attrs["strides"], list(convolution.attrs["padding"])
    shape, count, rest = cut.args[0].tensor_type.shape, len(strides), {}
    for axis, begin, end in zip(cut.attrs["axes"], cut.attrs["begin"], cut.attrs["end"], strict=True):
        at, behind = axis - _FIRST_SPATIAL, shape[axis] - end
        if at < 0 or not isinstance(begin, int) or not isinstance(behind, int) or begin < 0 or behind < 0:
            return None
        first, last = min(begin, padding[at] // strides[at]), min(behind, padding[count + at] // strides[at])
        padding[at] -= first * strides[at]
        padding[count + at] -= last * strides[at]
        if begin > first or behind > last:
            rest[axis] = (begin - first, end - first)
    if tuple(padding) == convolution.attrs["padding"]:
        return None
    return _Crop(chain, tuple(padding), rest)


def _replace_slices(function: Function, crops: dict[Var, _Crop]) -> Function:
    """Return the function with each crop in place of its slice."""
    skipped = {var for crop in crops.values() for var in crop.chain}
    values = {binding.var: binding.value for binding in function.bindings if binding.var in skipped}
    bindings: list[Binding] = []
    for binding in function.bindings:
        if binding.var in crops:
            bindings.extend(_find_crop(binding.var, crops[binding.var], values))
        elif binding.var not in skipped:
            bindings.append(binding)
    return Function(function.params, bindings, function.result, function.attrs)


def _find_crop(result: Var, crop: _Crop, values: dict[Var, Expr]) -> list[Binding]:
    """Return what computes a slice: its convolution, what is between them, and the slice that stays."""
    bindings: list[Binding] = []
    before: Var | None = None
    for var in crop.chain:
        call = values[var]
        assert isinstance(call, Call)
        if before is None:
            new = Call(call.op, call.args, {**call.attrs, "padding": crop.padding})
        else:
            old = crop.chain[len(bindings) - 1]
            new = Call(call.op, [before if arg is old else arg for arg in call.args], call.attrs)
        is_last = var is crop.chain[-1] and not crop.rest
        before = result if is_last else Var(var.name, new.type, var.origin)
        bindings.append(Binding(before, new))
    if crop.rest:
        begins, ends = zip(*crop.rest.values(), strict=True)
        attrs = {"axes": tuple(crop.rest), "begin": begins, "end": ends, "strides": (1,) * len(begins)}
        bindings.append(Binding(result, Call(get_op("strided_slice"), [bindings[-1].var], attrs)))
    return bindings
