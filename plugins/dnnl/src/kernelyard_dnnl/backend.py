"""DnnlBackend: the compile half. Regions become JSON graphs for `kernelyard_dnnl.runtime`, or C text."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelyard.errors import OptionError
from kernelyard.plugins.api import (
    BORDER_LAYOUT,
    DYNAMIC,
    STATIC,
    Accept,
    Answer,
    Backend,
    Binding,
    BorderLayouts,
    Call,
    DeadCodeElimination,
    Decline,
    Function,
    FusionPattern,
    IRModule,
    JSONSerializer,
    KernelNode,
    Match,
    QuantizationScheme,
    Region,
    Sequential,
    StoreUnsigned,
    TabulateQuantized,
    Target,
    Var,
    operands,
    symbols_of,
)
from kernelyard.runtime.api import RuntimeModule
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.checks import prune
from kernelyard_dnnl.composite import COMPOSITE, kind_of, read_composite
from kernelyard_dnnl.costs import cost_of
from kernelyard_dnnl.nodes import node_of
from kernelyard_dnnl.patterns import fusion_patterns
from kernelyard_dnnl.runtime import DnnlRuntime
from kernelyard_dnnl.split import SliceSplits
from kernelyard_dnnl.weight_zero_points import SeparateZeroPoints

JSON, C = FORMS = ("json", "c")
LOOKUP = "dnnl.lookup"  # the pattern of what no primitive of oneDNN's computes


class DnnlSerializer(JSONSerializer):
    """Writes regions as graphs of oneDNN primitives; without `winograd`, every convolution is to be direct."""

    def __init__(self, winograd: bool = True) -> None:
        super().__init__()
        self._winograd = winograd

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        """Return the primitive of a composite."""
        node = self._node(composite.bindings)
        if composite.attrs[COMPOSITE] == f"{DnnlBackend.name}.{BORDER_LAYOUT}":
            return replace(node, attrs={**node.attrs, "is_border": True})
        return node

    def visit_call(self, call: Call) -> KernelNode:
        """Return the primitive of an operator by itself. Raises: CodegenError for one that has none."""
        if kind_of(call) is None:
            return super().visit_call(call)
        return self._node([Binding(Var(call.op_name, call.type), call)])

    def _node(self, bindings: Sequence[Binding]) -> KernelNode:
        node = node_of(read_composite(bindings))
        if node.op == "conv" and not self._winograd:
            return replace(node, attrs={**node.attrs, "winograd": False})
        return node


class DnnlBackend(Backend):
    """oneDNN on the CPU. Neighbouring primitives share a region, in which layouts are kept between them."""

    name = "dnnl"
    merge_composites = True
    states_costs = True

    def __init__(self, form: str = JSON, prune: bool = False, winograd: bool = True) -> None:
        self._form = form
        self._prune = prune
        self._winograd = winograd

    def configured(self, options: Mapping[str, Any]) -> DnnlBackend:
        """`codegen`: "json" (graphs for the runtime) or "c" (C text; sizes must be known). `prune`: leave regions in
        which nothing is computed but elementwise to generated kernels. `winograd`: convolutions may take fewer
        multiplications, with rounding errors of another size.

        Raises: OptionError.
        """
        form = options.get("codegen", JSON)
        prune, winograd = options.get("prune", False), options.get("winograd", True)
        if form not in FORMS:
            raise OptionError(
                "dnnl: unknown value of the option codegen", found=repr(form), expected=" or ".join(map(repr, FORMS))
            )
        if not isinstance(prune, bool):
            raise OptionError("dnnl: the option prune must be a boolean", found=repr(prune), expected="True or False")
        if not isinstance(winograd, bool):
            raise OptionError(
                "dnnl: the option winograd must be a boolean", found=repr(winograd), expected="True or False"
            )
        return DnnlBackend(form, prune, winograd)

    def probe(self) -> None:
        """Load libdnnl. Raises: BackendUnavailableError."""
        load_library()

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """Return the patterns, none of which is taken for another machine's architecture."""
        patterns = fusion_patterns()
        if target.arch not in (None, platform.machine()):
            return [replace(pattern, check=_for_another_machine(target)) for pattern in patterns]
        return list(map(in_c, patterns)) if self._form == C else patterns

    def prepare(self, module: IRModule) -> IRModule:
        """Make functions of one quantized tensor tables, which the runtime looks up by code of its own, splits of such
        tensors slices, zero points of filters convolutions, and int8 data uint8."""
        steps = (
            SliceSplits(),
            StoreUnsigned(),
            SeparateZeroPoints(),
            *(() if self._form == C else (TabulateQuantized(),)),
            DeadCodeElimination(),
        )
        return Sequential(steps, "integers")(module)

    def check_region(self, region: Region) -> Answer:
        """Return all regions, or with `prune` those that have a primitive of some weight."""
        answer = prune(region) if self._prune else Accept()
        return Accept(cost_of(region)) if isinstance(answer, Accept) else answer

    def border_layouts(self, region: Region) -> BorderLayouts:
        """Return channels last where primitives choose it."""
        from kernelyard_dnnl.border_layouts import border_layouts  # inside: compiles of one region need it not

        return border_layouts(region)

    def quantization_schemes(self, target: Target) -> Sequence[QuantizationScheme]:
        """Return uint8 data and int8 weights, which oneDNN multiplies on every CPU."""
        return (STATIC, DYNAMIC)

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Return the regions as one runtime module.

        Raises: OptionError, CodegenError for a region whose sizes are not known where C is asked for.
        """
        configured = self.configured(options)
        serializer = DnnlSerializer(configured._winograd)
        if configured._form == C:
            from kernelyard_dnnl.c_source.codegen import DnnlC

            return DnnlC().generate(regions, serializer)
        graphs = serializer.serialize_all(regions)
        return DnnlRuntime(graphs, serializer.constants)


def _for_another_machine(target: Target) -> Callable[[Match], Answer]:
    """Return a check that declines: primitives are chosen by the library that runs them, which is not here."""
    message = f"the target is {target.arch}; regions are compiled by this machine's oneDNN ({platform.machine()})"
    return lambda match: Decline("arch", message)


def in_c(pattern: FusionPattern) -> FusionPattern:
    """Return the pattern for what C text has: primitives of oneDNN at known sizes."""
    if pattern.name == LOOKUP:
        return replace(pattern, check=lambda match: Decline("codegen", "C is generated for primitives of oneDNN only"))
    return with_known_sizes(pattern)


def with_known_sizes(pattern: FusionPattern) -> FusionPattern:
    """Return the pattern for matches without symbolic sizes only: C is written for one set of shapes."""

    def check(match: Match) -> Accept | Decline:
        for binding in match.bindings:
            for expr in (binding.var, *operands(binding.value)):
                if symbols_of([expr.type]):
                    return Decline("dynamic-shape", f"{expr.type!r}: C is generated for known sizes only", at=expr)
        return Accept() if pattern.check is None else pattern.check(match)

    return replace(pattern, check=check)
