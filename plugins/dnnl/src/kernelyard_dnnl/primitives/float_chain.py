"""Elementwise nodes that round to 16 bits on the way, by code of our own: see `kernelyard_llvm.float_chain`.

Each store in 16 bits is four post-ops of oneDNN, whose binary and eltwise primitives take one to three nanoseconds for
each element then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kernelyard.runtime.api import Code, NamedTuple
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.layout import MemoryDescriptor, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive_kind import FLOAT
from kernelyard_dnnl.primitives.byte_arithmetic import long_row, repeat_rows
from kernelyard_dnnl.primitives.post_ops import Step, broadcast_operand, pad_shape
from kernelyard_dnnl.processor import has_wide_integers
from kernelyard_dnnl.values import NativeKernel, Node, Value
from kernelyard_dnnl.work import WORTHWHILE_SECONDS
from kernelyard_llvm.float_chain import ARITHMETIC, FUNCTIONS, Field, float_chain_kernel
from kernelyard_llvm.float_chain import Step as Operation

ELEMENTS_PER_SECOND = 3e9
OPERAND = 1 << 20  # operands' numbers among the arguments begin here, away from the library's


class Arguments(NamedTuple):
    """Hold what the kernel reads beside its operand: the rest of the record, tensors by the place of their address."""

    record: list[int]
    tensors: dict[int, Value]


def lower_float_chain(node: Node, graph: Lowering, x: Value, steps: Sequence[Step]) -> Value | None:
    """Lower steps over a tensor of the result's shape; None where none rounds, or this is not one for the code here."""
    team = load_library().team_functions
    if team is None or not graph.native_kernels or not has_wide_integers() or not _is_possible(node, x, steps):
        return None
    constants = [_constant(node, step) for step in steps]
    rows = _rows(node, x.descriptor, [each for each in constants if each is not None])
    operations = [Operation(_name(step), array is not None) for step, array in zip(steps, constants, strict=True)]
    kernel = float_chain_kernel(operations, team)
    if rows is None or kernel is None:
        return None
    numbers, columns = rows
    constant_rows = (graph.numbers(row) for row in numbers)
    pairs = zip(steps, constants, strict=True)
    operands = [step.operand if array is None else next(constant_rows) for step, array in pairs]
    return _emit_kernel(node, graph, x, columns, _arguments(graph, steps, operands, x.descriptor), kernel)


def _emit_kernel(node: Node, graph: Lowering, x: Value, columns: int, arguments: Arguments, kernel: Code) -> Value:
    count = math.prod(node.shape)
    operands = {OPERAND + place: place for place in arguments.tensors}
    code = NativeKernel(
        implementation="chain:avx512",
        function=kernel.addresses["run"],
        record=(*[0] * Field.ROWS, count // columns, columns, *arguments.record),
        places={SOURCE: int(Field.SOURCE), DESTINATION: int(Field.RESULT), **operands},
        scratch_place=Field.SCRATCH,
        scratchpad_nbytes=0,
        threads=graph.threads if count / ELEMENTS_PER_SECOND >= WORTHWHILE_SECONDS else 1,
        flops=len(arguments.record) * count,
        keep=kernel,
    )
    tensors = {OPERAND + place: tensor for place, tensor in arguments.tensors.items()}
    layout = dense(node.shape, node.dtype, x.descriptor.order)
    result = x.view_as(layout) if graph.may_overwrite(x, tensors.values()) else graph.new(layout)
    graph.emit(code, {SOURCE: x, **tensors, DESTINATION: result})
    return result


def _arguments(
    graph: Lowering, steps: Sequence[Step], operands: Sequence[Value | None], layout: MemoryDescriptor
) -> Arguments:
    """Return the steps' places in the record; operands: rows of constants, or tensors of the result's shape."""
    record: list[int] = []
    tensors: dict[int, Value] = {}
    for step, operand in zip(steps, operands, strict=True):
        if operand is None:
            record += _bits(step)
            continue
        is_row = operand is not step.operand
        tensors[Field.STEPS + len(record)] = operand if is_row else broadcast_operand(graph, operand, layout)
        record.append(0)
    return Arguments(record, tensors)


def _is_possible(node: Node, x: Value, steps: Sequence[Step]) -> bool:
    """Return True for floats, one of whose steps rounds, and operands of the same shape or constants."""
    return (
        x.shape == node.shape
        and {x.descriptor.dtype, node.dtype} == {FLOAT}
        and x.descriptor.is_dense
        and "round" in map(_name, steps)
        and all(_name(step) in (*ARITHMETIC, *FUNCTIONS) and step.affine is None for step in steps)
        and all(
            step.operand is None
            or (
                step.operand.descriptor.dtype == FLOAT
                and (step.operand.is_constant or pad_shape(step.operand.shape, len(node.shape)) == node.shape)
            )
            for step in steps
        )
    )


def _name(step: Step) -> str:
    function = step.eltwise
    if function is None:
        return step.algorithm
    return "" if function.algorithm == "relu" and function.alpha else function.algorithm


def _constant(node: Node, step: Step) -> np.ndarray | None:
    """Return the constant that a step reads, unless it has the result's shape."""
    operand = step.operand
    if operand is None or pad_shape(operand.shape, len(node.shape)) == node.shape:
        return None
    return operand.array().reshape(pad_shape(operand.shape, len(node.shape)))


def _rows(node: Node, layout: MemoryDescriptor, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int] | None:
    """Return a row of each array, and the length of rows; None where the arrays differ over outer dims."""
    if not arrays:
        return [], long_row([node.shape[axis] for axis in layout.order])
    made = repeat_rows(node, layout.order, np.broadcast_arrays(*arrays))
    return None if made is None else (np.split(made[0], len(arrays)), made[1])


def _bits(step: Step) -> list[int]:
    """Return a function's numbers as they stand in the record."""
    function = step.eltwise
    assert function is not None
    numbers = (function.alpha, function.beta)[: FUNCTIONS[function.algorithm]]
    return [int(np.float32(each).view(np.uint32)) for each in numbers]
