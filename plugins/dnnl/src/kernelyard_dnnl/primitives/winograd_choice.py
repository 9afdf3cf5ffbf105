"""Choose Winograd's algorithm for a convolution, or not; asked of each; see `primitives.winograd`.

Artifacts are to start quickly: what makes the kernels is imported where the answer is yes.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.values import Node

if TYPE_CHECKING:
    from kernelyard_dnnl.lowering import Lowering
    from kernelyard_llvm.winograd.choice import Shape

WINDOW = 3
# Bits of `dnnl_cpu_isa_t`, by the floats in a vector of theirs, the most first.
_ISA = {16: 0x27, 8: 0x07}


@cache
def vector_lanes() -> int:
    """Return the floats in a vector, where code can be made for this machine: 16, 8, or 0 where it cannot.

    Needed are vectors that oneDNN would use here, OpenMP by its GNU interface, and llvmlite.
    """
    from importlib.util import find_spec  # inside: few convolutions get here

    library = load_library()
    if library.team_functions is None or find_spec("llvmlite") is None:
        return 0
    isa = library.call("dnnl_get_effective_cpu_isa")
    return next((lanes for lanes, bits in _ISA.items() if isa & bits == bits), 0)


def winograd_tile(node: Node, graph: Lowering) -> int | None:
    """Return m of the F(m x m, 3 x 3) that computes a conv node; None where it is to be computed directly."""
    if not node.attrs.get("winograd", True) or not graph.native_kernels or not _is_possible(node):
        return None
    from kernelyard_llvm.winograd.choice import best_tile  # most convolutions do not come so far

    return graph.decide(best_tile, shape_of(node), vector_lanes()) if vector_lanes() else None


def _is_possible(node: Node) -> bool:
    """Return True for constant weights of 3 x 3 windows that move one pixel at a time, over images in float32; over
    volumes, of any number of planes."""
    data, weight, attrs = node.operands["data"], node.operands["weight"], node.attrs
    dtypes = {node.dtype, *(value.descriptor.dtype for value in node.operands.values())}
    return (
        weight.is_constant
        and dtypes == {"float32"}
        and len(data.shape) in (4, 5)
        and weight.shape[-2:] == (WINDOW, WINDOW)
        and attrs["groups"] == 1
        and all(step == 1 for step in (*attrs["strides"], *attrs["dilation"]))
        and all(amount >= 0 for amount in (*node.sizes("padding_begin"), *node.sizes("padding_end")))
    )


def shape_of(node: Node) -> Shape:
    """Return a conv node's shape as the choice takes it."""
    from kernelyard_llvm.winograd.choice import Shape

    images, filters, *depth, height, width = node.shape
    planes = node.operands["weight"].shape[2:-2]
    return Shape(images * math.prod(depth), height, width, node.operands["data"].shape[1], filters, math.prod(planes))
