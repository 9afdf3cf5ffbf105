"""The compile half: regions become JSON graphs for `kernelyard_openvino.runtime`."""

import importlib.metadata
import importlib.util

from kernelyard.plugins.api import Backend, Call, JSONSerializer, KernelNode, Unavailable
from kernelyard_openvino.runtime import OpenVINORuntime


class OpenVINOSerializer(JSONSerializer):
    def visit_composite(self, composite, call):
        (binding,) = composite.bindings  # of each pattern, which is one operator
        operator = binding.value
        assert isinstance(operator, Call)
        return KernelNode(operator.op_name, [(str(i), x) for i, x in enumerate(operator.args)], operator.attrs)


class OpenVINOBackend(Backend):
    name = "openvino"
    merge_composites = True  # neighbouring operators become one region, which is one OpenVINO model

    def probe(self):
        is_here = importlib.util.find_spec("openvino")
        return None if is_here else Unavailable("OpenVINO is not installed", "pip install openvino")

    def facts(self):
        return {"library": f"openvino {importlib.metadata.version('openvino')}"}

    def patterns(self, target):
        from kernelyard_openvino.patterns import fusion_patterns  # imports OpenVINO

        return fusion_patterns()

    def codegen(self, regions, options):
        serializer = OpenVINOSerializer()
        graphs = serializer.serialize_all(regions)
        return OpenVINORuntime(graphs, serializer.constants, keeps_blobs=bool(options.get("blobs")))
