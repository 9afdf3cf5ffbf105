"""Estimate the cost of generated kernels: the roofline over the efficiency that was measured (benchmarks/kernels.py).

Products of matrices take with them what follows (bias, activation, residual, norm) without going through memory; so do
attention, norms, softmax, and whatever goes element by element or moves elements. Convolutions and pools of images keep
no blocked layout between each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.plugins.api import Call, Cost, Match, Region, TensorType, calls_of, operands, roofline_seconds
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.region_costs import HEAVY, seconds_of_region

ARCHITECTURE, VECTOR_BITS = "x86_64", 512  # what was measured: others are guesses
# With shorter vectors, convolutions in groups were measured, one at a time.
GROUPED_VECTOR_BITS = 256
DTYPE = "float32"
USUAL = 0.8
# Parts of the roofline, by operator; of several operators, the least counts.
EFFICIENCIES = {
    "nn.conv1d": 0.7,
    **dict.fromkeys(("nn.conv2d", "nn.conv3d"), 0.5),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), 0.5),
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), 0.5),
    **dict.fromkeys(("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"), 0.5),
    **dict.fromkeys(("nn.batch_norm", "image.resize"), 0.5),
}


def cost_of(work: Match | Region, machine: Machine) -> Cost:
    """Return the cost of a match or a region as generated kernels."""
    calls = calls_of(work)
    if isinstance(work, Region) and _is_heavy_and_float(calls):
        return Cost(seconds_of_region(work), is_sure=_is_measured(work, machine))
    efficiency = min((EFFICIENCIES.get(call.op_name, USUAL) for call in calls), default=USUAL)
    return Cost(roofline_seconds(work) / efficiency, is_sure=_is_measured(work, machine))


def _is_heavy_and_float(calls: Sequence[Call]) -> bool:
    values = [each for call in calls for each in (call, *operands(call)) if isinstance(each.type, TensorType)]
    return any(call.op_name in HEAVY for call in calls) and all(each.tensor_type.dtype == DTYPE for each in values)


def _is_measured(work: Match | Region, machine: Machine) -> bool:
    """Return True for float32 with long vectors, for integers where an instruction sums products of bytes, and for
    convolutions in groups with AVX2: there, 16 that oneDNN has no code of its own for took 0.03 to 0.8 times as long as
    in it, 0.15 in the geometric mean."""
    calls = calls_of(work)
    if machine.architecture != ARCHITECTURE:
        return False
    if machine.vector_bits < VECTOR_BITS:
        is_grouped = any(call.attrs.get("groups", 1) != 1 for call in calls)
        is_wide = machine.vector_bits >= GROUPED_VECTOR_BITS
        return is_wide and is_grouped and isinstance(work, Match) and _is_heavy_and_float(calls)
    if any(call.op_name in ("quantize", "dequantize") for call in calls):
        return machine.dot_instruction == "vpdpbusd"
    values = [each for call in calls for each in (call, *operands(call))]
    return any(isinstance(each.type, TensorType) and each.type.dtype == DTYPE for each in values)
