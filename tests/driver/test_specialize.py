"""Models that no program serves for all sizes: compiled for the sizes and values that come."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import kernelyard as ky
from kernelyard.driver.specialize import SpecializingExecutable
from kernelyard.errors import ArtifactError, InputNameError, PerformanceWarning, UnsupportedOperatorError

# The rank of what `If` returns hangs on a size, as PyTorch's exporter writes `squeeze`, and that of the result on it.
SQUEEZED = """
<ir_version: 9, opset_import: ["" : 18]>
g (float[n, m] x) => (float[k] y) {
  s = Shape <start = 1> (x)
  one = Constant <value = int64[1] {1}> ()
  same = Equal (s, one)
  flag = Squeeze (same)
  z = If (flag) <
    then_branch = a () => (t) { t = Squeeze (x, one) },
    else_branch = b () => (t) { t = Identity (x) }
  >
  axes = Constant <value = int64[1] {-1}> ()
  y = ReduceSum <keepdims = 0> (z, axes)
}
"""
# A switch: each branch gives the rank that its value is for.
SWITCH = """
<ir_version: 9, opset_import: ["" : 18]>
g (float[n, 4] x, int64 wide) => (float[k] y) {
  limit = Constant <value = int64 {8}> ()
  flag = Equal (wide, limit)
  z = If (flag) <
    then_branch = a () => (t) { shape = Constant <value = int64[2] {-1, 8}> () t = Reshape (x, shape) },
    else_branch = b () => (t) { shape = Constant <value = int64[3] {-1, 2, 2}> () t = Reshape (x, shape) }
  >
  axes = Constant <value = int64[1] {-1}> ()
  y = ReduceSum <keepdims = 0> (z, axes)
}
"""


def compiled(text: str) -> tuple[ky.Executable, onnxruntime.InferenceSession]:
    model = parser.parse_model(text)
    with pytest.warns(PerformanceWarning, match="when it comes"):
        exe = ky.compile(model, backends=[])
    return exe, onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_rank_that_hangs_on_a_size() -> None:
    exe, session = compiled(SQUEEZED)
    assert isinstance(exe, SpecializingExecutable)
    assert [(info.name, info.shape) for info in exe.inputs] == [("x", ("n", "m"))]
    for shape in ((3, 1), (3, 5), (1, 1), (3, 1)):
        x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(np.asarray(exe(x)), session.run(None, {"x": x})[0], rtol=1e-5)
    assert exe.inspect().endswith("3 programs")
    assert exe.report.placed == exe.compiled_for({"x": x}).report.placed


def test_values_of_whole_numbers_decide_where_sizes_do_not() -> None:
    exe, session = compiled(SWITCH)
    x = np.random.default_rng(1).standard_normal((6, 4), dtype=np.float32)
    for wide in (8, 4, 8):
        feeds = {"x": x, "wide": np.array(wide)}
        np.testing.assert_allclose(np.asarray(exe.run(feeds)["y"]), session.run(None, feeds)[0], rtol=1e-5)


def test_threads_and_profiles_are_those_of_the_program() -> None:
    exe, _ = compiled(SQUEEZED)
    exe.threads = 1
    x = np.ones((2, 3), np.float32)
    assert exe.compiled_for({"x": x}).threads == 1
    by_place, by_name = exe.profile([x], calls=1), exe.profile({"x": x}, calls=1)
    assert [step.label for step in by_place.steps] == [step.label for step in by_name.steps] != []


def test_calls_in_every_form() -> None:
    exe, session = compiled(SQUEEZED)
    x = np.random.default_rng(1).standard_normal((4, 3), dtype=np.float32)
    (expected,) = session.run(None, {"x": x})
    exe.warm(x=(4, 3))
    assert exe.cache_info()["programs"].entries == 1
    out = np.empty(4, np.float32)
    exe.run({"x": x}, out=out, timeout=60)
    for found in (out, exe(x=x), asyncio.run(exe.run_async({"x": x}))["y"]):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)
    assert exe.cache_info()["programs"].entries == 1


def test_it_is_not_saved(tmp_path: Path) -> None:
    exe, _ = compiled(SQUEEZED)
    for save in (lambda: exe.save(tmp_path / "m.kyar"), exe.to_bytes, lambda: pickle.dumps(exe)):
        with pytest.raises(ArtifactError, match="sizes that come"):
            save()
    x = np.ones((2, 3), np.float32)
    exe.compiled_for({"x": x}).save(tmp_path / "m.kyar")
    assert np.asarray(ky.load(tmp_path / "m.kyar")(x)).tolist() == [3, 3]


def test_inputs_are_checked() -> None:
    exe, _ = compiled(SQUEEZED)
    with pytest.raises(InputNameError, match="wrong input names"):
        exe.run({"z": np.ones((2, 3), np.float32)})
    with pytest.raises(InputNameError, match="number"):
        exe()


def test_what_no_size_helps_is_refused_at_once() -> None:
    text = """
<ir_version: 9, opset_import: ["" : 18, "acme" : 1]>
g (float[n] x) => (float[n] y) { y = acme.Mystery (x) }
"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnsupportedOperatorError, match="Mystery"):
            ky.compile(parser.parse_model(text), backends=[])


def test_sizes_that_options_fix_are_not_taken_from_inputs() -> None:
    with pytest.raises(UnsupportedOperatorError, match="If"):
        ky.compile(parser.parse_model(SQUEEZED), backends=[], options={"onnx": {"shapes": {"x": (2, None)}}})


def test_a_program_for_fixed_sizes_is_an_ordinary_one() -> None:
    exe = ky.compile(parser.parse_model(SQUEEZED), backends=[], options={"onnx": {"shapes": {"x": (2, 1)}}})
    assert not isinstance(exe, SpecializingExecutable)
