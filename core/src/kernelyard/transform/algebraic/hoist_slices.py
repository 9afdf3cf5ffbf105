"""Compute no row and no column of a matrix product that nobody reads: slices move to the product's operands.

Classifiers read the first token of their last layer alone, generators the last one, and relative position embeddings
(https://arxiv.org/abs/2006.03654) a few columns of a product with all positions.
"""

from __future__ import annotations

import math

import numpy as np

from kernelyard.ir import Binding, Call, Constant, Expr, Function, IRModule, TensorType, Var, get_op, operands
from kernelyard.ir.visitor import definitions, result_vars
from kernelyard.transform.algebraic.read_ranges import INDEXED, Ranges, Reads, hull
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

_LARGEST_SHARE = 0.5  # of a product's elements: to compute more of them alone is not worth a copy of its operands


class HoistSlices(FunctionPass):
    """`slice(f(x @ w))` becomes `f(slice(x) @ w)`, where nobody reads more; columns become a slice of `w`.

    slice: also takes and gathers by constant indices. f: operators that compute a place of their result from the
    same place of their operands (norms, softmax, elementwise operators, movements). The sizes of the sliced axes must
    be known.
    """

    name = "hoist_slices"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        if not any(isinstance(b.value, Call) and b.value.op_name in INDEXED for b in function.bindings):
            return function
        reads = Reads(definitions(function))
        return _Hoister(reads, _find_read_ranges(function, reads)).run(function)


def _find_read_ranges(function: Function, reads: Reads) -> dict[Var, Ranges]:
    """Return what of each value is read, where that is not all of it."""
    found: dict[Var, Ranges] = {var: {} for var in result_vars(function)}
    for binding in reversed(function.bindings):
        value = binding.value
        own = reads.computable(value, found.get(binding.var, {}))
        found[binding.var] = own
        for place, operand in enumerate(operands(value)):
            if isinstance(operand, Var):
                read = reads.of_operand(value, place, own)
                found[operand] = hull(found[operand], read) if operand in found else read
    return {var: ranges for var, ranges in found.items() if ranges}


class _Hoister:
    """Rebuilds a function with products of which no more is computed than is read, and what lies between."""

    def __init__(self, reads: Reads, wanted: dict[Var, Ranges]) -> None:
        self._reads, self._wanted = reads, wanted
        self._bindings: list[Binding] = []
        self._narrowed: dict[Expr, tuple[Var, Ranges]] = {}

    def run(self, function: Function) -> Function:
        for binding in function.bindings:
            self._visit(binding)
        if not self._narrowed:
            return function
        return Function(function.params, self._bindings, function.result, function.attrs)

    def _visit(self, binding: Binding) -> None:
        var, value = binding.var, binding.value
        own = self._wanted.get(var, {})
        reads_a_part = any(operand in self._narrowed for operand in operands(value))
        if not isinstance(value, Call) or not (reads_a_part or self._is_worth_it(value, own)):
            self._bindings.append(binding)
            return
        new = self._narrow_call(value, own)
        if own:
            self._narrowed[var] = self._bind(new, var.name, var.origin), own
        else:
            self._bindings.append(Binding(var, new))

    @staticmethod
    def _is_worth_it(value: Call, own: Ranges) -> bool:
        if not own or value.op_name != "matmul":
            return False
        sizes = [size for axis, size in enumerate(value.tensor_type.shape) if axis in own and isinstance(size, int)]
        return math.prod(end - begin for begin, end in own.values()) <= _LARGEST_SHARE * math.prod(sizes)

    def _narrow_call(self, call: Call, own: Ranges) -> Call:
        """Return the call that computes the part `own` of its result, of operands that may be parts."""
        reads = [self._reads.of_operand(call, place, own) for place in range(len(call.args))]
        args = [self._narrow(arg, read, call) for arg, read in zip(call.args, reads, strict=True)]
        attrs = dict(call.attrs)
        if "shape" in attrs:
            sizes = enumerate(call.tensor_type.shape)
            attrs["shape"] = tuple(own[axis][1] - own[axis][0] if axis in own else size for axis, size in sizes)
        computed = self._part(call.args[0])[1]
        offsets = {axis: computed[axis][0] for axis in self._reads.find_indexed_ranges(call) if axis in computed}
        if call.op_name == "strided_slice":
            for name in ("begin", "end"):
                numbers = zip(attrs["axes"], attrs[name], strict=True)
                attrs[name] = tuple(number - offsets.get(axis, 0) for axis, number in numbers)
        elif offsets:
            args[1] = self._shift_indices(call, offsets[attrs["axis"]])
        return Call(call.op, args, attrs)

    def _shift_indices(self, call: Call, offset: int) -> Expr:
        """Return the constant indices of a take or a gather into what begins at `offset`."""
        numbers, shape = self._reads.indices(call), call.args[1].tensor_type.shape
        assert numbers is not None
        moved = Constant(np.asarray(numbers - numbers.dtype.type(offset)))
        if numbers.shape == shape:
            return moved
        return self._bind(Call(get_op("broadcast_to"), [moved], {"shape": shape}))

    def _narrow(self, operand: Expr, ranges: Ranges, reader: Call) -> Expr:
        """Return what a reader reads of an operand; what it indexes itself is as far as it was computed."""
        kept = self._reads.find_indexed_ranges(reader) if operand is reader.args[0] else {}
        operand, computed = self._part(operand)
        cuts = {axis: _clip_range(ranges[axis], computed.get(axis)) for axis in ranges if axis not in kept}
        shape = operand.tensor_type.shape if isinstance(operand.type, TensorType) else ()
        cuts = {axis: cut for axis, cut in cuts.items() if cut != (0, shape[axis])}
        if not cuts:
            return operand
        begins, ends = zip(*cuts.values(), strict=True)
        if isinstance(operand, Constant):
            index = [slice(*cuts[axis]) if axis in cuts else slice(None) for axis in range(len(shape))]
            return Constant(np.ascontiguousarray(operand.data[tuple(index)]))
        attrs = {"axes": tuple(cuts), "begin": begins, "end": ends, "strides": (1,) * len(cuts)}
        return self._bind(Call(get_op("strided_slice"), [operand], attrs))

    def _part(self, operand: Expr) -> tuple[Expr, Ranges]:
        """Return what there is of an operand, and which part of it that is."""
        return self._narrowed.get(operand, (operand, {}))

    def _bind(self, call: Call, name: str = "lv", origin: str = "") -> Var:
        var = Var(name, call.type, origin)
        self._bindings.append(Binding(var, call))
        return var


def _clip_range(ranges: tuple[int, int], computed: tuple[int, int] | None) -> tuple[int, int]:
    """Return a range in numbers of the part that is computed."""
    offset = computed[0] if computed else 0
    return ranges[0] - offset, ranges[1] - offset
