"""Border layouts: the order of dims in which a region writes its results, and would read its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kernelyard.plugins.api import Binding, BorderLayouts, Call, Constant, Expr, Region, TensorType, Var, operands
from kernelyard_dnnl.composite import Composite, read_composite
from kernelyard_dnnl.layout import channels_last_order
from kernelyard_dnnl.post_ops import Binary
from kernelyard_dnnl.primitive_kind import MemoryOrder
from kernelyard_dnnl.primitives import kinds_by_operator

Order: TypeAlias = "tuple[int, ...] | None"
FOLLOWING = (MemoryOrder.FIRST_OPERAND, MemoryOrder.WHOLE_OPERAND)


def border_layouts(region: Region) -> BorderLayouts:
    """Return the orders of a region's borders; None for row-major, and for what is not clear before sizes are known."""
    orders = _Orders(region)
    results = operands(region.function.result) or (region.function.result,)
    reads = tuple(_unless_row_major(param, orders.get_wanted_order(param)) for param in region.function.params)
    return BorderLayouts(reads, tuple(_unless_row_major(result, orders.of(result)) for result in results))


def _unless_row_major(value: Expr, order: Order) -> Order:
    """Return the order; None where row-major puts the elements in the same places."""
    if order is None or not isinstance(value.type, TensorType):
        return None
    moved = [axis for axis in order if value.type.shape[axis] != 1]
    return None if moved == sorted(moved) else order


class _Primitive:
    """A composite in a region. operands, stages: of the primitive, as values of the region."""

    def __init__(self, call: Call, composite: Composite, params: Sequence[Var]) -> None:
        given: dict[Expr, Expr] = dict(zip(params, call.args, strict=True))
        kind = kinds_by_operator().get(composite.anchor.op_name)
        self.order = MemoryOrder.ROW_MAJOR if kind is None else kind.order  # None: codegen has the error
        self.anchor = composite.anchor
        self.operands = [given.get(operand, operand) for operand in composite.operands]
        whole = [each.operand for each in composite.stages if isinstance(each, Binary) and each.decoder is None]
        shape = composite.calls[-1].tensor_type.shape
        self.others = [given.get(each, each) for each in whole if each.tensor_type.shape == shape]


class _Orders:
    """Orders of the values of a region: from the primitives that make them, and from those that read them.

    Each of the two asks the other: a parameter has the order that its readers want, and a reader of two alike wants of
    one the order of the other. So the bindings are walked in turns, backwards for what is wanted and forwards for what
    is had, and each walk takes from the other kind what the last one found: time is linear in the bindings, and
    neither a ring of parameters that follow each other nor a long chain recurses.
    """

    def __init__(self, region: Region) -> None:
        self._made: dict[Expr, _Primitive] = {}
        self._readers: dict[Expr, list[Binding]] = {}
        self._wanted: dict[Expr, Order] = {}
        self._found: dict[Expr, Order] = {}
        self._params = dict.fromkeys(region.function.params)
        for binding, function in region.composites():
            assert isinstance(binding.value, Call)
            self._made[binding.var] = _Primitive(binding.value, read_composite(function.bindings), function.params)
            for operand in dict.fromkeys(binding.value.args):
                self._readers.setdefault(operand, []).append(binding)
        for _ in range(2):  # the second time with the orders of other operands
            self._walk_backwards()
            self._walk_forwards()

    def of(self, value: Expr) -> Order:
        """Return the order that a value has in the region."""
        return self._found.get(value, tuple(range(value.tensor_type.rank)))

    def get_wanted_order(self, value: Expr) -> Order:
        """Return the order in which the first reader that cares would read a value."""
        return self._wanted.get(value)

    def _walk_backwards(self) -> None:
        """Find the wanted orders: of results before operands."""
        self._wanted = {}
        for value in (*reversed(self._made), *self._params):
            found = (self._infer_order_wanted_by(binding.var, value) for binding in self._readers.get(value, ()))
            self._wanted[value] = next((order for order in found if order is not None), None)

    def _walk_forwards(self) -> None:
        """Find the orders that values have: of operands before results."""
        self._found = {param: order for param in self._params if (order := self.get_wanted_order(param)) is not None}
        for value in self._made:
            self._found[value] = self._of(value)

    def _of(self, value: Expr) -> Order:
        rank, made = value.tensor_type.rank, self._made[value]
        if made.order == MemoryOrder.ROW_MAJOR:
            return tuple(range(rank))
        if made.order == MemoryOrder.CHANNELS_LAST:
            return channels_last_order(rank)
        if made.order == MemoryOrder.OPEN:
            return None
        order = self.of(self._find_followed_operand(made, value))
        if order is not None and made.order == MemoryOrder.RENAMED:
            axes = made.anchor.attrs["axes"]
            return tuple(axes.index(axis) for axis in order)
        return order

    def _find_followed_operand(self, made: _Primitive, value: Expr) -> Expr:
        """Return the operand whose order the result has: of whole ones, one that a primitive has chosen."""
        if made.order != MemoryOrder.WHOLE_OPERAND:
            return made.operands[0]
        whole = [each for each in made.operands if each.tensor_type.shape == value.tensor_type.shape]
        chosen = [each for each in whole if not isinstance(each, Constant) and self._is_moved(each)]
        return (chosen or whole or made.operands)[0]

    def _is_moved(self, value: Expr) -> bool:
        return self.of(value) != tuple(range(value.tensor_type.rank))

    def _infer_order_wanted_by(self, result: Var, value: Expr) -> Order:
        reader, rank = self._made[result], value.tensor_type.rank
        is_first = bool(reader.operands) and reader.operands[0] is value
        if reader.order == MemoryOrder.CHANNELS_LAST:
            return channels_last_order(rank) if is_first or value in reader.others else None
        is_whole = value.tensor_type.shape == result.tensor_type.shape and (value in reader.operands)
        follows = is_first if reader.order == MemoryOrder.FIRST_OPERAND else is_whole
        if reader.order in FOLLOWING and (follows or value in reader.others):
            return self.get_wanted_order(result) or (None if result in self._params else self._of_others(reader, value))
        return None

    def _of_others(self, reader: _Primitive, value: Expr) -> Order:
        """Return the order of another operand of a reader that takes both alike."""
        others = [each for each in (*reader.operands, *reader.others) if each is not value and each in self._made]
        alike = (self._found.get(each) for each in others if each.tensor_type.shape == value.tensor_type.shape)
        return next((order for order in alike if order is not None), None)
