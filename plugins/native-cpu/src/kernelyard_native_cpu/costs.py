"""Estimate the cost of generated kernels: the roofline over the efficiency that was measured (benchmarks/kernels.py).

Products of matrices take with them what follows (bias, activation, residual, norm) without going through memory; so do
attention, norms, softmax, and whatever goes element by element or moves elements. Convolutions and pools of images keep
no blocked layout between each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.plugins.api import Call, Cost, Match, Region, TensorType, calls_of, operands, roofline_seconds
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.region_costs import AVX2, AVX512, HEAVY, PRODUCTS, seconds_of_region

# What was measured, by the bits of vectors: others are guesses.
ARCHITECTURE = "x86_64"
LONG_VECTOR_BITS = 512
RATES = {256: AVX2, LONG_VECTOR_BITS: AVX512}
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
# With AVX2, windows over many channels along one axis: 28 shapes took 0.65 to 1.23 times as long as oneDNN by itself,
# 0.96 in the geometric mean, and between its other convolutions oneDNN has no reorders.
MANY_CHANNELS_ALONG_ONE_AXIS, MANY = 0.55, 16


def cost_of(work: Match | Region, machine: Machine) -> Cost:
    """Return the cost of a match or a region as generated kernels."""
    calls = calls_of(work)
    if isinstance(work, Region) and _is_heavy_and_float(calls):
        return Cost(seconds_of_region(work, RATES.get(machine.vector_bits, AVX2)), is_sure=_is_measured(work, machine))
    efficiency = min((_efficiency(call, machine) for call in calls), default=USUAL)
    return Cost(roofline_seconds(work) / efficiency, is_sure=_is_measured(work, machine))


def _efficiency(call: Call, machine: Machine) -> float:
    """Return the part of the roofline that a generated kernel of an operator reaches."""
    if call.op_name == "nn.conv1d" and machine.vector_bits < LONG_VECTOR_BITS and call.attrs["groups"] == 1:
        filters, channels, window = call.args[1].tensor_type.shape
        if window != 1 and all(isinstance(size, int) and size >= MANY for size in (filters, channels)):
            return MANY_CHANNELS_ALONG_ONE_AXIS
    return EFFICIENCIES.get(call.op_name, USUAL)


def _is_heavy_and_float(calls: Sequence[Call]) -> bool:
    values = [each for call in calls for each in (call, *operands(call)) if isinstance(each.type, TensorType)]
    return any(call.op_name in HEAVY for call in calls) and all(each.tensor_type.dtype == DTYPE for each in values)


def _is_measured(work: Match | Region, machine: Machine) -> bool:
    """Return True for float32 with AVX2 or AVX-512, and for integers with AVX-512 where an instruction sums products of
    bytes. With AVX2 and no such instruction, where oneDNN has no products of integers, what stands between them was
    measured."""
    if machine.architecture != ARCHITECTURE or machine.vector_bits not in RATES:
        return False
    calls = calls_of(work)
    if any(call.op_name in ("quantize", "dequantize") for call in calls):
        if machine.vector_bits >= LONG_VECTOR_BITS:
            return machine.dot_instruction == "vpdpbusd"
        return machine.dot_instruction == "pmaddwd" and PRODUCTS.isdisjoint(call.op_name for call in calls)
    values = [each for call in calls for each in (call, *operands(call))]
    return any(isinstance(each.type, TensorType) and each.type.dtype == DTYPE for each in values)
