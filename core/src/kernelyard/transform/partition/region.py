"""Region: what a backend's codegen is given to compile together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from kernelyard.dims import Bounds, Dim
from kernelyard.dims.interval import bounds_of
from kernelyard.errors import PassError
from kernelyard.ir import Binding, Call, Function, GlobalVar, IRModule, Type, Var
from kernelyard.ir.size_bounds import size_bounds
from kernelyard.patterns.composite import COMPOSITE, op_names
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.transform.interprocedural.inline_functions import inline_into


@dataclass(frozen=True, eq=False)
class Region:
    """A region, the unit of a backend's codegen: a function of composites, and the module in which these are.

    symbol: the name that the RuntimeModule must answer to.
    """

    symbol: str
    backend: str
    function: Function
    module: IRModule

    @property
    def inputs(self) -> tuple[Var, ...]:
        """The parameters."""
        return self.function.params

    @property
    def output_type(self) -> Type:
        """The type of the result, a tuple when there are several."""
        return self.function.result_type

    def bounds(self, dim: Dim) -> Bounds:
        """Return the least and the largest value that a size may have, as `Match.bounds` does for checks."""
        return bounds_of(dim, size_bounds(self.function))

    def composite(self, call: Call) -> Function:
        """Return the composite that a call in the region names.

        Raises: PassError when the callee is no composite.
        """
        function = self.module[call.op_name]
        if not isinstance(function, Function) or COMPOSITE not in function.attrs:
            raise PassError(f"@{call.op_name} is no composite function", where=f"region {self.symbol}")
        return function

    def composites(self) -> tuple[tuple[Binding, Function], ...]:
        """Return the calls of composites, in order, each with the composite."""
        calls = [b for b in self.function.bindings if isinstance(b.value, Call) and isinstance(b.value.op, GlobalVar)]
        return tuple((binding, self.composite(binding.value)) for binding in calls)  # pyright: ignore[reportArgumentType]

    def flattened(self) -> Function:
        """Return the region as one function of operators, without composites: what an engine is given whole."""
        composites = {b.value.op_name for b, _ in self.composites() if isinstance(b.value, Call)}
        return inline_into(self.function, self.module, composites)

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops in the region, in order."""
        return tuple(op for _, composite in self.composites() for op in op_names(composite))


Codegen: TypeAlias = Callable[[list[Region], Mapping[str, Any]], RuntimeModule]


class ViolationRecorder(Protocol):
    """Observer of regions that a backend accepted and its codegen then failed on."""

    def record_violation(self, backend: str, symbols: Sequence[str], message: str) -> None:
        """Record that the regions `symbols` of `backend` are dissolved into their ops."""
        ...
