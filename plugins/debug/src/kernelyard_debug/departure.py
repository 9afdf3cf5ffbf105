"""Find the first value of a model that departs, by making the model return values from its middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard.ir import Expr, Var, operands
from kernelyard_debug.case import Case
from kernelyard_debug.difference import Difference
from kernelyard_debug.halving import least_by_halves

WIDTH = 12  # values that a check returns beside the model's own results
MOST_FUSED = 16  # values of one kernel that are looked for

# Given values, their differences; None where the model's results no longer depart once these are returned too.
Measure = Callable[[Sequence[Var]], "Mapping[Var, Difference] | None"]


@dataclass
class DepartureSearch:
    """Narrows a departure down along what the departing value is computed from.

    A value that departs has no departing operand once it is found: it is the first. Returning a value keeps it out of
    fused kernels; where that mends the failure, the value lies inside the kernel that is wrong. Where many kernels are
    wrong, returning many values hides some of them: what is found is confirmed with its operands alone, else looked for
    by returning one value at a time.
    values: those that both runners provide. measured: the differences of those that were looked at. fused: values that
    cannot be returned.
    """

    case: Case
    measure: Measure
    values: Sequence[Var]

    def __post_init__(self) -> None:
        self.measured: dict[Var, Difference] = {}
        self.fused: set[Var] = set()
        self._order = {var: place for place, var in enumerate(self.values)}
        self._made = {binding.var: binding.value for binding in self.case.function.bindings}

    def find_first_departing(self, result: Expr) -> tuple[Var, ...]:
        """Return the first value that departs, at the end, after those that are in one kernel with it.

        result: a value that departs.
        """
        bad = self._narrow(result)
        if isinstance(bad, Var) and not self.fused:
            bad = self._confirm(bad)
        inside = [var for var in self._order if var in self.fused]
        return (*inside, bad) if isinstance(bad, Var) else tuple(inside)

    def _narrow(self, result: Expr) -> Expr:
        """Return the first value that departs where many values are returned at once."""
        bad, good, width = result, set[Var](), WIDTH
        while candidates := self._suspects(bad, good):
            chosen = _spread(candidates, width)
            found = self.measure(chosen)
            if found is None and width > 1:
                width //= 3
            elif found is None:
                self.fused.update(chosen)
            else:
                self.measured.update(found)
                departing = [var for var in chosen if found[var].kind]
                good.update(var for var in chosen if not found[var].kind)
                bad = departing[0] if departing and self._is_before(departing[0], bad) else bad
        return bad

    def _confirm(self, bad: Var) -> Var:
        """Return a value that departs where its operands, returned with it, do not; it may be an earlier one."""
        earlier = self._departing_operand(bad)
        if earlier is not None:
            bad = self._search_one_by_one(bad)
        while (earlier := self._departing_operand(bad)) is not None:
            bad = earlier
        return bad

    def _departing_operand(self, bad: Var) -> Var | None:
        """Return an operand that departs; where one that is returned mends the value, they are in one kernel."""
        read = [each for each in operands(self._made[bad]) if isinstance(each, Var) and each in self._order]
        found = self.measure([*read, bad]) if read else {}
        if found is None or (read and not any(each.kind for each in found.values())):
            self.fused.update(read)
            return None
        self.measured.update(found)
        return next((var for var in read if found[var].kind), None)

    def _search_one_by_one(self, bad: Var) -> Var:
        """Return the first value, of those behind one that departs, that departs when it alone is returned."""
        behind = self._find_producers(bad, set())
        order = sorted((var for var in behind if var in self._order), key=self._order.__getitem__)

        def departs(count: int) -> bool:
            var = order[count - 1]
            found = self.measure([var])
            if found is not None:
                self.measured.update(found)
            return found is not None and bool(found[var].kind)

        number = least_by_halves(0, len(order) + 1, departs)
        return order[number - 1] if number <= len(order) else bad

    def _is_before(self, one: Var, other: Expr) -> bool:
        return not isinstance(other, Var) or self._order[one] < self._order.get(other, len(self._order))

    def _suspects(self, bad: Expr, good: set[Var]) -> list[Var]:
        """Return the values that may be the first to depart, in order: those behind a departing one.

        Where values cannot be returned, their neighbours: the kernel that they are in is looked for.
        """
        cleared = {each for var in good for each in (var, *self._find_producers(var, set()))}
        if self.fused:
            suspects = self._neighbours() if len(self.fused) < MOST_FUSED else set[Var]()
        else:
            suspects = self._find_producers(bad, cleared)
        left = suspects - cleared - self.fused - {var for var, each in self.measured.items() if each.kind}
        return sorted((var for var in left if var in self._order), key=self._order.__getitem__)

    def _neighbours(self) -> set[Var]:
        """Return what fused values are computed from, and what is computed from them."""
        found: set[Var] = set()
        for var, made in self._made.items():
            read = {each for each in operands(made) if isinstance(each, Var)}
            if var in self.fused:
                found |= read
            elif read & self.fused:
                found.add(var)
        return found

    def _find_producers(self, value: Expr, cleared: set[Var]) -> set[Var]:
        found: set[Var] = set()
        waiting = [value]
        while waiting:
            current = waiting.pop()
            made = self._made.get(current) if isinstance(current, Var) else None
            read = [o for o in (operands(made) if made is not None else ()) if isinstance(o, Var)]
            new = [var for var in read if var not in found and var not in cleared]
            found.update(new)
            waiting += new
        return found


def _spread(values: Sequence[Var], count: int) -> list[Var]:
    """Return so many of the values, evenly apart."""
    if len(values) <= count:
        return list(values)
    return [values[(place + 1) * len(values) // (count + 1)] for place in range(count)]
