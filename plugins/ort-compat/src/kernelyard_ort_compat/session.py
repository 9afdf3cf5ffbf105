"""InferenceSession: compile a model, describe it, and run it with arrays or with values bound to memory."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from kernelyard.errors import ExecutionError, InputNameError, KernelyardError
from kernelyard_onnx.backend import choose_backends
from kernelyard_onnx.model_file import read_model
from kernelyard_onnx.session import Session
from kernelyard_ort_compat.errors import MissingInputError
from kernelyard_ort_compat.options import RunOptions, SessionOptions
from kernelyard_ort_compat.values import IOBinding, OrtValue, type_text

PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model: sizes that the model leaves open are names, or None."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """The producer, names, version and metadata that a model file has."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A compiled ONNX model with the methods of onnxruntime's session.

    path_or_bytes: a path, or the bytes of a file. Warns when none of the providers is there: the processor is.
    Raises: what `kernelyard.compile` raises.

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
        self._options.change(self._model.graph)
        self._started = time.perf_counter_ns()
        self._last_feeds: dict[str, Any] = {}
        self._session = Session(self._model, choose_backends(), files, self._options.intra_op_num_threads or None)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Compute the outputs that are named, or all.

        Raises: InputNameError, ExecutionError where `run_options` says to stop, and what
          `kernelyard_onnx.session.Session.run` raises.
        """
        if run_options is not None and run_options.terminate:
            raise ExecutionError("the options of this run say that it is to stop", found="terminate")
        plain = None if self._options.enable_profiling else self._session.try_plain(input_feed)
        if plain is not None and not output_names:
            return plain
        known = [output.name for output in self._model.graph.output]
        wanted = output_names or known
        for name in wanted:
            if name not in known:
                raise InputNameError(f"the model has no output {name!r}", found=name, expected=", ".join(known))
        if plain is not None:
            return [plain[known.index(name)] for name in wanted]
        found = dict(zip(known, self._session.run(self._feeds(input_feed)), strict=True))
        return [found[name] for name in wanted]

    def _feeds(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs as a session takes them. Raises: MissingInputError."""
        types = {each.name: each.type for each in self._session.inputs}
        feeds = {name: _value(value, types.get(name)) for name, value in given.items()}
        missing = [name for name, t in types.items() if name not in feeds and t.WhichOneof("value") != "optional_type"]
        if missing:
            raise MissingInputError(f"the input {missing[0]!r} is missing", found=", ".join(feeds), expected=missing)
        if self._options.enable_profiling:
            self._last_feeds = feeds
        return feeds

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run with inputs and outputs that are OrtValues.

        Raises: as `run`.
        """
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on a thread, then call `callback(outputs, user_data, error)`, the error as text, or ""."""

        def run() -> None:
            try:
                results, problem = self.run(output_names, input_feed, run_options), ""
            except KernelyardError as error:
                results, problem = [], str(error)
            callback(results, user_data, problem)

        threading.Thread(target=run, daemon=True).start()

    def end_profiling(self) -> str:
        """Write a file with the times of the last call's steps, and return its path; "" without `enable_profiling`."""
        executable = self._session.executable
        if executable is None or not self._last_feeds:
            return ""
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        executable.profile(self._last_feeds).save_trace(path)
        return path

    def get_profiling_start_time_ns(self) -> int:
        """Return when the session was created, by the clock of its profile."""
        return self._started

    def io_binding(self) -> IOBinding:
        """Return an object that holds inputs and outputs from call to call."""
        inputs = [each.name for each in self._session.inputs]
        return IOBinding(inputs, [output.name for output in self._model.graph.output])

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with the bound inputs, into the bound outputs.

        Raises: as `run`; InputTypeError and InputShapeError for memory that a result does not fit.
        """
        iobinding.keep(self.run(iobinding.output_names, iobinding.inputs, run_options))

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, in order."""
        return [_node_arg(info) for info in self._session.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in order: as the model declares them, with sizes that follow from it."""
        executable = self._session.executable
        found = {each.name: each.shape for each in executable.outputs} if executable is not None else {}
        return [_node_arg(info, found.get(info.name, ())) for info in self._model.graph.output]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: initializers are constants."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model."""
        model = self._model
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        texts = (model.producer_name, model.graph.name, model.domain, model.doc_string, model.graph.doc_string)
        return ModelMetadata(*texts, model.model_version, metadata)

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was created with."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the one provider."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the one provider, which has no options."""
        return {PROVIDER: {}}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep the processor; warn where only others are asked for."""
        names = [entry if isinstance(entry, str) else entry[0] for entry in providers or [PROVIDER]]
        if PROVIDER not in names:
            warnings.warn(f"{', '.join(names)} is not there: {PROVIDER} runs the model", UserWarning, stacklevel=3)

    def disable_fallback(self) -> None:
        """Change nothing: sessions fall back to no other provider."""

    def enable_fallback(self) -> None:
        """Change nothing: sessions fall back to no other provider."""


def _value(value: Any, type_: onnx.TypeProto | None) -> Any:
    """Return a feed as an array: lists of numbers become tensors of the input's own type."""
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, (list, int, float)) and type_ is not None and type_.WhichOneof("value") == "tensor_type":
        return np.array(value, helper.tensor_dtype_to_np_dtype(type_.tensor_type.elem_type))
    return value


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
