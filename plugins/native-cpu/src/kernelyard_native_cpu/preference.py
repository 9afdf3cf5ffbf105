"""Which regions of a library had better be kernels of ours.

What was measured (benchmarks/models.py and kernels.py; float32, vectors of 512 bits): products of matrices are as quick
as a library's, and take with them what follows (bias, activation, residual, norm) without going through memory. So are
attention, norms, softmax, and whatever goes element by element or moves elements. Convolutions and pools are not, and
what lies between them stays with them, in the layout that they like.
"""

from __future__ import annotations

from kernelyard.ir import TensorType, operands
from kernelyard.transform.run_codegen import Region
from kernelyard_native_cpu.machine import Machine

VECTOR_BITS = 512
DTYPE = "float32"
OF_LIBRARIES = frozenset(
    (
        *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.batch_norm", "image.resize"),
    )
)


def preference(region: Region, machine: Machine) -> str | None:
    """Why a region had better be ours; None where it had not."""
    if machine.vector_bits < VECTOR_BITS or not OF_LIBRARIES.isdisjoint(region.ops):
        return None
    for _, composite in region.composites():
        for binding in composite.bindings:
            values = (binding.var, *operands(binding.value))
            if any(isinstance(each.type, TensorType) and each.type.dtype != DTYPE for each in values):
                return None
    return "nothing in the region is a convolution or a pool, and what follows a product is part of its kernel"
