"""Collect the symbols that a function defines, and unify types whose sizes have different names.

A function shares the symbols of its callers; those of its parameters that a caller does not know are read off the
arguments. A call of an operator that `introduces_symbols` makes the new symbols of its type known to what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.ir.expr import BaseFunction, Call, Expr, Function, GlobalVar
from kernelyard.ir.module import PRIVATE, IRModule
from kernelyard.ir.op import Op
from kernelyard.ir.types import FunctionType, TensorType, Type, leaves_of, substitute, symbols_of, tensors_of


class Scopes:
    """Answers for the functions of one module; each private function is walked once."""

    def __init__(self, module: IRModule) -> None:
        self._module = module
        self._free: dict[str, frozenset[str]] = {}

    def unknown_by_binding(self, function: Function) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield the bindings that use symbols which nothing before them makes known, by number."""
        known = symbols_of(param.type for param in function.params)
        for index, binding in enumerate(function.bindings):
            own = symbols_of([binding.var.type])
            if introduces_symbols(binding.value):
                known, own = known | own, frozenset()
            unknown = (own | attribute_symbols(binding.value) | self._of_callees(binding.value)) - known
            if unknown:
                yield index, unknown

    def free(self, name: str) -> frozenset[str]:
        """Return the symbols that a private function expects its callers to know."""
        if name not in self._free:
            self._free[name] = frozenset()  # of a function that calls itself: what its other bindings need
            function: BaseFunction | None = self._module.functions.get(name)
            if isinstance(function, Function) and function.attrs.get(PRIVATE):
                unknown = (symbols for _, symbols in self.unknown_by_binding(function))
                self._free[name] = frozenset().union(*unknown)
        return self._free[name]

    def find_shared(self, name: str) -> frozenset[str]:
        """Return the symbols that a function has in common with its callers, as far as these know them."""
        function = self._module.functions.get(name)
        params = function.params if isinstance(function, Function) else ()
        return symbols_of(param.type for param in params) | self.free(name)

    def _of_callees(self, value: Expr) -> frozenset[str]:
        if not isinstance(value, Call):
            return frozenset()
        names = [operand.name for operand in (value.op, *value.args) if isinstance(operand, GlobalVar)]
        return frozenset().union(*map(self.free, names))


def introduces_symbols(value: Expr) -> bool:
    """Return True when new symbols of the value's type stand for sizes that the value itself decides, or a function
    called.
    """
    return isinstance(value, Call) and (not isinstance(value.op, Op) or value.op.introduces_symbols)


def attribute_symbols(value: Expr) -> frozenset[str]:
    """Return the symbols in the attributes of a call."""
    attrs = value.attrs.values() if isinstance(value, Call) else ()
    given = [item for attr in attrs for item in (attr if isinstance(attr, tuple) else (attr,))]
    return frozenset().union(*(dims.symbols_of(item) for item in given if isinstance(item, dims.SymbolicDim)))


def fits(declared: Type, given: Type, known: Collection[str], bound: dict[str, Dim]) -> bool:
    """Return True when a value of type `given` may be used as one of type `declared`.

    Symbols of `declared` that are not `known` stand for any size, the same one everywhere: `bound` collects their
    sizes. A dim from which such a size cannot be read off fits, and is left to the check of the sizes at run time.
    """
    if _erase_sizes(declared) != _erase_sizes(given):
        return False
    tensors = zip(tensors_of(declared), tensors_of(given), strict=True)
    sizes = [pair for ours, theirs in tensors for pair in zip(ours.shape, theirs.shape, strict=True)]
    for ours, theirs in sizes:
        name = dims.as_symbol(ours)
        if name is not None and name not in known:
            bound.setdefault(name, theirs)
    leaves = zip(leaves_of(declared), leaves_of(given), strict=True)
    if any(isinstance(ours, FunctionType) and substitute(ours, bound) != theirs for ours, theirs in leaves):
        return False
    return all(_may_be(ours, theirs, known, bound) for ours, theirs in sizes)


def _erase_sizes(type_: Type) -> object:
    """Return a key that is equal for types that differ in sizes alone; closures are compared apart."""
    leaves = [(leaf.dtype, leaf.rank) if isinstance(leaf, TensorType) else FunctionType for leaf in leaves_of(type_)]
    return type(type_), leaves


def _may_be(declared: Dim, given: Dim, known: Collection[str], bound: dict[str, Dim]) -> bool:
    open_symbols = dims.symbols_of(declared) - set(known)
    if not open_symbols <= bound.keys():
        return True
    try:
        return dims.substitute(declared, {name: bound[name] for name in open_symbols}) == given
    except ShapeError:
        return False
