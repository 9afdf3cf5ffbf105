"""InterpretedBackend: a backend that runs its regions by the reference interpreter, for tests of placement.

It can be told to decline ops and to break its promise, so that every path of a partition can be tried with no library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from kernelyard.errors import CodegenError
from kernelyard.ir import Call, GlobalVar, IRModule, TupleGetItem
from kernelyard.ops.interpreter import call_function
from kernelyard.patterns import Accept, Answer, Decline, FusionPattern, Match, is_op
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.transform.partition.region import Region


class InterpretedModule(RuntimeModule):
    """Regions, carried out by the operators' references. It lives in this process only: nothing loads its kind."""

    kind: ClassVar[str] = "interpreted"

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = {region.symbol: region for region in regions}

    def symbols(self) -> tuple[str, ...]:
        """The regions' symbols."""
        return tuple(self.regions)

    def get_function(self, symbol: str) -> Callable[..., None]:
        """A function of input and output arrays."""
        if symbol not in self.regions:
            raise self.unknown_symbol(symbol)
        region = self.regions[symbol]
        count = len(region.inputs)
        module = region.module.with_functions({symbol: region.function})

        def call(*tensors: np.ndarray, symbols: Mapping[str, int] | None = None) -> None:
            # The caller knows sizes that cannot be read off the inputs (n, of an input of n * n elements).
            result = call_function(region.function, tensors[:count], module, dict(symbols or {}))
            results = result if isinstance(result, tuple) else (result,)
            for result, output in zip(results, tensors[count:], strict=True):
                assert isinstance(result, np.ndarray)  # regions give tensors
                np.copyto(output, result)

        return call

    def save_to_bytes(self) -> bytes:
        """The symbols; the module cannot be loaded again."""
        return "\n".join(self.regions).encode()


class InterpretedBackend(Backend):
    """Takes single ops, or the patterns it is given.

    declines: reason code by op. fails: ops on which codegen raises although the check accepted them.

    Example:
        >>> backend = InterpretedBackend("acme", ops=["nn.relu"], declines={"nn.relu": "dtype"})
        >>> [pattern.name for pattern in backend.patterns(Target("cpu"))]
        ['acme.nn.relu']
    """

    def __init__(
        self,
        name: str,
        ops: Sequence[str] = (),
        patterns: Sequence[FusionPattern] = (),
        merge_composites: bool = True,
        declines: Mapping[str, str] | None = None,
        fails: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.merge_composites = merge_composites
        self._patterns = [
            *patterns,
            *(FusionPattern(f"{name}.{op}", is_op(op)(varargs=True), self._check) for op in ops),
        ]
        self._declines = declines or {}
        self._fails = fails
        self.options: list[Mapping[str, Any]] = []

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """Given patterns first, then one for each op."""
        return self._patterns

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """The interpreted module.

        Raises: CodegenError for ops that it was told to fail on.
        """
        self.options.append(options)
        for region in regions:
            wrong = [op for op in region.ops if op in self._fails]
            if wrong:
                raise CodegenError(f"cannot generate {wrong[0]}", where=region.symbol)
        return InterpretedModule(regions)

    def _check(self, match: Match) -> Answer:
        op = match.call.op_name
        return Decline(self._declines[op], f"{op} is not for {self.name}") if op in self._declines else Accept()


def called(module: IRModule, function: str = "main") -> list[str]:
    """What a function calls, in order: ops by name, functions as `@name`, external functions as `extern symbol`."""
    values = [binding.value for binding in module.graph_functions()[function].bindings]
    return [_callee(value) for value in values if not isinstance(value, TupleGetItem)]


def _callee(value: object) -> str:
    if not isinstance(value, Call):
        return type(value).__name__
    if value.op_name == "call_dps_packed":
        return repr(value.args[0])
    return repr(value.op) if isinstance(value.op, GlobalVar) else value.op_name
