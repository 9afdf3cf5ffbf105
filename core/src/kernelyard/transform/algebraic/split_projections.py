"""Compute queries, keys and values each by a product of its own where one product with all of them would be copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    FunctionMutator,
    IRModule,
    TensorType,
    TupleGetItem,
    Var,
    get_op,
)
from kernelyard.ir.expr import operands
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

_ATTENTION = ("nn.attention", "nn.attention_bias")
_QUERY_KEY_VALUE = 3
_BATCH_LENGTH = 2  # leading axes of an operand of attention; heads and their elements follow


class SplitProjections(FunctionPass):
    """`attention(part(x @ w), ...)` becomes `attention(x @ part(w), ...)`.

    part: any slices, takes, reshapes and permutations that lead from columns of one product, with its bias, to whole
    heads. Attention reads the new products in place; their columns are taken while compiling. Where rows were permuted
    (batch and length, in multi-head attention of PyTorch), those of `x` are. Products that somebody else reads, too,
    and weights that are no constants stay.

    It expects the forms of `canonicalize`. Libraries come first: run it after the partition, on what they did not take.
    """

    name = "split_projections"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        bindings = function.bindings
        if not any(isinstance(b.value, Call) and b.value.op_name in _ATTENTION for b in bindings):
            return function
        parts = _Parts(function)
        return _Splitter(parts).mutate(function) if parts.wanted else function


@dataclass(frozen=True)
class _Part:
    """Elements of a product: rows as they are, and some of its columns.

    product: the variable. width: its columns. columns: which of them, by the axes that are no rows. is_row: for each
    axis of the part. permutations: of rows, in turn: the sizes of their axes, and the axes in their new order.
    """

    product: Var
    width: int
    bias: Constant | None
    shape: Shape
    is_row: tuple[bool, ...]
    columns: np.ndarray
    permutations: tuple[tuple[Shape, tuple[int, ...]], ...] = ()

    def axis_of_columns(self, axis: int) -> int | None:
        """Return which axis of `columns` an axis of the part is; None for rows."""
        return None if self.is_row[axis] else self.is_row[:axis].count(False)

    @property
    def is_whole(self) -> bool:
        """True for all rows and columns in order, which attention reads in place already."""
        return not self.permutations and np.array_equal(self.columns.ravel(), np.arange(self.width))


class _Parts:
    """The parts of products in a function, by variable; wanted: those that attention reads, and nobody else."""

    def __init__(self, function: Function) -> None:
        self.of: dict[Expr, _Part] = {}
        self._values: dict[Expr, Expr] = {}
        self._read: set[Expr] = set()
        self._read_elsewhere: set[Expr] = {function.result, *operands(function.result)}
        for binding in function.bindings:
            self._values[binding.var] = binding.value
            if not self._attends(binding.value) and not self._follow(binding):
                self._read_elsewhere.update(operands(binding.value))
        self.wanted = self._find_wanted()

    def _find_wanted(self) -> set[Expr]:
        columns = Counter[Var]()
        for part in (self.of[var] for var in self._read):
            columns[part.product] += part.columns.size
        kept = {self.of[var].product for var in self._read_elsewhere if var in self.of}
        parts = {var: self.of[var] for var in self._read}
        kept |= {part.product for part in parts.values() if columns[part.product] > part.width}
        return {var for var, part in parts.items() if part.product not in kept and not part.is_whole}

    def product_of(self, part: _Part) -> Call:
        """Return the call that a part is of."""
        call = self._values[part.product]
        assert isinstance(call, Call)
        return call

    def _attends(self, value: Expr) -> bool:
        """Note what an attention reads; False for everything else."""
        if not isinstance(value, Call) or value.op_name not in _ATTENTION:
            return False
        heads = {arg for arg in value.args[:_QUERY_KEY_VALUE] if self._is_heads(arg)}
        self._read |= heads
        self._read_elsewhere.update(set(operands(value)) - heads)
        return True

    def _is_heads(self, operand: Expr) -> bool:
        """Return True for a part with the rows of its product in order, whole heads in each."""
        part = self.of.get(operand)
        if part is None:
            return False
        axes = enumerate(zip(part.shape, part.is_row, strict=True))
        return all(is_row == (number < _BATCH_LENGTH) for number, (size, is_row) in axes if size != 1)

    def _follow(self, binding: Binding) -> bool:
        """Note the part that a value is; False where it is none."""
        value = binding.value
        if isinstance(value, TupleGetItem):
            return self._note(binding.var, self._piece(value))
        if not isinstance(value, Call) or not isinstance(value.type, TensorType):
            return isinstance(value, Call) and value.op_name == "split" and value.args[0] in self.of
        if value.op_name == "matmul":
            self._note(binding.var, _whole(binding.var, value))
            return False
        part = self.of.get(value.args[0]) if value.args else None
        step = _STEPS.get(value.op_name)
        return part is not None and step is not None and self._note(binding.var, step(part, value))

    def _note(self, var: Var, part: _Part | None) -> bool:
        if part is not None:
            self.of[var] = part
        return part is not None

    def _piece(self, item: TupleGetItem) -> _Part | None:
        split = self._values.get(item.tuple_value)
        if not isinstance(split, Call) or split.op_name != "split" or split.args[0] not in self.of:
            return None
        sections = split.attrs["sections"]
        begin, end = sum(sections[: item.index]), sum(sections[: item.index + 1])
        if not isinstance(begin, int) or not isinstance(end, int):
            return None
        return _take_part(self.of[split.args[0]], item.tensor_type.shape, split.attrs["axis"], slice(begin, end))


class _Splitter(FunctionMutator):
    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self._parts = parts
        self._heads: dict[Expr, Expr] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in _ATTENTION:
            return value
        heads = [self._product(arg) if arg in self._parts.wanted else arg for arg in value.args[:_QUERY_KEY_VALUE]]
        return Call(value.op, [*heads, *value.args[_QUERY_KEY_VALUE:]], value.attrs)

    def _product(self, operand: Expr) -> Expr:
        """Return the heads as a product of their own."""
        if operand not in self._heads:
            part = self._parts.of[operand]
            matmul, columns = self._parts.product_of(part), part.columns.ravel()
            (x, weight), origin = matmul.args, part.product.origin
            assert isinstance(weight, Constant)
            x = self._permute_rows(x, part)
            picked = Constant(np.ascontiguousarray(weight.data[:, columns]))
            product = self.emit(Call(matmul.op, [x, picked], matmul.attrs), part.product.name, origin)
            if part.bias is not None:
                bias = Constant(np.ascontiguousarray(part.bias.data[columns]))
                product = self.emit(Call(get_op("add"), [product, bias], {}), part.product.name, origin)
            reshape = Call(get_op("reshape"), [product], {"shape": part.shape})
            self._heads[operand] = self.emit(reshape, part.product.name, origin)
        return self._heads[operand]

    def _permute_rows(self, x: Expr, part: _Part) -> Expr:
        """Return the left operand of the product with its rows as they are in the part."""
        width = x.tensor_type.shape[-1]
        for rows, axes in part.permutations:
            x = self.emit(Call(get_op("reshape"), [x], {"shape": (*rows, width)}))
            x = self.emit(Call(get_op("permute_dims"), [x], {"axes": (*axes, len(axes))}))
        return x


def _whole(var: Var, matmul: Call) -> _Part | None:
    """Return all of a product with a constant matrix; None for other products."""
    weight, shape = matmul.args[1], matmul.tensor_type.shape
    if not isinstance(weight, Constant) or weight.data.ndim != 2 or len(shape) < 2:
        return None
    width = weight.data.shape[1]
    return _Part(var, width, None, shape, (True,) * (len(shape) - 1) + (False,), np.arange(width))


def _with_bias(part: _Part, add: Call) -> _Part | None:
    bias = add.args[1]
    if not isinstance(bias, Constant) or part.bias is not None or part.shape != add.tensor_type.shape:
        return None
    is_vector = part.columns.ndim == 1 and bias.data.ndim and bias.data.size == part.width == bias.data.shape[-1]
    return replace(part, bias=Constant(bias.data.reshape(-1))) if is_vector and part.is_whole else None


def _slice_part(part: _Part, call: Call) -> _Part | None:
    ranges = zip(call.attrs["axes"], call.attrs["begin"], call.attrs["end"], call.attrs["strides"], strict=True)
    found: _Part | None = part
    for axis, begin, end, stride in ranges:
        if not all(isinstance(number, int) for number in (begin, end)) or stride < 1 or found is None:
            return None
        found = _take_part(found, call.tensor_type.shape, axis, slice(begin, end, stride))
    return found


def _take_part(part: _Part, shape: Shape, axis: int, index: slice | int) -> _Part | None:
    """Return what an index along an axis leaves of a part; None for a part of the rows."""
    place = part.axis_of_columns(axis)
    if place is None:
        return None
    columns = part.columns[(slice(None),) * place + (index,)]
    is_row = part.is_row if isinstance(index, slice) else part.is_row[:axis] + part.is_row[axis + 1 :]
    return replace(part, shape=shape, is_row=is_row, columns=columns)


def _take_one(part: _Part, take: Call) -> _Part | None:
    index = take.args[1]
    if not isinstance(index, Constant) or index.data.ndim:
        return None
    axis = take.attrs["axis"] % len(part.shape)
    return _take_part(part, take.tensor_type.shape, axis, int(index.data))


def _permute_part(part: _Part, permute: Call) -> _Part | None:
    axes = permute.attrs["axes"]
    rows = [axis for axis in axes if part.is_row[axis] and part.shape[axis] != 1]
    permutations = part.permutations
    if rows != sorted(rows):
        order = sorted(rows)
        permutations += ((tuple(part.shape[axis] for axis in order), tuple(order.index(axis) for axis in rows)),)
    places = [place for axis in axes if (place := part.axis_of_columns(axis)) is not None]
    is_row = tuple(part.is_row[axis] for axis in axes)
    shape, columns = permute.tensor_type.shape, part.columns.transpose(places)
    return replace(part, shape=shape, is_row=is_row, columns=columns, permutations=permutations)


def _reshape_part(part: _Part, reshape: Call) -> _Part | None:
    """Return a part whose axes are merged and split among rows, and among columns; None where both are mixed."""
    shape = reshape.tensor_type.shape
    is_row = [False] * len(shape)
    ahead = [axis for axis, size in enumerate(shape) if size != 1]
    for sizes, are_rows in _runs(part):
        total, count = dims.product(sizes), 0
        while count < len(ahead) and dims.product(shape[axis] for axis in ahead[:count]) != total:
            count += 1
        if dims.product(shape[axis] for axis in ahead[:count]) != total:
            return None
        for axis in ahead[:count]:
            is_row[axis] = are_rows
        del ahead[:count]
    sizes = [size for size, row in zip(shape, is_row, strict=True) if not row and isinstance(size, int)]
    return replace(part, shape=shape, is_row=tuple(is_row), columns=part.columns.reshape(sizes))


def _runs(part: _Part) -> list[tuple[list[Dim], bool]]:
    """Return the sizes of neighbouring axes that are all rows, or all columns; those of size 1 are left out."""
    runs: list[tuple[list[Dim], bool]] = []
    for size, is_row in zip(part.shape, part.is_row, strict=True):
        if size != 1 and runs and runs[-1][1] == is_row:
            runs[-1][0].append(size)
        elif size != 1:
            runs.append(([size], is_row))
    return runs


_Step: TypeAlias = Callable[[_Part, Call], "_Part | None"]
_STEPS: dict[str, _Step] = {
    "add": _with_bias,
    "strided_slice": _slice_part,
    "take": _take_one,
    "permute_dims": _permute_part,
    "reshape": _reshape_part,
}
