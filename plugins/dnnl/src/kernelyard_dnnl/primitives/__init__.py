"""How each kind of node is lowered to primitives; the schema of a node is in its module's docstring."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitives.batch_norm import lower_batch_norm
from kernelyard_dnnl.primitives.convolution import lower_convolution, lower_transposed_convolution
from kernelyard_dnnl.primitives.elementwise import lower_binary, lower_eltwise
from kernelyard_dnnl.primitives.lrn import lower_lrn
from kernelyard_dnnl.primitives.matmul import lower_matmul
from kernelyard_dnnl.primitives.movement import (
    lower_cast,
    lower_concat,
    lower_permutation,
    lower_resample,
    lower_reshape,
    lower_slice,
)
from kernelyard_dnnl.primitives.pooling import lower_pool, lower_reduce
from kernelyard_dnnl.primitives.rows import lower_layer_norm, lower_softmax
from kernelyard_dnnl.values import Node, Value

LOWERINGS: dict[str, Callable[[Node, Lowering], Value]] = {
    "batch_norm": lower_batch_norm,
    "binary": lower_binary,
    "cast": lower_cast,
    "concat": lower_concat,
    "conv": lower_convolution,
    "conv_transpose": lower_transposed_convolution,
    "eltwise": lower_eltwise,
    "layer_norm": lower_layer_norm,
    "log_softmax": lower_softmax,
    "lrn": lower_lrn,
    "matmul": lower_matmul,
    "pool": lower_pool,
    "reduce": lower_reduce,
    "reorder": lower_permutation,
    "resample": lower_resample,
    "reshape": lower_reshape,
    "slice": lower_slice,
    "softmax": lower_softmax,
}
