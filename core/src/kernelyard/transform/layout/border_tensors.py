"""The tensors at the borders of a program's regions: in the orders that regions have them in, and row-major."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Binding, Call, Expr, Type, Var, get_op


class BorderTensors:
    """Tensors that regions hand over in orders of their own; their dims are permuted for who reads another order.

    bindings: of the program, in order; what permutes dims is added before its first reader.
    """

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self._own: dict[tuple[Expr, tuple[int, ...]], Var] = {}
        self._only_own: dict[Expr, tuple[Var, tuple[int, ...]]] = {}  # what is not row-major yet

    def write(self, var: Var, type_: Type, order: tuple[int, ...], is_plain: bool) -> Var:
        """Return the variable of what a region gives in its own order; is_plain: it gives `var`, row-major, too."""
        own = self._own[var, order] = Var(var.name, type_, var.origin)
        if not is_plain:
            self._only_own[var] = own, order
        return own

    def row_major(self, value: Expr) -> Expr:
        """Return a value, row-major from here on."""
        if isinstance(value, Var) and value in self._only_own:
            own, order = self._only_own.pop(value)
            inverse = tuple(order.index(axis) for axis in range(len(order)))
            self.bindings.append(Binding(value, permute_dims(own, inverse)))
        return value

    def in_order(self, value: Expr, order: tuple[int, ...]) -> Var:
        """Return a value with its dims in an order."""
        if (value, order) not in self._own:
            call = permute_dims(self.row_major(value), order)
            name, origin = (value.name, value.origin) if isinstance(value, Var) else ("permuted", "")
            self._own[value, order] = Var(name, call.type, origin)
            self.bindings.append(Binding(self._own[value, order], call))
        return self._own[value, order]


def permute_dims(value: Expr, axes: Sequence[int]) -> Call:
    """Return a call of `permute_dims`."""
    return Call(get_op("permute_dims"), [value], {"axes": tuple(axes)})
