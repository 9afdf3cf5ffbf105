"""CublasBackend: the compile half. Regions become JSON graphs of matmuls for `kernelyard_cublas.runtime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import BackendUnavailableError, CodegenError, OptionError
from kernelyard.plugins.api import (
    Accept,
    Backend,
    Call,
    Constant,
    Expr,
    Function,
    FusionPattern,
    JSONSerializer,
    KernelNode,
    Region,
    Target,
    Unavailable,
    captured_operands,
    match,
)
from kernelyard.runtime.api import RuntimeModule
from kernelyard_cublas import libraries
from kernelyard_cublas.checks import Checks
from kernelyard_cublas.patterns import fusion_patterns
from kernelyard_cublas.problem import KERNEL, ROLES, TF32, Attributes
from kernelyard_cublas.reading import read_call
from kernelyard_cublas.runtime import CublasRuntime
from kernelyard_cublas.type_table import REFUSABLE
from kernelyard_cuda import driver_api as cuda_driver

OPTIONS = ("approximate_gelu", "tf32", "tune")


@dataclass(frozen=True)
class ProductNode(KernelNode):
    """A kernel whose right operand, a constant, is saved as the library reads it: in a narrower type, or transposed."""

    rhs_dtype: str = ""
    pack_rhs: bool = False

    def pack(self, constant: Constant) -> Constant:
        """Return the right operand as it is saved."""
        array = constant.data.astype(dtypes.to_numpy(self.rhs_dtype))
        return Constant(np.ascontiguousarray(np.swapaxes(array, -1, -2) if self.pack_rhs else array))


@dataclass
class CublasSerializer(JSONSerializer):
    """Writes a region as a graph of matmuls. tf32, tune: see `CublasBackend.configured`."""

    tf32: bool = False
    tune: bool = False
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def visit_composite(self, composite: Function, call: Call) -> ProductNode:
        """Return the matmul of a composite."""
        product, operands = product_of(composite)
        node = self._node(product, {role: operands[role] for role in ROLES if role in operands})
        _check_packed(node, dict(zip(composite.params, call.args, strict=True)))
        return node

    def visit_call(self, call: Call) -> ProductNode:
        """Return a matmul that a rule of single operators put into a region."""
        return self._node(*_match_single(call))

    def visit_constant(self, constant: Constant, role: str, kernel: KernelNode) -> Constant:
        """Return the right operand as the library reads it."""
        return kernel.pack(constant) if role == "rhs" and isinstance(kernel, ProductNode) else constant

    def _node(self, product: Mapping[str, Any], operands: Mapping[str, Expr]) -> ProductNode:
        attributes = Attributes(
            product["transpose_lhs"],
            product["transpose_rhs"],
            product["activation"],
            product["alpha"],
            TF32 if self.tf32 else "default",
            self.tune,
        )
        inputs = list(operands.items())
        return ProductNode(KERNEL, inputs, attributes.to_json(), product["rhs_dtype"], product["pack_rhs"])


def product_of(composite: Function) -> tuple[Mapping[str, Any], Mapping[str, Expr]]:
    """Return the attributes of a composite's matmul, and its operands by role.

    Our patterns have written them down; of a composite that a script's pattern made, ours are asked again.
    Raises: CodegenError for one that none of ours has.
    """
    if "product" in composite.attrs:
        return composite.attrs["product"], captured_operands(composite)
    calls = [binding.value for binding in composite.bindings]
    if len(calls) == 1 and isinstance(calls[0], Call) and calls[0].op_name == "matmul":
        return _match_single(calls[0])
    for pattern in fusion_patterns(Checks(Target("cuda"))):
        found = match(pattern.pattern, composite.result, composite)
        if found is None or len(found.bindings) != len(calls) or pattern.check is None or pattern.attrs_getter is None:
            continue
        if isinstance(pattern.check(found), Accept):
            return pattern.attrs_getter(found)["product"], found.captures
    raise CodegenError("cublas has no kernel for a composite", found=composite.attrs["Composite"])


def _match_single(call: Call) -> tuple[Mapping[str, Any], Mapping[str, Expr]]:
    lhs, rhs = call.args
    return {**read_call(call).attributes(), "alpha": 1.0}, {"lhs": lhs, "rhs": rhs}


def _check_packed(node: ProductNode, given: Mapping[Expr, Expr]) -> None:
    rhs = dict(node.inputs)["rhs"]
    rhs = given.get(rhs, rhs)
    if not isinstance(rhs, Constant) and (node.pack_rhs or rhs.tensor_type.dtype != node.rhs_dtype):
        raise CodegenError(
            "the right operand of a matmul, accepted as a constant, is now a variable",
            found=repr(rhs),
            hint="bind constants into composites: FuseOpsByPattern(..., bind_constants=True)",
        )


class CublasBackend(Backend):
    """cuBLASLt on NVIDIA's GPUs. Each matmul is a region of its own, unless a script merges them; compiling needs
    neither library nor GPU.
    """

    name = "cublas"

    def __init__(self, approximate_gelu: bool = False) -> None:
        self._approximate_gelu = approximate_gelu

    def configured(self, options: Mapping[str, Any]) -> CublasBackend:
        """`approximate_gelu`: compute nn.gelu by its approximation with tanh. `tf32`: round operands of matmuls of
        float32 to 10 bits of mantissa. `tune`: measure algorithms on the device. All False by default.

        Raises: OptionError.
        """
        for name in OPTIONS:
            if not isinstance(options.get(name, False), bool):
                raise OptionError(
                    f"cublas: option {name} must be True or False", found=repr(options[name]), expected="True or False"
                )
        return CublasBackend(options.get("approximate_gelu", False))

    def probe(self) -> Unavailable | None:
        """See `Backend.probe`. Where there is no GPU, a missing library is no obstacle to compiling for one."""
        try:
            problem = libraries.refusal()
            if problem is None and cuda_driver.gpu_is_here():
                libraries.load_library()
        except BackendUnavailableError as error:
            problem = error
        return None if problem is None else Unavailable(f"{problem.message}: {problem.found}", problem.hint)

    def facts(self) -> Mapping[str, str]:
        """Return the library that would be used on a GPU."""
        try:
            library = libraries.load_library()
        except BackendUnavailableError as error:
            return {"cuBLASLt": f"none, which programs on a GPU need: {error.hint}"}
        version = libraries.version_text(library.version)
        return {"cuBLASLt": library.path, "version": f"{version} (CUDA {version.partition('.')[0]})"}

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """Return the patterns; what float8 needs depends on the target's arch."""
        return fusion_patterns(Checks(target, self._approximate_gelu))

    def may_refuse(self, region: Region) -> bool:
        """Return True for matmuls whose algorithms depend on the sizes and the GPU."""
        return any(product_of(each)[0]["rhs_dtype"] in REFUSABLE for _, each in region.composites())

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Return the regions as one runtime module.

        Raises: OptionError, CodegenError.
        """
        self.configured(options)
        serializer = CublasSerializer(tf32=options.get("tf32", False), tune=options.get("tune", False))
        return CublasRuntime(serializer.serialize_all(regions), serializer.constants)
