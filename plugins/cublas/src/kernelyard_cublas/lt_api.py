"""LtApi: the part of cuBLASLt that matmuls need, with two implementations: the library, and NumPy in its place.

Both are driven by the same descriptors, so that a test with NumPy finds a wrong one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelyard.errors import ExecutionError
from kernelyard_cublas._enums import Attribute, ComputeType, DataType, Status

Run = Callable[[int], None]
"""Puts a matmul on a stream: on another one while work is captured."""


class LtError(ExecutionError):
    """A function of cuBLASLt returned a status other than success."""

    code = "KY521"

    def __init__(self, function: str, status: int) -> None:
        known = [each.name for each in Status if each == status]
        self.status = known[0] if known else str(status)
        super().__init__(f"cuBLASLt: {function} returned {self.status}", where=function)


class Layouts(NamedTuple):
    """Descriptors of the four matrices of D = epilogue(alpha * op(A) @ op(B) + beta * C)."""

    a: int
    b: int
    c: int
    d: int


class Addresses(NamedTuple):
    """The addresses of the four matrices; c may be 0 where beta is."""

    a: int
    b: int
    c: int
    d: int


@dataclass(frozen=True)
class Heuristic:
    """An algorithm that the library proposes.

    algorithm: 64 opaque bytes. workspace: how many bytes of scratch memory it needs. waves: how well it fills the GPU.
    """

    algorithm: bytes
    workspace: int
    waves: float = 0.0


@dataclass(frozen=True)
class MatmulCall:
    """All that one call of `cublasLtMatmul` gets; `scale_type` is that of alpha and beta."""

    matmul: int
    layouts: Layouts
    addresses: Addresses
    alpha: float
    beta: float
    scale_type: DataType
    heuristic: Heuristic
    workspace: int


class LtApi(ABC):
    """The functions, over descriptors that are numbers. Each raises LtError where the library reports a failure.

    version: of the library, as it states it.
    """

    version: int

    @abstractmethod
    def create_matmul(self, compute: ComputeType, scale_type: DataType) -> int:
        """Return a new description of a matmul."""

    @abstractmethod
    def create_layout(self, dtype: DataType, rows: int, columns: int, leading: int) -> int:
        """Return a new description of a matrix whose columns lie `leading` elements apart."""

    @abstractmethod
    def create_preference(self) -> int:
        """Return a new description of what is asked of algorithms."""

    @abstractmethod
    def set(self, descriptor: int, attribute: Attribute, value: int) -> None:
        """Set an attribute."""

    @abstractmethod
    def get(self, descriptor: int, attribute: Attribute) -> int:
        """Read an attribute back."""

    @abstractmethod
    def destroy(self, descriptor: int) -> None:
        """Give a descriptor back."""

    @abstractmethod
    def heuristics(self, matmul: int, layouts: Layouts, preference: int, count: int) -> Sequence[Heuristic]:
        """Return at most `count` algorithms, the most promising first; none where the library has none."""

    @abstractmethod
    def check(self, matmul: int, layouts: Layouts, algorithm: bytes) -> Heuristic | None:
        """Return an algorithm that was chosen before, with what it needs now; None where it does not serve here."""

    @abstractmethod
    def prepare(self, call: MatmulCall) -> Run:
        """Prepare a call for execution; its arguments are packed once, now."""

    @abstractmethod
    def seconds(self, run: Run, stream: int) -> float:
        """Measure a call on the device, in seconds."""
