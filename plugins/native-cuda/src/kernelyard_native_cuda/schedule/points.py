"""Code shared by schedules: the loops of a reduction, and the store of a point's value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from kernelyard.plugins.codegen_api import ComputeBlock, IterVar, Stage, element_at_zeros
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.expressions import Expressions
from kernelyard_native_cuda.codegen.kernel import Kernel
from kernelyard_native_cuda.codegen.types import computed_type

Store = Callable[[ComputeBlock, str], None]


@contextmanager
def loops(kernel: Kernel, axes: Sequence[IterVar]) -> Iterator[None]:
    """Emit nested loops over axes, in order, named after them."""
    with ExitStack() as stack:
        for axis in axes:
            head = f"for (long long {axis.name} = 0; {axis.name} < {kernel.dim(axis.extent)}; ++{axis.name})"
            stack.enter_context(kernel.writer.block(head))
        yield


def emit_scoped(kernel: Kernel, outer: Expressions, axes: Sequence[IterVar] = ()) -> Expressions:
    """Return the expressions inside loops over axes: values defined there are dropped outside."""
    inner = {axis.name: axis.name for axis in axes}
    return kernel.expressions({**outer.axes, **inner}, outer.known, outer.kept)


def emit_reduction(kernel: Kernel, outer: Expressions, block: ComputeBlock) -> str:
    """Return a block's value at one point, by loops over its reduce axes; the name of it."""
    assert block.reducer is not None
    if block.arg is not None:
        return _extreme(kernel, outer, block)
    dtype = block.output.dtype
    total = kernel.writer.fresh("total")
    start = outer.value(block.init) if block.init is not None else operations.neutral(block.reducer, dtype)
    kernel.writer.line(f"{computed_type(dtype)} {total} = {start};")
    with loops(kernel, block.reduce_axes):
        inner = emit_scoped(kernel, outer, block.reduce_axes)
        inner.expect(block.body)
        combined = operations.combine(block.reducer, total, inner.value(block.body), dtype)
        kernel.writer.line(f"{total} = {combined};")
    return total


def _extreme(kernel: Kernel, outer: Expressions, block: ComputeBlock) -> str:
    """Return `arg` at the first point whose body is extreme, or NaN."""
    assert block.arg is not None
    writer = kernel.writer
    best, found, is_first = writer.fresh("best"), writer.fresh("found"), writer.fresh("first")
    writer.line(f"{computed_type(block.body.dtype)} {best} = 0;")
    writer.line(f"long long {found} = 0;")
    writer.line(f"bool {is_first} = true;")
    with loops(kernel, block.reduce_axes):
        inner = emit_scoped(kernel, outer, block.reduce_axes)
        inner.expect(block.body, block.arg)
        value = writer.define(computed_type(block.body.dtype), inner.value(block.body))
        beats = ">" if block.reducer == "argmax" else "<"
        with writer.block(
            f"if ({is_first} || ({best} == {best} && !({value} == {value} && !({value} {beats} {best}))))"
        ):
            writer.line(f"{best} = {value}, {found} = {inner.value(block.arg)}, {is_first} = false;")
    return found


def finish_point(
    kernel: Kernel, here: Expressions, stage: Stage, first: str | None = None, store: Store | None = None
) -> None:
    """Compute the stage's elementwise blocks at a point and store what is needed later.

    first: the value of the first block, where it is known. store: what writes a block's value, given its name.
    """
    store = store or (lambda block, name: here.store(block.output, block.indices, name))
    start = 0 if first is None else 1
    here.expect(*(block.body for block in stage.blocks[start:]))
    for number, block in enumerate(stage.blocks):
        text = first if number < start and first is not None else here.value(block.body)
        name = text if text.isidentifier() else kernel.writer.define(computed_type(block.output.dtype), text)
        here.known[element_at_zeros(block)] = name
        if block.output not in stage.inside:
            store(block, name)
