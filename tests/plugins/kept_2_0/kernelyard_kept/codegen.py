"""The compile half: regions become JSON graphs for `kernelyard_kept.runtime`."""

from kernelyard.plugins.api import Backend, JSONSerializer, KernelNode, captured_operands
from kernelyard_kept.patterns import fusion_patterns
from kernelyard_kept.runtime import KeptRuntime


class KeptSerializer(JSONSerializer):
    def visit_composite(self, composite, call):
        operands = captured_operands(composite)
        return KernelNode(composite.attrs["kernel"], list(operands.items()), composite.attrs["arguments"])


class KeptBackend(Backend):
    name = "kept"
    merge_composites = True  # neighbouring kernels become one region, run by one call

    def patterns(self, target):
        return fusion_patterns()

    def codegen(self, regions, options):
        serializer = KeptSerializer()
        return KeptRuntime(serializer.serialize_all(regions), serializer.constants)
