"""The names of onnxruntime, so that a program written for it runs after `import kernelyard_onnx.ort as ort`.

There is one provider, the processor; `KERNELYARD_ONNX_BACKENDS` chooses backends, as in `kernelyard_onnx.backend`.
Options that tune onnxruntime's own machinery are taken and change nothing. Errors are Kernelyard's.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from kernelyard.errors import DeviceError, InputNameError, OptionError
from kernelyard_onnx.backend import chosen_backends
from kernelyard_onnx.model_file import read_model
from kernelyard_onnx.ort_values import IOBinding, OrtDevice, OrtValue, type_text
from kernelyard_onnx.session import Session

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]
PROVIDER = "CPUExecutionProvider"


class GraphOptimizationLevel(enum.IntEnum):
    """Taken and not used: a model is always optimized in the same way."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken and not used: operators run one after the other, each with all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Taken and not used."""

    DEFAULT = 0
    PRIORITY_BASED = 1


@dataclass
class SessionOptions:
    """Of these, `intra_op_num_threads` and overrides of free dimensions have an effect.

    Example:
        >>> options = SessionOptions()
        >>> options.intra_op_num_threads = 2
        >>> options.add_session_config_entry("session.disable_prepacking", "1")
        >>> options.get_session_config_entry("session.disable_prepacking")
        '1'
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    _entries: dict[str, str] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry for `get_session_config_entry`."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added.

        Raises: OptionError.
        """
        if key not in self._entries:
            raise OptionError(f"there is no config entry {key!r}", found=key, expected=", ".join(self._entries))
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a size that the model leaves open, by its name."""
        self._sizes[name] = size

    @property
    def free_dimension_overrides(self) -> Mapping[str, int]:
        """The sizes that are fixed, by name."""
        return self._sizes

    def register_custom_ops_library(self, path: str) -> None:
        """Libraries of onnxruntime's own operators cannot be loaded.

        Raises: OptionError.
        """
        raise OptionError("libraries of operators for onnxruntime cannot be loaded here", found=path)


@dataclass
class RunOptions:
    """Options of one call: taken and not used."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added, or "" where there is none."""
        return self._entries.get(key, "")


@dataclass(frozen=True)
class NodeArg:
    """An input or output: sizes that the model leaves open are names, or None."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A model, compiled.

    path_or_bytes: a path, or the bytes of a file. Raises: what `kernelyard.compile` raises; DeviceError when none of
    the providers is the processor.

    Example:
        >>> import numpy as np
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
        >>> session = InferenceSession(parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])
        >>> session.get_inputs()[0]
        NodeArg(name='x', type='tensor(float)', shape=['n'])
        >>> session.run(["y"], {"x": np.array([-2.0], np.float32)})[0].tolist()
        [2.0]
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self.set_providers(providers, provider_options)
        self._model, files = read_model(path_or_bytes)
        _fix_sizes(self._model.graph, self._options.free_dimension_overrides)
        self._session = Session(self._model, chosen_backends(), files, self._options.intra_op_num_threads or None)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs that are named, or all.

        Raises: InputNameError, and what `kernelyard_onnx.session.Session.run` raises.
        """
        known = [output.name for output in self._model.graph.output]
        for name in output_names or ():
            if name not in known:
                raise InputNameError(f"the model has no output {name!r}", found=name, expected=", ".join(known))
        feeds = {name: _value(value) for name, value in input_feed.items()}
        found = dict(zip(known, self._session.run(feeds), strict=True))
        return [found[name] for name in output_names or known]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """As `run`, with values that know their device.

        Raises: as `run`.
        """
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        """An object that holds inputs and outputs from call to call."""
        return IOBinding([output.name for output in self._model.graph.output])

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with the inputs that are bound, into the outputs that are bound.

        Raises: as `run`; InputTypeError and InputShapeError for memory that a result does not fit.
        """
        names = iobinding.output_names
        iobinding.keep(self.run(names, iobinding.inputs))

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, in order."""
        return [_node_arg(info) for info in self._session.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order: as the model declares them, with sizes that follow from it."""
        executable = self._session.executable
        found = {each.name: each.shape for each in executable.outputs} if executable is not None else {}
        return [_node_arg(info, found.get(info.name, ())) for info in self._model.graph.output]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are weights."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        model = self._model
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        texts = (model.producer_name, model.graph.name, model.domain, model.doc_string, model.graph.doc_string)
        return ModelMetadata(*texts, model.model_version, metadata)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The one provider."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """No options."""
        return {PROVIDER: {}}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Check that the processor is among the providers.

        Raises: DeviceError.
        """
        names = [entry if isinstance(entry, str) else entry[0] for entry in providers or [PROVIDER]]
        if PROVIDER not in names:
            raise DeviceError("none of the providers is there", found=", ".join(names), expected=PROVIDER)

    def disable_fallback(self) -> None:
        """Nothing falls back."""

    def enable_fallback(self) -> None:
        """Nothing falls back."""


def get_available_providers() -> list[str]:
    """The one provider."""
    return [PROVIDER]


def get_all_providers() -> list[str]:
    """The one provider."""
    return [PROVIDER]


def get_device() -> str:
    """The device that sessions run on."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Taken and not used: Kernelyard logs through `logging`."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Taken and not used: Kernelyard logs through `logging`."""


def _value(value: Any) -> Any:
    return value.numpy() if isinstance(value, OrtValue) else value


def _fix_sizes(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    for info in (*graph.input, *graph.output) if sizes else ():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def _node_arg(info: onnx.ValueInfoProto, found: Sequence[int | str] = ()) -> NodeArg:
    declared = info.type.tensor_type.shape.dim
    if not info.type.tensor_type.HasField("shape"):
        return NodeArg(info.name, type_text(info.type), list(found))
    shape: list[int | str | None] = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in declared
    ]
    for axis, size in enumerate(found):
        shape[axis] = size if isinstance(size, int) else shape[axis]
    return NodeArg(info.name, type_text(info.type), shape)
