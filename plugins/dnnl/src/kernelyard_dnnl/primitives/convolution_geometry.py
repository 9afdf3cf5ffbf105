"""Windows of convolutions as oneDNN's primitives take them, and the primitives for given layouts."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive import Primitive, Vector, speed
from kernelyard_dnnl.primitive_attributes import PostOps, RuntimeNumbers
from kernelyard_dnnl.values import Node

DIRECT, TRANSPOSED_DIRECT = 1, 10  # algorithms
# Numbers of channels whose last vector of 16 is at least half empty; oneDNN's better implementations for vectors of 8.
HALF_EMPTY = (*range(1, 9), *range(17, 25))
HALF_WIDE = re.compile(r"br\w*:avx2\b")
# oneDNN 3.2 never frees the code that these generate for post-ops: some tens of kilobytes for each size.
LEAKING = re.compile(r"brgconv(_1x1)?:avx")
# What oneDNN prefers for channels-last images with vectors of 8, and what is faster there.
FASTER = {"brdgmm_dw:avx2": "jit_dw:avx2", "brgconv_1x1:avx2": "jit_1x1:avx2"}
VECTOR, OF_VECTORS = 8, ":avx2"


class Geometry(NamedTuple):
    """The window of a convolution; dilation counts from 0, as oneDNN has it."""

    kind: str
    algorithm: int
    strides: Vector
    dilation: Vector
    padding_begin: Vector
    padding_end: Vector


def geometry_of(node: Node) -> Geometry:
    """Return the window of a conv node."""
    attrs = node.attrs
    return Geometry(
        "convolution_forward",
        DIRECT,
        Vector(tuple(attrs["strides"])),
        Vector(tuple(step - 1 for step in attrs["dilation"])),
        Vector(node.sizes("padding_begin")),
        Vector(node.sizes("padding_end")),
    )


def infer_transposed_geometry(node: Node) -> Geometry:
    """Return the window of a conv_transpose node; the padding at its end follows from the shape of the result."""
    attrs, data = node.attrs, node.operands["data"].shape[2:]
    kernel = node.operands["weight"].shape[2:]
    sizes = zip(data, node.shape[2:], kernel, attrs["strides"], attrs["dilation"], attrs["padding_begin"], strict=True)
    padding_end = tuple((i - 1) * s + (k - 1) * d + 1 - before - o for i, o, k, s, d, before in sizes)
    return Geometry(
        "deconvolution_forward",
        TRANSPOSED_DIRECT,
        Vector(tuple(attrs["strides"])),
        Vector(tuple(step - 1 for step in attrs["dilation"])),
        Vector(tuple(attrs["padding_begin"])),
        Vector(padding_end),
    )


class Convolution(NamedTuple):
    """A convolution whose layouts are open: makes primitives for given layouts of data and result."""

    graph: Lowering
    geometry: Geometry
    weights: MemoryDescriptor
    bias: MemoryDescriptor | None
    numbers: RuntimeNumbers = ()

    def primitive(
        self, source: MemoryDescriptor, destination: MemoryDescriptor, post_ops: PostOps = (), skipped: int = 0
    ) -> Primitive:
        """Raises: StatusError."""
        geometry = self.geometry
        return self.graph.primitive(
            geometry.kind,
            enums.FORWARD_INFERENCE,
            geometry.algorithm,
            source,
            self.weights,
            self.bias,
            destination,
            geometry.strides,
            geometry.dilation,
            geometry.padding_begin,
            geometry.padding_end,
            post_ops=post_ops,
            skipped=skipped,
            numbers=self.numbers,
        )

    def quickest(self, preferred: Primitive) -> Primitive:
        """Return the primitive, or that of the implementation further down oneDNN's list that suits it better.

        Raises: StatusError.
        """
        return self.lasting(self.narrow(self.faster(preferred)))

    def faster(self, preferred: Primitive) -> Primitive:
        """Return the primitive, or that of the faster implementation with the same layouts of images.

        With vectors of 8, what oneDNN prefers multiplies batches of small matrices. What it falls back on takes 0.71 of
        the time for depthwise convolutions, the geometric mean of 25 random images and windows, 0.44 to 0.96, and 0.85
        for windows of one element, of 65 random shapes, 0.49 to 1.02, but up to 1.4 where the filters are one vector.

        Raises: StatusError.
        """
        wanted = FASTER.get(preferred.implementation) if preferred.destination.shape[1] > VECTOR else None
        return preferred if wanted is None else self._first_after(preferred, lambda name: name == wanted) or preferred

    def lasting(self, preferred: Primitive) -> Primitive:
        """Return the primitive; for a graph that came with many sizes, that of an implementation whose code is freed.

        Those take 1.02 of the time with vectors of 16 channels, but up to 1.5 with vectors of 8.

        Raises: StatusError.
        """
        if not self.graph.is_one_of_many or self.weights.dtype != "float32":
            return preferred
        other = self._first_after(preferred, lambda name: not LEAKING.match(name))
        return preferred if other is None or speed(other.implementation) != 2 else other

    def _first_after(self, preferred: Primitive, is_wanted: Callable[[str], bool]) -> Primitive | None:
        """Return the primitive, or the first one that the library offers after it whose implementation is wanted."""
        other, skipped = preferred, preferred.recipe.skipped
        while not is_wanted(other.implementation):
            skipped += 1
            try:
                other = self.primitive(
                    preferred.source, preferred.destination, preferred.recipe.post_ops, skipped=skipped
                )
            except StatusError:
                return None
        return other

    def narrow(self, preferred: Primitive) -> Primitive:
        """Return the primitive, or that of the implementation that leaves fewer of its vectors idle.

        oneDNN prefers vectors of 16 channels. Those of 8 are as quick where the processor works on halves, and faster
        where the last 16 would be half empty: 24 channels take 0.7 of the time. Beyond that the implementations for
        AVX2 keep too few results in registers.

        Raises: StatusError.
        """
        destination, source, post_ops = preferred.destination, preferred.source, preferred.recipe.post_ops
        is_grouped = self.weights.rank > destination.rank
        if is_grouped or destination.dtype != "float32" or destination.shape[1] not in HALF_EMPTY:
            return preferred
        if preferred.implementation.endswith(OF_VECTORS):
            return preferred
        from kernelyard_dnnl.processor import has_half_wide_units  # inside: few convolutions are so narrow

        other, skipped = preferred, 0
        while has_half_wide_units() and not HALF_WIDE.match(other.implementation):
            skipped += 1
            try:
                other = self.primitive(source, destination, post_ops, skipped=skipped)
            except StatusError:
                return preferred
        return other
