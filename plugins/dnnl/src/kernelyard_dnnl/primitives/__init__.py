"""The kinds of primitives, one declaration each; the schema of a kind's node is in its module's docstring."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard_dnnl.lowering import Lower
from kernelyard_dnnl.primitive_kind import PrimitiveKind
from kernelyard_dnnl.primitives.batch_norm import BATCH_NORM
from kernelyard_dnnl.primitives.concat import CONCAT
from kernelyard_dnnl.primitives.convolution import CONVOLUTION, TRANSPOSED_CONVOLUTION
from kernelyard_dnnl.primitives.elementwise import BINARY, ELTWISE
from kernelyard_dnnl.primitives.layer_norm import LAYER_NORM
from kernelyard_dnnl.primitives.lrn import LRN
from kernelyard_dnnl.primitives.matmul import MATMUL
from kernelyard_dnnl.primitives.movement import CAST, REORDER, RESHAPE, SLICE
from kernelyard_dnnl.primitives.pooling import POOL
from kernelyard_dnnl.primitives.reduction import REDUCE
from kernelyard_dnnl.primitives.resampling import RESAMPLE
from kernelyard_dnnl.primitives.softmax import LOG_SOFTMAX, SOFTMAX

# Most wanted first: what computes most comes before what merely follows it.
PRIMITIVES: tuple[PrimitiveKind, ...] = (
    CONVOLUTION,
    TRANSPOSED_CONVOLUTION,
    MATMUL,
    SOFTMAX,
    LOG_SOFTMAX,
    LAYER_NORM,
    BATCH_NORM,
    LRN,
    POOL,
    REDUCE,
    RESAMPLE,
    CONCAT,
    ELTWISE,
    BINARY,
    CAST,
    REORDER,
    RESHAPE,
    SLICE,
)
BY_OPERATOR: Mapping[str, PrimitiveKind] = {op: kind for kind in PRIMITIVES for op in kind.ops}
LOWERINGS: Mapping[str, Lower] = {kind.node: kind.lower for kind in PRIMITIVES}
