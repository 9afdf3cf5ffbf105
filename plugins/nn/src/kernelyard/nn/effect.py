"""Effects: state that methods read and replace. In the IR it is extra parameters and extra results of functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.errors import FrontendError
from kernelyard.nn import scope
from kernelyard.nn import spec as specs
from kernelyard.nn.module import Module
from kernelyard.nn.tensor import Tensor


class Effect(Module):
    """State by name. A module has one as an attribute, and calls its methods, which `read` and `write`.

    states: what each state is between two calls. Sizes may be symbolic: a state may grow.
    Raises: FrontendError when there are none.

    Example:
        >>> from kernelyard import nn
        >>> class Total(nn.Effect):
        ...     def __init__(self):
        ...         super().__init__({"sum": nn.spec.Tensor([3])})
        ...     def add(self, x):
        ...         self.write("sum", self.read("sum") + x)
        ...         return self.read("sum")
        >>> Total().initial()
        {'sum': array([0., 0., 0.], dtype=float32)}
    """

    def __init__(self, states: Mapping[str, specs.Tensor]) -> None:
        if not states:
            raise FrontendError("an effect has no states")
        self.states = dict(states)

    def initial(self) -> dict[str, np.ndarray]:
        """Return the first state: zeros, of the least sizes that symbols allow. Override it for another.

        Raises: FrontendError when such a size is negative.
        """
        return {name: np.zeros(_least(kind), dtypes.to_numpy(kind.dtype)) for name, kind in self.states.items()}

    def read(self, name: str) -> Tensor:
        """Return a state as it is now. Raises: FrontendError."""
        self._check_name(name)
        return Tensor(scope.current().state(self)[name])

    def write(self, name: str, value: Tensor) -> None:
        """Replace a state, for what comes after and for the next call.

        Raises: FrontendError for another dtype, rank or fixed size than the state's.
        """
        self._check_name(name)
        kind = self.states[name]
        sizes = zip(kind.shape, value.shape, strict=False)
        if (
            value.dtype != kind.dtype
            or value.ndim != len(kind.shape)
            or any(isinstance(size, int) and size != given for size, given in sizes)
        ):
            raise FrontendError(
                f"a value of another type is assigned to the state {name!r}",
                where=scope.current().origin or None,
                found=f"{value.shape}, {value.dtype!r}",
                expected=f"{kind.shape}, {kind.dtype!r}",
            )
        scope.current().state(self)[name] = value.expr

    def _check_name(self, name: str) -> None:
        if name not in self.states:
            raise FrontendError(
                f"{type(self).__name__} has no state {name!r}", expected=", ".join(map(repr, self.states))
            )

    def _change_dtype(self, dtype: str) -> None:
        for name, kind in self.states.items():
            if dtypes.is_float(kind.dtype) and dtypes.is_float(dtype):
                self.states[name] = specs.Tensor(kind.shape, dtype)


def _least(kind: specs.Tensor) -> tuple[int, ...]:
    """Return the shape in which each symbol is 1, the least that it can be."""
    sizes = tuple(dims.evaluate(size, dict.fromkeys(dims.symbols_of(size), 1)) for size in kind.shape)
    if any(size < 0 for size in sizes):
        raise FrontendError("a state has no initial shape", found=repr(kind), hint="override initial()")
    return sizes
