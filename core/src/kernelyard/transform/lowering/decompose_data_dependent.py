"""DecomposeDataDependent: results whose sizes data decides, as sorts, scans and gathers of sizes that are known."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, Tuple, TupleGetItem, Var, get_op
from kernelyard.ir.types import TensorType, TupleType, symbols_of
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

# Slices of more elements are compared by the interpreter: there would be a sort for each element.
_MOST_COLUMNS = 16


class DecomposeDataDependent(Pass):
    """Replace `nonzero`, `unique` and `image.non_max_suppression` by operators that code generators have kernels for.

    What is kept is moved to the front of a vector of known size, `tensor_to_shape` makes the number of what is kept a
    size, and what follows reads that many elements. Done in entry functions, which `OutlineContinuations` can divide
    there.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.dims import symbol
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> type_ = TensorType((1, symbol("k") - 1), "int64")
        >>> found = b.bind(Call(get_op("nonzero"), [b.input("x", (8,), "bool")], type_=type_))
        >>> module = DecomposeDataDependent()(IRModule({"main": b.function(found)}))
        >>> [binding.value.op_name for binding in module["main"].bindings][-4:]
        ['invert_permutation', 'tensor_to_shape', 'strided_slice', 'reshape']
    """

    name = "decompose_data_dependent"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        decomposer = _Decomposer(module)
        mutated = {name: decomposer.mutate(each) for name, each in module.entry_functions().items()}
        changed = {name: each for name, each in mutated.items() if each is not module[name]}
        return module.with_functions(changed) if changed else module


class _Decomposer(FunctionMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__()
        self.module = module
        self.sizes: list[str] = []

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value
        if value.op_name == "nonzero":
            return _Steps(self).nonzero(value)
        if value.op_name == "image.non_max_suppression":
            return _Steps(self).non_max_suppression(value, self._create_size())
        return _Steps(self).unique(value) if value.op_name == "unique" and _is_flat_or_narrow(value) else value

    def _create_size(self) -> Dim:
        """Return a size that may be zero, of a symbol that the module does not use."""
        functions = self.module.graph_functions().values()
        variables = (var for each in functions for var in (*each.params, *(binding.var for binding in each.bindings)))
        taken = {*symbols_of(var.type for var in variables), *self.sizes}
        name = next(name for number in count() if (name := f"candidates_{number}") not in taken)
        self.sizes.append(name)
        return dims.symbol(name) - 1


def _is_flat_or_narrow(call: Call) -> bool:
    """Return True where elements are compared, or slices of a few elements."""
    axis, type_ = call.attrs["axis"], call.args[0].type
    if axis is None:
        return True
    assert isinstance(type_, TensorType)
    columns = dims.product(size for number, size in enumerate(type_.shape) if number != axis)
    return isinstance(columns, int) and 1 <= columns <= _MOST_COLUMNS


class _Steps:
    """Emits operators in front of a binding."""

    def __init__(self, mutator: FunctionMutator) -> None:
        self.mutator = mutator

    # --- nonzero ------------------------------------------------------------------------------------------------------
    def nonzero(self, call: Call) -> Expr:
        """Return the indices of elements that are not zero, (rank, count)."""
        x = call.args[0]
        shape, count = _type(x).shape or (1,), call.tensor_type.shape[1]
        flat = self._as(self._reshape(x, dims.product(shape)), "bool")
        places = self._compact(flat, count)
        if len(shape) == 1:
            return self._op("reshape", places, shape=(1, count))
        rows = [self._reshape(each, 1, count) for each in self._coordinates(places, shape)]
        return self._op("concat", *rows, axis=0)

    def _coordinates(self, places: Expr, shape: tuple[Dim, ...]) -> list[Expr]:
        """Return the index along each axis of elements of a row-major tensor."""
        found = []
        for axis, size in enumerate(shape):
            stride = dims.product(shape[axis + 1 :])
            index = places if stride == 1 else self._op("divide", places, self._size(stride))
            found.append(index if axis == 0 else self._op("mod", index, self._size(size)))
        return found

    def _size(self, size: Dim) -> Expr:
        if isinstance(size, int):
            return Constant(np.asarray([max(size, 1)], np.int64))  # of an empty tensor there is no element to divide
        return self._op("shape_tensor", dims=(size,))

    # --- unique -------------------------------------------------------------------------------------------------------
    def unique(self, call: Call) -> Expr:
        """Return unique elements or slices, their first places, inverse places and counts."""
        x, axis = call.args[0], call.attrs["axis"]
        assert isinstance(call.type, TupleType)
        value_type, first_type = call.type.fields[:2]
        assert isinstance(first_type, TensorType)
        assert isinstance(value_type, TensorType)
        count = first_type.shape[0]
        rows = self._rows(x, axis)
        whole = _type(rows).shape[0]
        order = self._lexicographic_order(rows)
        is_new = self._is_new(rows, order)
        starts = self._compact(is_new, count)
        ends = self._slice(self._op("concat", starts, self._op("shape_tensor", dims=(whole,)), axis=0), 1, count + 1)
        counts = self._op("subtract", ends, starts)
        first = self._take(order, starts)
        group = self._op("subtract", self._running_count(is_new), _number(1))
        inverse = self._take(group, self._op("invert_permutation", order))
        if not call.attrs["sorted"]:  # in the order of their first occurrence
            by_place = self._order(first)
            first, counts = (self._take(each, by_place) for each in (first, counts))
            inverse = self._take(self._op("invert_permutation", by_place), inverse)
        axis = 0 if axis is None else axis
        return Tuple([self._values(self._take(rows, first), value_type, axis), first, inverse, counts])

    def _rows(self, x: Expr, axis: int | None) -> Expr:
        """Return what is compared as (count, elements of each)."""
        shape = _type(x).shape
        if axis is None:
            return self._reshape(x, dims.product(shape), 1)
        others = [number for number in range(len(shape)) if number != axis]
        moved = self._op("permute_dims", x, axes=(axis, *others)) if axis else x
        return self._reshape(moved, shape[axis], dims.product(shape[number] for number in others))

    def _values(self, rows: Expr, type_: TensorType, axis: int) -> Expr:
        """Return rows as the tensor that `_rows` made rows of."""
        shape = (type_.shape[axis], *type_.shape[:axis], *type_.shape[axis + 1 :])
        moved = self._reshape(rows, *shape)
        axes = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
        return self._op("permute_dims", moved, axes=axes) if axis else moved

    def _lexicographic_order(self, rows: Expr) -> Expr:
        """Return the stable order of rows: a sort by each column, the last column first."""
        count, width = _type(rows).shape
        assert isinstance(width, int)
        rows = self._as(rows, "uint8") if _type(rows).dtype == "bool" else rows
        order: Expr | None = None
        for column in reversed(range(width)):
            key = self._reshape(self._slice(rows, column, column + 1, axis=1), count)
            if order is None:
                order = self._order(key)
            else:
                order = self._take(order, self._order(self._take(key, order)))
        assert order is not None
        return order

    def _is_new(self, rows: Expr, order: Expr) -> Expr:
        """Return which of the ordered rows differ from the one before; the first one does. One NaN equals another as
        an element; slices with NaN equal none.
        """
        count, width = _type(rows).shape
        number = self._op("arange", count=count)
        here = self._take(rows, order)
        before = self._take(here, self._op("maximum", self._op("subtract", number, _number(1)), _number(0)))
        differs = self._op("not_equal", here, before)
        if width == 1 and dtypes.is_float(_type(rows).dtype):
            differs = self._op("logical_and", differs, self._op("equal", before, before))
        any_differs = self._reshape(differs, count) if width == 1 else self._op("any", differs, axes=(1,))
        return self._op("logical_or", any_differs, self._op("equal", number, _number(0)))

    # --- non_max_suppression ------------------------------------------------------------------------------------------
    def non_max_suppression(self, call: Call, candidates: Dim) -> Expr:
        """Return (batch, class, box) of the boxes that remain; `candidates` is the number of scores that are enough."""
        boxes, scores, most, overlap, least = call.args
        _, _, boxes_each = _type(scores).shape
        type_ = TensorType((candidates,), "int64")
        flat = self.mutator.emit(Call(get_op("image.box_candidates"), [scores, least], type_=type_))
        image, class_, box = self._coordinates(flat, _type(scores).shape)
        group = self._op("divide", flat, self._size(boxes_each))
        corners = self._corners(boxes, call.attrs["center_point_box"])
        row = self._op("add", self._op("multiply", image, self._size(boxes_each)), box)
        kept = self._op("image.suppress_boxes", self._take(corners, row), group, most, overlap)
        places = self._compact(kept, call.tensor_type.shape[0])
        columns = [self._reshape(each, candidates, 1) for each in (image, class_, box)]
        return self._take(self._op("concat", *columns, axis=1), places)

    def _corners(self, boxes: Expr, is_centered: bool) -> Expr:
        """Return boxes as rows (y1, x1, y2, x2), the lower corner first; centred ones are (x, y, width, height)."""
        rows = self._reshape(boxes, dims.product(_type(boxes).shape[:2]), 4)
        first, second = self._slice(rows, 0, 2, axis=1), self._slice(rows, 2, 4, axis=1)
        if is_centered:
            half = self._op("divide", second, Constant(np.asarray(2, np.float32)))
            first, second = self._op("subtract", first, half), self._op("add", first, half)
            swap = Constant(np.array([1, 0], np.int64))
            first, second = (self._op("take", each, swap, axis=1) for each in (first, second))
        low, high = self._op("minimum", first, second), self._op("maximum", first, second)
        return self._op("concat", low, high, axis=1)

    # --- shared -------------------------------------------------------------------------------------------------------
    def _compact(self, mask: Expr, count: Dim) -> Expr:
        """Return the places where the mask is true, in order: `count` of them, which is known from here on.

        What is kept goes to the front and the rest behind it, so that each place is written once, in any order.
        """
        until = self._running_count(mask)
        total = self._op("sum", self._as(mask, "int64"), axes=(0,), keepdims=True)
        number = self._op("arange", count=_type(mask).shape[0])
        behind = self._op("subtract", self._op("add", total, number), until)
        place = self._op("where", mask, self._op("subtract", until, _number(1)), behind)
        places = self._op("invert_permutation", place)
        self.mutator.emit(Call(get_op("tensor_to_shape"), [total], type_=TensorType((count,), "bool")))
        return self._slice(places, 0, count)

    def _running_count(self, mask: Expr) -> Expr:
        return self._op("cumsum", self._as(mask, "int64"), axis=0)

    def _order(self, key: Expr) -> Expr:
        (count,) = _type(key).shape
        found = self._op("topk", key, k=count, axis=0, largest=False)
        return self.mutator.emit(TupleGetItem(found, 1))

    def _take(self, x: Expr, places: Expr) -> Expr:
        return self._op("take", x, places, axis=0)

    def _slice(self, x: Expr, begin: Dim, end: Dim, axis: int = 0) -> Expr:
        return self._op("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,), strides=(1,))

    def _as(self, x: Expr, dtype: str) -> Expr:
        return x if _type(x).dtype == dtype else self._op("astype", x, dtype=dtype)

    def _reshape(self, x: Expr, *shape: Dim) -> Expr:
        return x if _type(x).shape == shape else self._op("reshape", x, shape=shape)

    def _op(self, name: str, *operands: Expr, **attrs: Any) -> Expr:
        return self.mutator.emit(Call(get_op(name), operands, attrs))


def _type(x: Expr) -> TensorType:
    assert isinstance(x.type, TensorType)
    return x.type


def _number(value: int) -> Constant:
    return Constant(np.asarray(value, np.int64))
