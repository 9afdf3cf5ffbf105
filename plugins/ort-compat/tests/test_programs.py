"""Small programs that run the same with onnxruntime and with `kernelyard_ort_compat`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import kernelyard_ort_compat
from kernelyard.errors import DeviceError, InputNameError, InputShapeError, OptionError
from kernelyard_ort_compat.errors import ERRORS
from kernelyard_ort_compat.install import NAMES

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


def plain_lists(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    return [value.tolist() for value in session.run([], {"x": X.tolist(), "bias": BIAS.tolist()})]


def results_are_the_callers(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    first = session.run(["y"], {"x": X, "bias": BIAS})[0]
    first += 1
    second = session.run(["y"], {"x": 0 * X, "bias": BIAS})[0]
    return first.tolist(), second.tolist()


def not_a_number(ort: Any) -> Any:
    session = ort.InferenceSession(model())
    return repr(session.run(None, {"x": np.full((2, 3), np.nan, np.float32), "bias": BIAS}))


def text(ort: Any) -> Any:
    source = '<ir_version: 9, opset_import: ["" : 21]> g (string[n] x) => (string[n] y) { y = Identity(x) }'
    session = ort.InferenceSession(parser.parse_model(source).SerializeToString())
    found = [session.run(None, {"x": array})[0] for array in (np.array(["a", "bc"]), np.array(["ä", ""], object))]
    return [(value.tolist(), value.dtype) for value in found], session.get_inputs()[0].type


def asynchronous(ort: Any) -> Any:
    done, found = threading.Event(), []

    def callback(results: Any, user_data: Any, problem: str) -> None:
        found.append(([value.tolist() for value in results], user_data, problem))
        done.set()

    session = ort.InferenceSession(model())
    session.run_async(["z"], {"x": X, "bias": BIAS}, callback, 7)
    assert done.wait(30)
    return found


def errors(ort: Any) -> Any:
    """What goes wrong is caught under the names that a program knows."""
    session, state, found = ort.InferenceSession(model()), ort.capi.onnxruntime_pybind11_state, []
    for names, feeds in (
        (None, {"x": X.astype(np.float64), "bias": BIAS}),
        (None, {"x": X[0], "bias": BIAS}),
        (None, {"x": X, "bias": BIAS[:2]}),
        (None, {"x": X, "bias": BIAS, "q": X}),
        (["q"], {"x": X, "bias": BIAS}),
    ):
        try:
            session.run(names, feeds)
        except state.InvalidArgument:
            found.append("caught")
    for names, feeds, kind in (([], {"x": X}, ValueError), (["z"], {}, ValueError)):
        try:
            session.run(names, feeds)
        except kind:
            found.append("missing")
    for source, kind in (("nothing.onnx", state.NoSuchFile), (b"hello" * 9, state.InvalidProtobuf)):
        try:
            ort.InferenceSession(source)
        except kind:
            found.append("no model")
    stopped, binding = ort.RunOptions(), session.io_binding()
    stopped.terminate = True
    feeds = {"x": X, "bias": BIAS}
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for run, arguments, kinds in (
        (session.run, (None, feeds), state.Fail),
        (session.run_with_ort_values, (None, values), state.Fail),
        (session.run_with_iobinding, (binding,), (state.Fail, RuntimeError)),
    ):
        try:
            run(*arguments, stopped)
        except kinds:
            found.append("stopped")
    return found


def other_providers(ort: Any) -> Any:
    chosen = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sessions = [ort.InferenceSession(model(), None, each) for each in (chosen, ["CUDAExecutionProvider"])]
    return [session.get_providers() for session in sessions]


def small_things(ort: Any) -> Any:
    ort.set_seed(3)
    ort.disable_telemetry_events()
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), onnx.TensorProto.BFLOAT16)
    session = ort.InferenceSession(model())
    kinds = (type(ort.__version__), type(ort.get_version_string()), type(session.get_profiling_start_time_ns()))
    return (
        value.data_type(),
        value.is_sparse_tensor(),
        value.tensor_size_in_bytes(),
        kinds,
        str(session.get_inputs()[0]),
    )


def other_weights(ort: Any) -> Any:
    source = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[n] x) => (float[n] y) <float[1] w = {2}> { y = Mul(x, w) }"""
    weight, options = ort.OrtValue.ortvalue_from_numpy(np.array([5], np.float32)), ort.SessionOptions()
    options.add_initializer("w", weight)
    session = ort.InferenceSession(parser.parse_model(source).SerializeToString(), options)
    return session.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist()


def maps(ort: Any) -> Any:
    keys = helper.make_map_type_proto(
        onnx.TensorProto.STRING, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    words: dict[str, Any] = {"domain": "ai.onnx.ml", "string_vocabulary": ["b", "a"]}
    nodes = [
        helper.make_node("DictVectorizer", ["x"], ["row"], **words),
        helper.make_node("ZipMap", ["row"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[7, 8]),
    ]
    rows = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
    y = helper.make_value_info("y", helper.make_sequence_type_proto(rows))
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("x", keys)], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    found = [session.run(None, {"x": {"a": 2.0}}), session.run(None, {"x": {"b": 1.5, "c": 3.0}})]
    return found, session.get_inputs()[0].type, session.get_outputs()[0].type


MORE = [
    plain_lists,
    results_are_the_callers,
    not_a_number,
    text,
    asynchronous,
    errors,
    other_providers,
    small_things,
    other_weights,
    maps,
]
PROGRAMS = [run_all, run_a_part, run_with_options, describe, metadata, providers, bound, bound_memory, values]


@pytest.mark.parametrize("program", [*PROGRAMS, *MORE, free_dimensions], ids=lambda program: program.__name__)
def test_a_program_runs_the_same(program: Any) -> None:
    assert program(kernelyard_ort_compat) == program(onnxruntime)


def test_a_session_reads_a_path(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    session = kernelyard_ort_compat.InferenceSession(str(path))
    assert session.run(["z"], {"x": X, "bias": BIAS})[0].tolist() == [[100.0], [103.0]]


def test_what_cannot_be_is_an_error() -> None:
    ort = kernelyard_ort_compat
    with pytest.warns(UserWarning, match="CUDAExecutionProvider is not there"):
        session = ort.InferenceSession(model(), providers=["CUDAExecutionProvider"])
    with pytest.raises(DeviceError, match="no such device"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    with pytest.raises(InputNameError, match="no input 'q'"):
        session.io_binding().bind_cpu_input("q", X)
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


def test_a_profile_is_written(tmp_path) -> None:
    options = kernelyard_ort_compat.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    session = kernelyard_ort_compat.InferenceSession(model(), options)
    assert session.end_profiling() == ""
    session.run(None, {"x": X, "bias": BIAS})
    events = json.loads(Path(session.end_profiling()).read_text())["traceEvents"]
    assert any(event["name"] for event in events)


def test_an_error_of_an_asynchronous_run_is_handed_on() -> None:
    done, found = threading.Event(), []
    session = kernelyard_ort_compat.InferenceSession(model())
    session.run_async(None, {"x": X}, lambda *given: (found.append(given), done.set()), None)
    assert done.wait(30)
    assert found[0][0] == []
    assert "'bias' is missing" in found[0][2]


def test_types_are_written_as_onnxruntime_does() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_):
        array = np.zeros(2, dtype)
        found = kernelyard_ort_compat.OrtValue.ortvalue_from_numpy(array)
        wanted = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        assert (found.data_type(), found.element_type()) == (wanted.data_type(), wanted.element_type())
    assert kernelyard_ort_compat.OrtValue.ortvalue_from_numpy(X).element_type() == onnx.TensorProto.FLOAT


PROGRAM = """
import kernelyard_ort_compat, sys
kernelyard_ort_compat.install()
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
assert ort.__name__ == "kernelyard_ort_compat" and "CPUExecutionProvider" in C.get_available_providers()
session = InferenceSession(sys.stdin.buffer.read(), providers=C.get_available_providers())
x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
print([value.tolist() for value in session.run(None, {"x": x, "bias": np.array([1, 10, 100], np.float32)})])
try:
    session.run(None, {"x": x[0], "bias": x[0]})
except InvalidArgument as error:
    assert isinstance(error, Fail)
    print("refused")
"""


def test_a_program_that_is_not_changed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=model(), capture_output=True, check=True)
    results, refused = done.stdout.decode().splitlines()
    assert ast.literal_eval(results) == run_all(onnxruntime)
    assert refused == "refused"


def test_modules_of_onnxruntime_that_programs_import_are_there() -> None:
    for name in NAMES:
        theirs, ours = import_module(f"onnxruntime{name}"), import_module(f"kernelyard_ort_compat{name}")
        missing = [each for each in ERRORS if hasattr(theirs, each) and not hasattr(ours, each)]
        assert not missing


def test_outputs_by_name_come_in_the_order_asked_for() -> None:
    feeds = {"x": X, "bias": BIAS}
    found = [ort.InferenceSession(model()).run(["z", "y"], feeds) for ort in (onnxruntime, kernelyard_ort_compat)]
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(theirs, ours)
