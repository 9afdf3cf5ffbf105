"""DnnlBackend: the compile half. Regions become JSON graphs for `kernelyard_dnnl.runtime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelyard.errors import BackendUnavailableError, CodegenError
from kernelyard.ir import Call, Function
from kernelyard.patterns import FusionPattern
from kernelyard.placement.json_serializer import JSONSerializer, KernelNode
from kernelyard.plugins.backend import Backend, Unavailable
from kernelyard.runtime.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.transform.run_codegen import Region
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.composite import read_composite
from kernelyard_dnnl.nodes import node_of
from kernelyard_dnnl.patterns import fusion_patterns
from kernelyard_dnnl.runtime import DnnlRuntime


class DnnlSerializer(JSONSerializer):
    """Writes regions as graphs of oneDNN primitives."""

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        """The primitive of a composite."""
        return node_of(read_composite(composite.bindings))


class DnnlBackend(Backend):
    """oneDNN on the CPU. Neighbouring primitives share a region, in which layouts are kept between them."""

    name = "dnnl"
    merge_composites = True

    def probe(self) -> Unavailable | None:
        """Whether libdnnl can be loaded."""
        try:
            load_library()
        except BackendUnavailableError as error:
            return Unavailable(error.message, error.hint)
        return None

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """The patterns; they do not depend on the target's details."""
        return fusion_patterns()

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """The regions as one runtime module.

        Raises: CodegenError for an unknown option.
        """
        if options:
            raise CodegenError("dnnl has no such option", found=", ".join(options), expected="no options")
        serializer = DnnlSerializer()
        graphs = serializer.serialize_all(regions)
        return DnnlRuntime(graphs, serializer.constants)
