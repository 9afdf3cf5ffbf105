"""`kernelyard_onnx.backend` and the session beneath it, as ONNX's runner and users call them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, parser

from kernelyard.errors import DeviceError, InputNameError, InputTypeError, UnsupportedOperatorError
from kernelyard_onnx import backend
from kernelyard_onnx.session import Session

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER} {text}")


def test_run_model_by_position_and_by_name() -> None:
    proto = model("g (float[2] a, float[2] b) => (float[2] y) { y = Sub(a, b) }")
    a, b = np.array([5, 7], np.float32), np.array([1, 2], np.float32)
    assert backend.run_model(proto, [a, b])[0].tolist() == [4, 5]
    assert backend.run_model(proto, {"b": a, "a": b})[0].tolist() == [-4, -5]


def test_run_node() -> None:
    node = helper.make_node("Mul", ["a", "b"], ["y"])
    (y,) = backend.run_node(node, [np.array([2, 3], np.float32), np.array([4, 5], np.float32)], opset_version=17)
    assert y.tolist() == [8, 15]


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:1")
    with pytest.raises(DeviceError, match="processor"):
        backend.prepare(model("g (float[2] a) => (float[2] y) { y = Abs(a) }"), "CUDA")


@pytest.mark.parametrize(
    ("text", "backends"), [("auto", "auto"), ("", []), ("dnnl, native-cpu", ["dnnl", "native-cpu"])]
)
def test_the_environment_names_backends(text, backends, monkeypatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, text)
    assert backend.choose_backends() == backends


def test_a_backend_that_is_named_runs_the_model(monkeypatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "dnnl")
    prepared = backend.prepare(model("g (float[8,8] a, float[8,8] b) => (float[8,8] y) { y = MatMul(a, b) }"))
    executable = prepared.session.executable
    assert executable is not None
    assert {row.backend for row in executable.report.placed} == {"dnnl"}
    a = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(prepared.run([a, 2 * a])[0], 2 * a)


def test_an_input_that_decides_is_asked_for_when_it_is_there() -> None:
    session = Session(model("g (float[1,1,2,2] x, float[4] s) => (float[?,?,?,?] y) { y = Resize(x, , s) }"), [])
    assert session.executable is None
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    for scale in (1, 2, 3):
        (y,) = session.run({"x": x, "s": np.array([1, 1, scale, scale], np.float32)})
        assert y.shape == (1, 1, 2 * scale, 2 * scale)
        assert y[0, 0, 0, 0] == 0


def test_a_model_that_no_input_could_save_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedOperatorError, match="Gradient"):
        Session(model("g (float[n] x) => (float[n] y) { y = ai.onnx.preview.training.Gradient(x) }"), [])


def test_sequences_go_in_and_out() -> None:
    text = "g (seq(float[?]) s, float[2] x) => (seq(float[?]) y) { y = SequenceInsert(s, x) }"
    session = Session(model(text), [])
    for lengths in ((), (1,), (3, 2)):
        given = [np.ones(n, np.float32) for n in lengths]
        (found,) = session.run({"s": given, "x": np.zeros(2, np.float32)})
        assert [item.tolist() for item in found] == [[1.0] * n for n in lengths] + [[0.0, 0.0]]


def test_an_optional_may_hold_nothing() -> None:
    session = Session(model("g (optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }"), [])
    assert session.run({})[0].item() is False
    assert session.run({"x": np.zeros(2, np.float32)})[0].item() is True


def test_text_goes_in_and_out() -> None:
    session = Session(
        model('g (string[n] x) => (string[n,m] y, int64[n] z) { y, z = StringSplit <delimiter=","> (x) }')
    )
    y, z = session.run({"x": np.array(["a,b", "c"], object)})
    assert y.tolist() == [["a", "b"], ["c", ""]]
    assert z.tolist() == [2, 1]


def test_narrow_element_types_go_in_and_out() -> None:
    session = Session(model("g (float[4] x) => (int4[4] y, int4[4] z) { y = Cast <to=22> (x)  z = Identity(y) }"), [])
    for found in session.run({"x": np.array([-8, -1, 7, 8], np.float32)}):
        assert found.dtype == np.dtype(ml_dtypes.int4)
        assert found.astype(int).tolist() == [-8, -1, 7, -8]


@pytest.mark.filterwarnings("ignore::kernelyard.errors.PerformanceWarning")
def test_random_numbers_differ_from_call_to_call_unless_seeded() -> None:
    session = Session(
        model(
            "g () => (float[64] y, float[64] z) { y = RandomUniform <shape=[64]> () z = RandomNormal <shape=[64], seed=1.0> () }"
        ),
        [],
    )
    (y1, z1), (y2, z2) = session.run({}), session.run({})
    assert not np.array_equal(y1, y2)
    np.testing.assert_array_equal(z1, z2)
    assert ((y1 >= 0) & (y1 < 1)).all()


def test_wrong_inputs_are_named() -> None:
    session = Session(
        model("g (float[2] x, seq(float[?]) s) => (float[2] y, int64 z) { y = Abs(x) z = SequenceLength(s) }")
    )
    x = np.zeros(2, np.float32)
    with pytest.raises(InputNameError, match="'q'"):
        session.run({"x": x, "s": [], "q": x})
    with pytest.raises(InputNameError, match="'s' is missing"):
        session.run({"x": x})
    with pytest.raises(InputTypeError, match="sequence"):
        session.run({"x": x, "s": x})
    with pytest.raises(InputTypeError, match="more inputs"):
        backend.KernelyardRep(session).run([x, [], x])
