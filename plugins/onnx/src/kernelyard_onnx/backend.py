"""The interface by which ONNX's own test runner drives an engine (`onnx.backend.base`).

`KERNELYARD_ONNX_BACKENDS=dnnl,native-cpu` names the backends that may be used; "auto", and nothing set, means all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from kernelyard.errors import DeviceError, InputTypeError
from kernelyard.runtime.api import EnvironmentVariable
from kernelyard_onnx.model_file import read_model
from kernelyard_onnx.session import Session

VARIABLE = EnvironmentVariable(
    "KERNELYARD_ONNX_BACKENDS", "`a,b`: the backends that ONNX's test runner and sessions may use", "auto"
)


def choose_backends() -> list[str] | str:
    """Return the backends that the environment names, or "auto"."""
    text = VARIABLE.get("auto")
    return "auto" if text == "auto" else [name.strip() for name in text.split(",") if name.strip()]


class KernelyardRep(BackendRep):
    """A prepared model.

    Example:
        >>> import numpy as np
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
        >>> prepare(parser.parse_model(text)).run([np.ones(2, np.float32)])[0].tolist()
        [-1.0, -1.0]
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Return the outputs, in order; inputs by name, or in the order of the model's.

        Raises: what `Session.run` raises; InputTypeError for more inputs than the model has.
        """
        if isinstance(inputs, Mapping):
            return tuple(self.session.run(inputs))
        values = inputs if isinstance(inputs, Sequence) else [inputs]
        names = [info.name for info in self.session.inputs]
        if len(values) > len(names):
            raise InputTypeError("more inputs than the model has", found=len(values), expected=len(names))
        return tuple(self.session.run(dict(zip(names, values, strict=False))))


class KernelyardBackend(Backend):
    """ONNX's interface to an engine."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> KernelyardRep:
        """Compile a model.

        Raises: onnx's ValidationError for a model that breaks the standard, what `kernelyard.compile` raises.
        """
        if not cls.supports_device(device):
            raise DeviceError("ONNX models run on the processor alone", found=device, expected="CPU")
        onnx.checker.check_model(model)
        proto, files = read_model(model)
        return KernelyardRep(Session(proto, choose_backends(), files))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays; `opset_version` chooses its version.

        Raises: as `prepare` and `KernelyardRep.run`.
        """
        super().run_node(node, inputs, device, outputs_info, **options)
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(filter(None, node.input), inputs, strict=True)
        ]
        graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=name) for name in node.output])
        version = options.get("opset_version", onnx.defs.onnx_opset_version())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return KernelyardRep(Session(model, choose_backends())).run(list(inputs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True for the processor."""
        return Device(device).type == DeviceType.CPU


is_compatible = KernelyardBackend.is_compatible
prepare = KernelyardBackend.prepare
run_model = KernelyardBackend.run_model
run_node = KernelyardBackend.run_node
supports_device = KernelyardBackend.supports_device
