"""lookup: each byte by a table, in whatever layout it lies; code of our own, as oneDNN has none.

Node schema: operands x and table (256 bytes). No post-ops.
"""

from __future__ import annotations

from kernelyard.errors import CodegenError
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive_kind import INTEGERS, MemoryOrder, PrimitiveKind
from kernelyard_dnnl.processor import has_byte_permutations
from kernelyard_dnnl.values import NativeKernel, Node, Value

TABLE = enums.ARG["src_1"]


def lower_lookup(node: Node, graph: Lowering) -> Value:
    """Lower a lookup node, in place if the operand is dead afterwards."""
    source, table = graph.make_strided(node.operands["x"]), graph.make_plain(node.operands["table"])
    layout = dense(node.shape, node.dtype, source.descriptor.order)
    result = source.view_as(layout) if graph.may_overwrite(source, [table]) else graph.new(layout)
    graph.emit(_kernel(layout.nbytes), {SOURCE: source, TABLE: table, DESTINATION: result})
    return result


def _kernel(count: int) -> NativeKernel:
    from kernelyard_llvm.byte_table import Field, byte_table_kernel  # artifacts without tables start without it

    has_vbmi = has_byte_permutations()
    code = byte_table_kernel(has_vbmi)
    if code is None:
        raise CodegenError("a table of bytes needs llvmlite", hint="pip install llvmlite")
    numbers = {Field.COUNT: count}
    return NativeKernel(
        implementation="table:vbmi" if has_vbmi else "table",
        function=code.addresses["run"],
        record=tuple(numbers.get(place, 0) for place in Field if place is not Field.LENGTH),
        places={SOURCE: Field.SOURCE, TABLE: Field.TABLE, DESTINATION: Field.RESULT},
        scratch_place=Field.SCRATCH,
        scratchpad_nbytes=0,
        threads=1,
        flops=0,
        keep=code,
    )


LOOKUP = PrimitiveKind(
    node="lookup",
    summary="functions of one byte, by a table of 256; code of our own",
    ops=("lookup",),
    operands=("x", "table"),
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_lookup,
    dtypes=INTEGERS,
    is_light=True,
    has_one_dtype=False,
)
