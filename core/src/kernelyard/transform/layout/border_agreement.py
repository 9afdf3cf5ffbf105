"""What regions agree on: in which order of dims the tensors between them lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kernelyard.ir import Call, Expr, Function, GlobalVar, Op, TensorType, TupleGetItem, Var, operands
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.records import record

Order: TypeAlias = "tuple[int, ...] | None"


# A region by its name, or a call of an operator that takes any order by its variable.
Place: TypeAlias = "str | Var"


@record
class BorderLayouts:
    """How a region would like the tensors at its borders: an order for each parameter, and for each result.

    An order names the dims from the outermost to the innermost in memory, (0, 2, 3, 1) for channels-last images; None
    is row-major, or no matter.
    """

    reads: tuple[Order, ...]
    writes: tuple[Order, ...]


class Port(NamedTuple):
    """A parameter or a result of a region or of an operator, by number."""

    region: Place
    number: int


def orders_handed_on(function: Function, wishes: Mapping[Place, BorderLayouts]) -> dict[Place, BorderLayouts]:
    """Return the orders of operators between regions that take any: those in which regions write their operands."""
    orders: dict[Expr, Order] = {}
    tuples: dict[Expr, BorderLayouts] = {}
    handed: dict[Place, BorderLayouts] = {}
    for var, value in ((binding.var, binding.value) for binding in function.bindings):
        name = region_of(value, wishes)
        if name is not None and isinstance(value.type, TensorType):
            orders[var] = wishes[name].writes[0]
        elif name is not None:
            tuples[var] = wishes[name]
        elif isinstance(value, TupleGetItem) and value.tuple_value in tuples:
            orders[var] = tuples[value.tuple_value].writes[value.index]
        elif isinstance(value, Call) and _takes_any_order(value) and orders.get(value.args[0]) is not None:
            orders[var] = orders[value.args[0]] if value.tensor_type.rank else None
            handed[var] = BorderLayouts((orders[value.args[0]],), (orders[var],))
    return handed


def _takes_any_order(call: Call) -> bool:
    """Return True for what goes through a tensor element by element, and for the largest and least of all elements."""
    if not isinstance(call.op, Op) or not isinstance(call.type, TensorType):
        return False
    if call.op_name in ("max", "min"):
        return not call.type.rank
    if call.op_name not in ELEMENTWISE and call.op_name not in ("quantize", "dequantize"):
        return False
    x, *numbers = (operand.tensor_type for operand in call.args)
    return x.shape == call.type.shape and not any(each.rank for each in numbers)


class Flow:
    """Who writes and reads the tensors at the regions' borders in one function.

    reads: for each call of a region and each of its arguments, the port and where it comes from. uses: for each result
    of each call, the port and who reads it; None for who is no region, and takes no order but row-major.
    """

    def __init__(self, function: Function, wishes: Mapping[Place, BorderLayouts]) -> None:
        self.reads: list[tuple[Port, Port | None]] = []
        made: dict[Expr, Port] = {}
        tuples: dict[Expr, str] = {}
        users: dict[Expr, list[Port | None]] = {}
        for binding in function.bindings:
            value, name = binding.value, region_of(binding.value, wishes)
            if name is not None:
                assert isinstance(value, Call)
                for number, argument in enumerate(value.args):
                    self.reads.append((Port(name, number), made.get(argument)))
                    users.setdefault(argument, []).append(Port(name, number))
                if isinstance(value.type, TensorType):
                    made[binding.var] = Port(name, 0)
                else:
                    tuples[binding.var] = name
            elif isinstance(value, TupleGetItem) and value.tuple_value in tuples:
                made[binding.var] = Port(tuples[value.tuple_value], value.index)
            elif binding.var in wishes:
                assert isinstance(value, Call)
                made[binding.var] = Port(binding.var, 0)
                self.reads.append((made[binding.var], made.get(value.args[0])))
                users.setdefault(value.args[0], []).append(made[binding.var])
            else:
                for operand in operands(value):
                    users.setdefault(operand, []).append(None)
        for operand in operands(function.result) or [function.result]:
            users.setdefault(operand, []).append(None)
        self.uses = [(port, tuple(users.get(var, ()))) for var, port in made.items()]
        self.escaped = {name for var, name in tuples.items() if var in users}


def region_of(value: Expr, regions: Mapping[Any, object]) -> str | None:
    """Return the name of the region that an expression calls, where it is one of these."""
    is_call = isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in regions
    return value.op_name if isinstance(value, Call) and is_call else None


class Borders(NamedTuple):
    """Hold what is agreed on. reads, writes: the ports that have their own order. plain: of `writes`, those that others
    read row-major as well."""

    reads: frozenset[Port]
    writes: frozenset[Port]
    plain: frozenset[Port]

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions whose borders change."""
        return tuple(sorted({port.region for port in self.reads | self.writes if isinstance(port.region, str)}))


class Agreement:
    """The largest set of borders that agree in every call: ports go until no more have to."""

    def __init__(self, flows: Sequence[Flow], wishes: Mapping[Place, BorderLayouts]) -> None:
        self._wishes = wishes
        self._sources: dict[Port, list[Port | None]] = {}
        self._users: dict[Port, list[tuple[Port | None, ...]]] = {}
        for flow in flows:
            for port, source in flow.reads:
                self._sources.setdefault(port, []).append(source)
            for port, users in flow.uses:
                self._users.setdefault(port, []).append(users)
        escaped = {name for flow in flows for name in flow.escaped}
        self.reads = {port for port in self._sources if wishes[port.region].reads[port.number] is not None}
        self.writes = {
            port for port in self._users if port.region not in escaped and self._order_written(port) is not None
        }

    def _order_written(self, port: Port) -> Order:
        return self._wishes[port.region].writes[port.number]

    def reach(self) -> Borders:
        """Return the borders that are left."""
        while True:
            reads = {port for port in self.reads if self._is_served(port) and self._is_handed_on(port)}
            writes = {port for port in self.writes if self._is_read(port, reads)}
            if (reads, writes) == (self.reads, self.writes):
                break
            self.reads, self.writes = reads, writes
        plain = {port for port in writes if any(not reads.issuperset(each) for each in self._users[port])}
        return Borders(frozenset(reads), frozenset(writes), frozenset(plain))

    def _is_served(self, reader: Port) -> bool:
        return all(self._serves(source, reader) for source in self._sources[reader])

    def _is_handed_on(self, reader: Port) -> bool:
        """Return False for an operator whose result nobody takes in the order of its operand."""
        return isinstance(reader.region, str) or self._order_written(reader) is None or reader in self.writes

    def _is_read(self, writer: Port, reads: set[Port]) -> bool:
        """Return True where somebody reads what is written in its own order; an operator writes no second result."""
        if isinstance(writer.region, str):
            return all(not reads.isdisjoint(each) for each in self._users[writer])
        return writer in reads and all(each and reads.issuperset(each) for each in self._users[writer])

    def _serves(self, source: Port | None, reader: Port) -> bool:
        if source is None or source not in self.writes:
            return False
        return self._order_written(source) == self._wishes[reader.region].reads[reader.number]
