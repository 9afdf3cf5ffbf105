"""The compile half: regions become JSON graphs for `kernelyard_openblas.runtime`."""

from kernelyard.plugins.api import Backend, JSONSerializer, KernelNode, captured_operands
from kernelyard_openblas.patterns import fusion_patterns
from kernelyard_openblas.runtime import LIBRARY, OpenBLASRuntime


class OpenBLASSerializer(JSONSerializer):
    def visit_composite(self, composite, call):
        operands = captured_operands(composite)
        del operands["root"]
        return KernelNode("gemm", list(operands.items()), composite.attrs["arguments"])


class OpenBLASBackend(Backend):
    name = "openblas"
    merge_composites = True  # neighbouring products become one region, run by one call

    def probe(self):
        LIBRARY.locate()  # or the error that says what to install

    def facts(self):
        return {"library": LIBRARY.locate()}

    def patterns(self, target):
        return fusion_patterns()

    def codegen(self, regions, options):
        serializer = OpenBLASSerializer()
        return OpenBLASRuntime(serializer.serialize_all(regions), serializer.constants)
