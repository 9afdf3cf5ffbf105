"""CudnnBackend: the compile half. Regions become JSON graphs of kernels for `kernelyard_cudnn.runtime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
)
from kernelyard.runtime.api import RuntimeModule
from kernelyard_cuda import driver_api as cuda_driver
from kernelyard_cudnn import _native
from kernelyard_cudnn.ahead import with_plans
from kernelyard_cudnn.checks import FLOAT8, HALVES, Checks
from kernelyard_cudnn.devices import DeviceProperties, read_properties
from kernelyard_cudnn.layout import channels_first, channels_last, sizes_in
from kernelyard_cudnn.patterns import fusion_patterns
from kernelyard_cudnn.reading import (
    ATTENTION,
    CONVOLUTIONS,
    NORMS,
    TRANSPOSED,
    ReadAttention,
    ReadConvolution,
    Refusal,
    plain_convolution,
    read_attention,
    read_convolution,
)
from kernelyard_cudnn.runtime import CudnnRuntime
from kernelyard_cudnn.split_columns import SplitColumns

LAYOUTS = AUTO, FIRST, LAST = ("auto", "first", "last")
OPTIONS = ("layout", "plan_for", "tf32", "tune")


@dataclass(frozen=True)
class Options:
    """See `CudnnBackend.configured`."""

    layout: str = AUTO
    plan_for: tuple[DeviceProperties, ...] = ()
    tf32: bool = False
    tune: bool = False


class CudnnSerializer(JSONSerializer):
    """Writes a region as a graph of kernels."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        """Return the kernel of a composite."""
        given: dict[Expr, Expr] = dict(zip(composite.params, call.args, strict=True))
        names = {value.op_name for binding in composite.bindings if isinstance(value := binding.value, Call)}
        try:
            if names & set(ATTENTION):
                node = attention_node(read_attention(composite.bindings))
            elif names & set(NORMS):
                node = norm_node(composite)
            else:
                node = convolution_node(read_convolution(composite.bindings), given, self._options.tf32)
        except Refusal as refusal:
            raise CodegenError("a composite of cudnn is malformed", found=str(refusal)) from refusal
        return KernelNode(node.op, node.inputs, {**node.attrs, "tune": self._options.tune})

    def visit_call(self, call: Call) -> KernelNode:
        """Return a convolution that a rule of single operators put into a region."""
        if call.op_name not in (*CONVOLUTIONS, *TRANSPOSED):
            return super().visit_call(call)
        node = convolution_node(plain_convolution(call), {}, self._options.tf32)
        return KernelNode(node.op, node.inputs, {**node.attrs, "tune": self._options.tune})


def convolution_node(read: ReadConvolution, given: Mapping[Expr, Expr], tf32: bool) -> KernelNode:
    """Return a convolution as a kernel. given: what the composite's parameters are."""
    attrs, rank = read.call.attrs, read.rank
    w, w_order = given.get(read.w, read.w), read.w_order
    if isinstance(w, Constant) and read.x_order != channels_first(len(read.x_order)):
        w, w_order = _channels_last(w, w_order), channels_last(len(w_order))
    inputs: list[tuple[str, Expr]] = [("x", read.x), ("w", w)]
    stages: list[dict[str, Any]] = []
    for number, stage in enumerate(read.stages):
        written: dict[str, Any] = {"mode": stage.mode, "parameters": dict(stage.parameters)}
        if stage.operand is not None:
            inputs.append((f"operand{number}", stage.operand))
            written |= {"operand": f"operand{number}", "order": stage.order}
        stages.append(written)
    return KernelNode(
        "convolution_transpose" if read.is_transposed else "convolution",
        inputs,
        {
            "padding": attrs["padding"][:rank],
            "strides": attrs["strides"],
            "dilation": attrs["dilation"],
            "orders": {"x": read.x_order, "w": w_order, "y": read.y_order},
            "stages": stages,
            "tf32": tf32,
        },
    )


def _channels_last(w: Constant, order: Sequence[int]) -> Constant:
    """Permute weights to the layout of channels-last images."""
    by_axis = w.data.transpose(sizes_in(order, range(w.data.ndim)))
    return Constant(np.ascontiguousarray(by_axis.transpose(channels_last(w.data.ndim))))


def attention_node(read: ReadAttention) -> KernelNode:
    """Return an attention as a kernel."""
    size = read.call.args[0].tensor_type.shape[3]
    assert isinstance(size, int)
    scale = read.call.attrs["scale"]
    inputs: dict[Expr, str] = {}
    for name, view in read.views.items():
        inputs.setdefault(view.stored, name)
    extra = [(role, expr) for role, expr in (("bias", read.bias), ("lengths", read.lengths)) if expr is not None]
    return KernelNode(
        "attention",
        [*((role, expr) for expr, role in inputs.items()), *extra],
        {
            "views": {name: view.attributes(inputs[view.stored]) for name, view in read.views.items()},
            "order": read.order,
            "scale": size**-0.5 if scale is None else scale,
            "causal": read.call.attrs["causal"],
        },
    )


def norm_node(composite: Function) -> KernelNode:
    """Return a norm as a kernel."""
    (call,) = (binding.value for binding in composite.bindings)
    assert isinstance(call, Call)
    roles = ("x", "scale", "bias")[: len(call.args)]
    attrs = {"axes": len(call.attrs["axes"]), "epsilon": call.attrs["epsilon"]}
    return KernelNode(NORMS[call.op_name], list(zip(roles, call.args, strict=True)), attrs)


class CudnnBackend(Backend):
    """cuDNN on NVIDIA's GPUs. Each kernel is a region of its own, unless a script merges them; compiling needs neither
    library nor GPU.
    """

    name = "cudnn"

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()

    def configured(self, options: Mapping[str, Any]) -> CudnnBackend:
        """`tf32`: round operands of matmuls of float32 to 10 bits of mantissa; False by default. `tune`: measure
        plans on the device, instead of asking cuDNN's heuristics; False. `layout`: "first" or "last", where channels of
        images lie between convolutions; "auto" puts those of float16 and narrower last. `plan_for`: GPUs ("a100",
        "h100", "h200", or files of properties) for which plans are made now and saved; none by default.

        Raises: OptionError, BackendUnavailableError where plans cannot be made here.
        """
        for name in ("tf32", "tune"):
            if not isinstance(options.get(name, False), bool):
                raise OptionError(
                    f"cudnn: option {name} must be True or False", found=repr(options[name]), expected="True or False"
                )
        layout, devices = options.get("layout", AUTO), options.get("plan_for", ())
        if layout not in LAYOUTS:
            raise OptionError("cudnn: unknown layout", found=repr(layout), expected=", ".join(map(repr, LAYOUTS)))
        if not isinstance(devices, (list, tuple)) or not all(isinstance(each, str) for each in devices):
            raise OptionError("cudnn: option plan_for must be a list of GPUs", found=repr(devices), expected='["h200"]')
        if devices:
            _native.load_for_planning()
        planned = tuple(read_properties(each) for each in devices)
        return CudnnBackend(Options(layout, planned, options.get("tf32", False), options.get("tune", False)))

    def probe(self) -> Unavailable | None:
        """See `Backend.probe`. Where there is no GPU, missing libraries are no obstacle to compiling for one."""
        try:
            problem = _native.refusal()
            if problem is None and cuda_driver.gpu_is_here():
                _native.load()
        except BackendUnavailableError as error:
            problem = error
        return None if problem is None else Unavailable(f"{problem.message}: {problem.found}", problem.hint)

    def facts(self) -> Mapping[str, str]:
        """Return the libraries that would be used on a GPU."""
        return _native.facts()

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """Return the patterns; what float8 needs depends on the target's arch."""
        return fusion_patterns(Checks(target, self._options.tf32))

    def prepare(self, module: IRModule) -> IRModule:
        """Let queries, keys and values be columns of their product, and images of narrow floats, or of all, lie
        channels-last between convolutions.

        Convolutions of one image have permutations of their own: a pattern takes one that nobody else reads.
        """
        ops = _to_convert(module, self._options.layout)
        convert = (ConvertLayout(ops),) if ops else ()
        return Sequential((SplitColumns(), *convert, Canonicalize(), DeadCodeElimination()), "prepare")(module)

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Return the regions as one runtime module.

        Raises: OptionError, BackendUnavailableError, CodegenError.
        """
        chosen = self.configured(options)._options
        serializer = CudnnSerializer(chosen)
        graphs = serializer.serialize_all(regions)
        graphs = with_plans(graphs, serializer.constants, chosen.plan_for) if chosen.plan_for else graphs
        return CudnnRuntime(graphs, serializer.constants)


def _to_convert(module: IRModule, layout: str) -> tuple[str, ...]:
    """Return the convolutions that are made channels-last; with "auto" those that are of narrow floats wherever they
    are.
    """
    if layout == FIRST:
        return ()
    found: dict[str, set[str]] = {}
    for function in module.graph_functions().values():
        for binding in function.bindings:
            if isinstance(binding.value, Call) and binding.value.op_name in (*CONVOLUTIONS, *TRANSPOSED):
                found.setdefault(binding.value.op_name, set()).add(binding.value.tensor_type.dtype)
    narrow = {*HALVES, *FLOAT8}
    return tuple(op for op, dtypes in found.items() if layout == LAST or dtypes <= narrow)
