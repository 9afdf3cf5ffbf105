"""BindableModule: a module whose functions are made by `bind`; calling them from Python follows from that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.abi.spec import Signature


class BindableModule(RuntimeModule):
    """Subclasses give `signature` and `bind`; `get_function` binds to buffers of its own, once per shapes."""

    @abstractmethod
    def signature(self, symbol: str) -> Signature:
        """Return the types of a function's inputs and outputs. Raises: ExecutionError for an unknown name."""

    @abstractmethod
    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall: ...

    def get_function(self, symbol: str) -> Callable[..., Any]:
        """See `RuntimeModule.get_function`; safe to call from many threads, one at a time runs."""
        from kernelyard.runtime.modules.bound_function import BoundFunction  # programs bind without it

        return BoundFunction(self, symbol, self.signature(symbol))
