"""A graph of cuDNN operations on tensors of known dims and strides: the one description that everything follows from.

`kernelyard_cudnn.frontend` makes cuDNN's own graph of it, `kernelyard_cudnn.emulation` computes it with NumPy. Dims are
in cuDNN's order, whatever lies innermost in memory: (N, C, spatial...) of images, (K, C / groups, kernel...) of
weights, (B, H, S, D) of attention. Strides count elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TypeAlias

Ints: TypeAlias = tuple[int, ...]

ACTIVATIONS = ("relu", "leaky_relu", "gelu", "gelu_approx_tanh", "swish", "sigmoid", "tanh", "elu", "softplus")
BINARY = ("add", "mul", "sub", "max", "min")
CAUSAL = ("none", "top_left", "bottom_right")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph; `uid` tells it from the others.

    is_virtual: only between operations, never in memory; it is float32 then.
    """

    uid: int
    dims: Ints
    strides: Ints
    dtype: str
    is_virtual: bool = False

    @property
    def extent(self) -> int:
        """The extent in memory, in elements, from the first to the last inclusive; 0 for an empty tensor."""
        if 0 in self.dims:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.dims, self.strides, strict=True))


@dataclass(frozen=True)
class Window:
    """The window of a convolution, one value per spatial axis; padding is the same on both sides."""

    padding: Ints
    strides: Ints
    dilation: Ints


@dataclass(frozen=True)
class Convolution:
    """The cross-correlation of x with w. Groups follow from the dims: C of x over C of w."""

    x: Tensor
    w: Tensor
    y: Tensor
    window: Window


@dataclass(frozen=True)
class ConvolutionTranspose:
    """The gradient of a convolution's data: x in the place of its result, y in the place of its data."""

    x: Tensor
    w: Tensor
    y: Tensor
    window: Window


@dataclass(frozen=True)
class Pointwise:
    """A function of each element, or of two elements where one operand broadcasts to the other.

    mode: of `ACTIVATIONS` or `BINARY`, as the frontend calls it. parameters: by name, of relu `lower_clip` and
    `upper_clip`, of leaky_relu `negative_slope`.
    """

    mode: str
    x: Tensor
    y: Tensor
    operand: Tensor | None = None
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Norm:
    """Layer norm, where there is a bias, or RMS norm, over all axes but the first: x is (rows, C, 1, 1)."""

    x: Tensor
    scale: Tensor
    bias: Tensor | None
    y: Tensor
    epsilon: float


@dataclass(frozen=True)
class Attention:
    """softmax(q @ k.T * scale + bias) @ v, where a key is visible.

    causal: of `CAUSAL`. bias: (1 or B, 1 or H, 1 or S, T). lengths_q, lengths_kv: (B, 1, 1, 1) int32, how many rows of
    each example there are; both or none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor
    scale: float
    causal: str = "none"
    bias: Tensor | None = None
    lengths_q: Tensor | None = None
    lengths_kv: Tensor | None = None


Node: TypeAlias = Convolution | ConvolutionTranspose | Pointwise | Norm | Attention


@dataclass(frozen=True)
class Graph:
    """Operations in order; the last one's y is the result.

    tf32: whether matmuls of float32 may round their operands to 10 bits of mantissa.
    """

    nodes: tuple[Node, ...]
    tf32: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor once, by uid."""
        found = {tensor.uid: tensor for node in self.nodes for tensor in tensors_of(node)}
        return tuple(found[uid] for uid in sorted(found))

    @property
    def result(self) -> Tensor:
        """The result of the last operation."""
        return self.nodes[-1].y


def tensors_of(node: Node) -> Iterator[Tensor]:
    """Yield the tensors that an operation reads and writes."""
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Tensor):
            yield value
