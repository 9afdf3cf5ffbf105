"""Options of sessions and runs; most tune machinery of onnxruntime, and are accepted without effect."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
from onnx import numpy_helper

from kernelyard.errors import OptionError
from kernelyard_ort_compat.values import OrtValue


class GraphOptimizationLevel(enum.IntEnum):
    """Accepted without effect: a model is always optimized in the same way."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Accepted without effect: operators run one after the other, each with all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Accepted without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1


@dataclass
class SessionOptions:
    """Options of a session: threads, free dimensions, initializers and profiling have an effect.

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
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _denoted: dict[str, int] = field(default_factory=dict)
    _weights: dict[str, OrtValue] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry for `get_session_config_entry`."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry that was added.

        Raises: OptionError.
        """
        if key not in self._entries:
            raise OptionError(f"there is no config entry {key!r}", found=key, expected=", ".join(self._entries))
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a symbolic size of the model, by its name."""
        self._sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix symbolic sizes of the model, by their denotation."""
        self._denoted[denotation] = size

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Replace an initializer of the model."""
        self._weights[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace several initializers of the model."""
        self._weights.update(zip(names, values, strict=True))

    def change(self, graph: onnx.GraphProto) -> None:
        """Fix sizes of a model and replace initializers, in place."""
        for info in (*graph.input, *graph.output) if self._sizes or self._denoted else ():
            for dim in info.type.tensor_type.shape.dim:
                size = self._sizes.get(dim.dim_param, self._denoted.get(dim.denotation))
                if size is not None and not dim.HasField("dim_value"):
                    dim.dim_value = size
        for tensor in graph.initializer if self._weights else ():
            if tensor.name in self._weights:
                tensor.CopyFrom(numpy_helper.from_array(self._weights[tensor.name].numpy(), tensor.name))

    def register_custom_ops_library(self, path: str) -> None:
        """Refuse a library of operators for onnxruntime.

        Raises: OptionError.
        """
        raise OptionError("libraries of operators for onnxruntime cannot be loaded here", found=path)


@dataclass
class RunOptions:
    """Options of a run: `terminate` has an effect."""

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
        """Return an entry that was added, or "" where there is none."""
        return self._entries.get(key, "")
