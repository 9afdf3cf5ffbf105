"""The compile half: regions become JSON graphs for `kernelyard_acme.runtime`."""

from kernelyard.plugins.api import Backend, JSONSerializer, KernelNode, captured_operands
from kernelyard_acme.patterns import fusion_patterns
from kernelyard_acme.runtime import AcmeRuntime


class AcmeSerializer(JSONSerializer):
    def visit_composite(self, composite, call):
        operands = captured_operands(composite)
        return KernelNode(composite.attrs["kernel"], list(operands.items()), composite.attrs["arguments"])


class AcmeBackend(Backend):
    name = "acme"
    merge_composites = True  # neighbouring kernels become one region, run by one call

    def patterns(self, target):
        return fusion_patterns()

    def codegen(self, regions, options):
        serializer = AcmeSerializer()
        return AcmeRuntime(serializer.serialize_all(regions), serializer.constants)
