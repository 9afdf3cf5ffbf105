"""DeferredConstant: a constant whose elements are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np

from kernelyard.cached_property import cached_property
from kernelyard.ir.expr import Constant
from kernelyard.ir.types import TensorType


class DeferredConstant(Constant):
    """A constant whose elements `compute` returns: an array of `type_`.

    It is called once, by the first thread that reads `data` or `digest`, and then released with all that it refers to:
    of weights that are rearranged, one at a time is in memory twice, unless somebody else holds the original ones.

    Example:
        >>> constant = DeferredConstant(TensorType((3,), "float32"), lambda: np.ones(3, np.float32))
        >>> constant.data.tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, type_: TensorType, compute: Callable[[], np.ndarray]) -> None:  # has no data to give to super()
        self.type = type_
        self._compute: Callable[[], np.ndarray] | None = compute
        self._lock = Lock()

    @cached_property
    def data(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]  # set once, as the other is
        """The elements, read-only."""
        with self._lock:
            if self._compute is not None:
                self._computed = Constant(self._compute()).data
                self._compute = None
            return self._computed
