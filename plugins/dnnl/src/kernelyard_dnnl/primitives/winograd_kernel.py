"""Kernels of Winograd convolutions as operations of a plan; what they are made of is kept with the plan."""

from __future__ import annotations

from typing import Any

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError, load_library
from kernelyard_dnnl.primitives.winograd_choice import vector_lanes
from kernelyard_dnnl.values import NativeKernel
from kernelyard_dnnl.work import WORTHWHILE_SECONDS
from kernelyard_llvm.winograd.choice import Shape, seconds
from kernelyard_llvm.winograd.epilogue import Stage
from kernelyard_llvm.winograd.kernel import Convolution, Depth, Layout, convolution_kernel
from kernelyard_llvm.winograd.record import MAX_OPERANDS, Field

WEIGHTS, BIAS = enums.ARG["weights"], enums.ARG["bias"]
# Where a kernel's record has the addresses of a convolution's arguments.
PLACES = {
    enums.ARG["src"]: Field.SOURCE,
    WEIGHTS: Field.WEIGHTS,
    BIAS: Field.BIAS,
    enums.ARG["dst"]: Field.RESULT,
    **{enums.post_op_argument(number): Field.OPERANDS + number for number in range(MAX_OPERANDS)},
}


def make_kernel(convolution: Convolution, lanes: int, threads: int) -> NativeKernel:
    """Return the kernel of a convolution, for all of so many threads or, where it is too small for them, for one."""
    team = load_library().team_functions
    assert team is not None, "without it there are no lanes"
    fitting = threads if seconds(convolution.shape, convolution.m, lanes) >= WORTHWHILE_SECONDS else 1
    kernel = convolution_kernel(convolution, lanes, fitting, tuple(team.items()))
    return NativeKernel(
        implementation=kernel.implementation,
        function=kernel.function,
        record=kernel.record,
        places=PLACES,
        scratch_place=Field.SCRATCH,
        scratchpad_nbytes=kernel.scratch_nbytes,
        threads=fitting,
        flops=kernel.flops,
        keep=kernel.keep,
        parts=(lanes, *convolution[:-2], tuple(convolution.operands.items()), convolution.depth),
    )


def read_kernel(parts: list[Any], threads: int) -> NativeKernel:
    """Return the kernel that has these parts, as JSON data.

    Raises: StatusError where it cannot be made here any more.
    """
    lanes, m, shape, source, result, padding, has_bias, stages, operands, depth = parts
    if vector_lanes() != lanes:
        raise StatusError("convolution_kernel", enums.STATUS.index("unimplemented"))
    convolution = Convolution(
        m,
        Shape(*shape),
        _read_layout(source),
        _read_layout(result),
        (padding[0], padding[1]),
        has_bias,
        tuple([Stage(*stage) for stage in stages]),
        {number: _read_layout(layout) for number, layout in operands},
        Depth(*depth),
    )
    return make_kernel(convolution, lanes, threads)


def _read_layout(layout: list[list[int]]) -> Layout:
    shape, strides = layout
    return Layout(tuple(shape), tuple(strides))
