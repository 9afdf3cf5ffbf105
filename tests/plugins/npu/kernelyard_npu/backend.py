"""The compile half: matrix products, and relu."""

from __future__ import annotations

from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.patterns.composite import captured_operands
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard_npu.runtime import NpuRuntime


class NpuSerializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return KernelNode(composite.attrs["kernel"], list(captured_operands(composite).items()))


class NpuBackend(Backend):
    name = "npu"

    def patterns(self, target):
        product = is_op("matmul")(wildcard().capture("a"), wildcard().capture("b"))
        relu = is_op("nn.relu")(wildcard().capture("a"))
        return [
            FusionPattern("npu.matmul", product, attrs_getter=lambda match: {"kernel": "matmul"}),
            FusionPattern("npu.relu", relu, attrs_getter=lambda match: {"kernel": "relu"}),
        ]

    def codegen(self, regions, options):
        serializer = NpuSerializer()
        return NpuRuntime(serializer.serialize_all(regions), serializer.constants)
