"""Attributes of primitives: post-ops, and the numbers that are given at execution.

Source: the oneDNN developer guide, "Primitive Attributes".
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from kernelyard.runtime.api import NamedTuple, record
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import CACHED_PRIMITIVES, Handle, load_library
from kernelyard_dnnl.layout import MemoryDescriptor


class Eltwise(NamedTuple):
    """Applies an eltwise algorithm to the result so far."""

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0


@record
class Sum:
    """Adds what the destination held before."""


class Binary(NamedTuple):
    """Combines the result so far with a second operand."""

    algorithm: str
    operand: MemoryDescriptor


class Prelu(NamedTuple):
    """Multiplies what is negative in the result so far by slopes, which broadcast to it."""

    slopes: MemoryDescriptor

    @property
    def mask(self) -> int:
        """Bit i is set where there is a slope for each index of dim i."""
        return sum(1 << dim for dim, size in enumerate(self.slopes.shape) if size > 1)


class Depthwise(NamedTuple):
    """Convolves each channel of the result so far with a window of 3 x 3 of its own, one pixel of zeros around it."""

    stride: int
    has_bias: bool


class Runtime(NamedTuple):
    """Numbers that a primitive is given at execution: `what` (scales, zero_points) of the argument of that number.

    mask: bit i is set where there is one for each index of dim i; 0 for one number.
    """

    what: str
    argument: int
    mask: int = 0


RuntimeNumbers: TypeAlias = "tuple[Runtime, ...]"
PostOp: TypeAlias = "Eltwise | Sum | Binary | Prelu | Depthwise"
PostOps: TypeAlias = "tuple[PostOp, ...]"


@lru_cache(maxsize=CACHED_PRIMITIVES)
def attributes_of(post_ops: PostOps, numbers: RuntimeNumbers) -> Handle:
    """Return attributes with post-ops, numbers given at execution, and a scratchpad that is ours.

    The library's own scratchpad is not safe with several threads.
    """
    library = load_library()
    attributes = library.create("dnnl_primitive_attr_create", "dnnl_primitive_attr_destroy")
    library.call("dnnl_primitive_attr_set_scratchpad_mode", attributes.address, enums.SCRATCHPAD_MODE_USER)
    for number in numbers:
        name = f"dnnl_primitive_attr_set_{number.what}_mask"
        library.call(name, attributes.address, number.argument, number.mask)
    if not post_ops:
        return attributes
    chain = library.create("dnnl_post_ops_create", "dnnl_post_ops_destroy")
    for post_op in post_ops:
        if isinstance(post_op, Eltwise):
            algorithm = enums.ELTWISE[post_op.algorithm]
            library.call("dnnl_post_ops_append_eltwise", chain.address, algorithm, post_op.alpha, post_op.beta)
        elif isinstance(post_op, Sum):
            library.call("dnnl_post_ops_append_sum", chain.address, 1.0, 0, 0)
        elif isinstance(post_op, Prelu):
            library.call("dnnl_post_ops_append_prelu", chain.address, post_op.mask)
        elif isinstance(post_op, Depthwise):
            library.call("dnnl_post_ops_append_dw", chain.address, *depthwise_arguments(post_op))
        else:
            algorithm = enums.BINARY[post_op.algorithm]
            library.call("dnnl_post_ops_append_binary", chain.address, algorithm, post_op.operand.address)
    library.call("dnnl_primitive_attr_set_post_ops", attributes.address, chain.address)
    return attributes


def depthwise_arguments(post_op: Depthwise) -> tuple[int, ...]:
    """Return the arguments of `dnnl_post_ops_append_dw`: the dtypes of weights, bias and result, and the window."""
    dtype = enums.DATA_TYPE["float32"]
    return dtype, dtype if post_op.has_bias else enums.DATA_TYPE_UNDEFINED, dtype, 3, post_op.stride, 1
