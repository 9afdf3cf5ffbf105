"""Small programs that run the same with onnxruntime and with `kernelyard_onnx.ort`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import kernelyard_onnx.ort
from kernelyard.errors import DeviceError, InputNameError, InputShapeError, OptionError

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def model() -> bytes:
    proto = parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 17], producer_name: "tests", model_version: 3, domain: "org.example",
         doc_string: "of tests", metadata_props: ["stride": "32", "names": "cat, dog"]>
        g (float[n, 3] x, float[3] bias) => (float[n, 3] y, float[n, m] z) {
            y = Add(x, bias)
            z = ReduceMax <keepdims = 1, axes = [1]> (y)
        }
        """
    )
    return proto.SerializeToString()


BIAS = np.array([1, 10, 100], np.float32)


def run_all(ort: Any) -> Any:
    session = ort.InferenceSession(model(), providers=["CPUExecutionProvider"])
    return [value.tolist() for value in session.run(None, {"x": X, "bias": BIAS})]


def run_a_part(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    return [value.tolist() for value in session.run(["z"], {"x": X, "bias": BIAS}, ort.RunOptions())]


def run_with_options(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model(), options, providers=[("CPUExecutionProvider", {})])
    assert session.get_session_options().intra_op_num_threads == 1
    return session.run(["y"], {"x": X, "bias": BIAS})[0].tolist()


def describe(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    return [(each.name, each.type, each.shape) for each in (*session.get_inputs(), *session.get_outputs())]


def metadata(ort: Any) -> Any:
    found = ort.InferenceSession(model()).get_modelmeta()
    names = ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map")
    return [getattr(found, name) for name in names]


def providers(ort: Any) -> Any:
    session = ort.InferenceSession(model(), providers=["CPUExecutionProvider"])
    return session.get_providers(), "CPUExecutionProvider" in ort.get_available_providers()


def bound(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_input("bias", ort.OrtValue.ortvalue_from_numpy(BIAS))
    into = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("y", into)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    kept = [value.numpy().tolist() for value in binding.get_outputs()]
    return kept, into.numpy().tolist(), [value.tolist() for value in binding.copy_outputs_to_cpu()]


def bound_memory(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    y = np.empty((2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_input("bias", "cpu", 0, np.float32, BIAS.shape, BIAS.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    return y.tolist()


def values(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    feeds = {"x": ort.OrtValue.ortvalue_from_numpy(X), "bias": ort.OrtValue.ortvalue_from_numpy(BIAS)}
    (z,) = session.run_with_ort_values(["z"], feeds)
    return z.numpy().tolist(), z.shape(), z.data_type(), z.device_name(), z.is_tensor()


def free_dimensions(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session = ort.InferenceSession(model(), options)
    return session.get_inputs()[0].shape, session.run(["z"], {"x": X, "bias": BIAS})[0].tolist()


PROGRAMS = [run_all, run_a_part, run_with_options, describe, metadata, providers, bound, bound_memory, values]


@pytest.mark.parametrize("program", [*PROGRAMS, free_dimensions], ids=lambda program: program.__name__)
def test_a_program_runs_the_same(program: Any) -> None:
    assert program(kernelyard_onnx.ort) == program(onnxruntime)


def test_a_session_reads_a_path(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    session = kernelyard_onnx.ort.InferenceSession(str(path))
    assert session.run(["z"], {"x": X, "bias": BIAS})[0].tolist() == [[100.0], [103.0]]


def test_what_cannot_be_is_an_error() -> None:
    ort = kernelyard_onnx.ort
    with pytest.raises(DeviceError, match="providers"):
        ort.InferenceSession(model(), providers=["CUDAExecutionProvider"])
    session = ort.InferenceSession(model())
    with pytest.raises(InputNameError, match="no output 'q'"):
        session.run(["q"], {"x": X, "bias": BIAS})
    with pytest.raises(InputNameError, match="'bias' is missing"):
        session.run(None, {"x": X})
    with pytest.raises(OptionError):
        ort.SessionOptions().register_custom_ops_library("a.so")
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("bias", BIAS)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32))
    with pytest.raises(InputShapeError, match="'y'"):
        session.run_with_iobinding(binding)


def test_types_are_written_as_onnxruntime_does() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_):
        array = np.zeros(2, dtype)
        found = kernelyard_onnx.ort.OrtValue.ortvalue_from_numpy(array)
        wanted = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        assert (found.data_type(), found.element_type()) == (wanted.data_type(), wanted.element_type())
    assert kernelyard_onnx.ort.OrtValue.ortvalue_from_numpy(X).element_type() == onnx.TensorProto.FLOAT
