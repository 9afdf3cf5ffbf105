"""CutlassBackend: the compile half. Composites become graphs for `kernelyard_cutlass.runtime`, and compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import BackendUnavailableError, CodegenError, OptionError
from kernelyard.plugins.api import (
    Backend,
    Call,
    Canonicalize,
    Constant,
    ConvertLayout,
    DeadCodeElimination,
    Expr,
    Function,
    FusionPattern,
    IRModule,
    JSONSerializer,
    KernelNode,
    Region,
    Sequential,
    Target,
    Unavailable,
    captured_operands,
)
from kernelyard.runtime.api import RuntimeModule
from kernelyard_cuda.source_codegen import compile_for_archs
from kernelyard_cutlass import compiler
from kernelyard_cutlass.candidates import kernels_of
from kernelyard_cutlass.code import Code
from kernelyard_cutlass.description import DEQUANTIZED, NUMBER, Settings
from kernelyard_cutlass.kernels import Kernel
from kernelyard_cutlass.patterns import fusion_patterns
from kernelyard_cutlass.runtime import CutlassModule
from kernelyard_cutlass.toolchain import find_toolchain
from kernelyard_cutlass.weights import weight_of

F32 = ("3xtf32", "tf32")
# Convolutions of one image have permutations of their own: a pattern takes one that nobody else reads.
_PREPARE = Sequential([Canonicalize(), ConvertLayout(["nn.conv2d"]), DeadCodeElimination()], "prepare")


class CutlassSerializer(JSONSerializer):
    """Writes composites as graphs, and gathers the kernels that they need: each once, whoever needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[Kernel, tuple[str, ...]] = {}

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        """Return the kernel of a composite, with its operands by role.

        Raises: CodegenError for a script's own pattern.
        """
        if "roles" not in composite.attrs:
            raise CodegenError(
                "CUTLASS chooses a template by the checks of its own patterns, and this is none of them",
                found=composite.attrs["Composite"],
                hint="leave these operators to its own patterns, or write a backend with CudaSourceCodegen",
            )
        operands = captured_operands(composite)
        inputs = [(role, operands[capture]) for capture, role in composite.attrs["roles"].items()]
        inputs = [pair for role, operand in inputs for pair in _store_operand(role, operand, composite, call)]
        choices = composite.attrs["choices"]
        numbers = {
            role: [self._number(kernel, choices["archs"]) for kernel in kernels]
            for role, kernels in kernels_of(choices).items()
        }
        return KernelNode(composite.attrs["kernel"], inputs, {**composite.attrs["arguments"], "kernels": numbers})

    def _number(self, kernel: Kernel, archs: tuple[str, ...]) -> int:
        self.kernels.setdefault(kernel, archs)
        return list(self.kernels).index(kernel)


def _store_operand(role: str, operand: Expr, composite: Function, call: Call) -> list[tuple[str, Expr]]:
    """Return an operand as the kernel reads it: constants are brought into its order here."""
    if role.endswith(NUMBER):
        columns = call.tensor_type.shape[-1]
        assert isinstance(columns, int), "the check asks for it"
        return [(role.removesuffix(NUMBER), _constant(operand, lambda data: np.full(columns, data.reshape(()))))]
    if role == "weight_first":
        return [("weight", _constant(operand, lambda data: data.transpose(0, 2, 3, 1)))]
    if role == "rhs_rows":
        return [("rhs", _constant(operand, lambda data: data.swapaxes(-1, -2)))]
    if role == "encoded":
        return []
    if role == DEQUANTIZED:
        bound = {binding.var: binding.value for binding in composite.bindings}
        weight = weight_of(operand, captured_operands(composite)["encoded"], lambda expr: bound.get(expr, expr))  # pyright: ignore[reportArgumentType, reportCallIssue]
        if isinstance(weight, str):
            raise CodegenError("a weight cannot be dequantized", found=weight)
        scales = weight.scales.astype(dtypes.to_numpy(operand.tensor_type.dtype))
        return [("weights", Constant(weight.pack())), ("scales", Constant(scales))]
    return [(role, operand)]


def _constant(operand: Expr, arranged: Any) -> Constant:
    assert isinstance(operand, Constant)
    return Constant(np.ascontiguousarray(arranged(operand.data)))


class CutlassBackend(Backend):
    """CUTLASS on GPUs from compute capability 8.0 on. What is taken depends on the target alone."""

    name = "cutlass"

    def __init__(self, f32: str = F32[0], tune: bool = False) -> None:
        self._f32 = f32
        self._tune = tune

    def configured(self, options: Mapping[str, Any]) -> CutlassBackend:
        """`f32`: how float32 is multiplied, "3xtf32" (about as exact) or "tf32" (ten bits of fraction, faster).
        `tune`: several tiles are compiled for each matmul, and the fastest is found by measuring on the device.

        Raises: OptionError.
        """
        f32, tune = options.get("f32", F32[0]), options.get("tune", False)
        if f32 not in F32:
            raise OptionError("cutlass: unknown value of the option f32", found=repr(f32), expected=" or ".join(F32))
        if not isinstance(tune, bool):
            raise OptionError("cutlass: the option tune must be a boolean", found=repr(tune), expected="True or False")
        return CutlassBackend(f32, tune)

    def probe(self) -> Unavailable | None:
        """Look for CUTLASS's headers, CUDA's headers, and NVRTC; return the reason if one is missing."""
        try:
            find_toolchain()
        except BackendUnavailableError as error:
            found = f": {error.found}" if error.found else ""
            return Unavailable(f"{error.message}{found}", error.hint)
        return None

    def facts(self) -> Mapping[str, str]:
        """See `Backend.facts`."""
        try:
            found = find_toolchain()
        except BackendUnavailableError as error:
            return {"CUTLASS": f"unavailable: {error.message}; {error.hint}"}
        return {
            "CUTLASS": f"{found.cutlass_version}, {found.cutlass}",
            "NVRTC": f"{found.nvrtc_version}, {found.nvrtc}",
            "CUDA headers": ", ".join(map(str, found.cuda_headers)),
        }

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """See `Backend.patterns`."""
        return fusion_patterns(Settings(target.archs, self._f32, self._tune))

    def prepare(self, module: IRModule) -> IRModule:
        """Convert convolutions so that they exchange images with channels last."""
        return _PREPARE(module)

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Return the regions as one module; equal kernels are compiled once. Without an arch nothing is compiled.

        Raises: CodegenError with what the compiler said.
        """
        serializer = CutlassSerializer()
        graphs = serializer.serialize_all(regions)
        codes = [_code(kernel, archs) for kernel, archs in serializer.kernels.items()]
        return CutlassModule(graphs, serializer.constants, codes)


def _code(kernel: Kernel, archs: Sequence[str]) -> Code:
    """Return the kernel compiled for each architecture."""
    what = f"CUTLASS's template {kernel.template!r}"
    codes = compile_for_archs(archs, lambda arch: compiler.compile_kernel(kernel, arch), what)
    *_, last = Code(kernel), *codes.values()
    return replace(last, cubins={arch: code.cubins[arch] for arch, code in codes.items()})
