"""Regions as ONNX models that onnxruntime runs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, BackendUnavailableError
from kernelyard.plugins.api import Constant, FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate

pytest.importorskip("kernelyard_onnxruntime")
random = np.random.default_rng(0)


def network() -> IRModule:
    """Images -> classes, of any number of images: a convolution, pooling, a linear layer."""
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 3, 8, 8))
    x = b.op("nn.conv2d", x, random.normal(size=(4, 3, 3, 3)).astype(np.float32), padding=(1, 1, 1, 1))
    x = b.op("nn.max_pool2d", b.op("nn.relu", x), pool_size=(2, 2), strides=(2, 2))
    x = b.op("matmul", b.op("reshape", x, shape=(symbol("n"), 64)), random.normal(size=(64, 5)).astype(np.float32) / 8)
    return IRModule({"main": b.function(b.op("nn.softmax", x, axis=1))})


def images(n: int) -> np.ndarray:
    return random.normal(size=(n, 3, 8, 8)).astype(np.float32)


def test_a_network_is_one_region_of_any_size(tmp_path: Path) -> None:
    module = network()
    exe = ky.compile(module, backends=["onnxruntime"], strict=True)
    assert exe.report.coverage["onnxruntime"]["ops"] == 6
    (region,) = exe.modules
    assert len(region.constants()) == 2  # stored once, outside of the model
    exe.save(tmp_path / "network.kyar")
    loaded = ky.load(tmp_path / "network.kyar")
    loaded.threads = 2
    for n in (2, 1, 5, 2):
        x = images(n)
        for each in (exe, loaded):
            assert_allclose(each(x), evaluate(module, [x])[0])


def test_what_stands_in_for_onnxruntime_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be this compiler itself, which would ask it again."""
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("something_else"))
    with pytest.raises(BackendUnavailableError, match="something_else stands in for onnxruntime"):
        ky.compile(network(), backends=["onnxruntime"])


def test_the_same_model_gives_the_same_bytes() -> None:
    module = network()
    first, second = (ky.compile(module, backends=["onnxruntime"]).to_bytes() for _ in range(2))
    assert first == second


def test_callers_at_the_same_time_have_memory_of_their_own() -> None:
    module = network()
    exe = ky.compile(module, backends=["onnxruntime"], strict=True)
    inputs = [images(n) for n in (1, 2, 3) * 4]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: exe(x).numpy(), inputs))
    for x, result in zip(inputs, results, strict=True):
        assert_allclose(result, evaluate(module, [x])[0])


def test_a_group_norm_of_float64_is_computed_in_float64() -> None:
    b = FunctionBuilder()
    weights = (np.linspace(lo, 2, 4) for lo in (-1, 0.5))
    y = b.op("nn.group_norm", b.input("x", (2, 4, 5), "float64"), *weights, num_groups=2)
    module = IRModule({"main": b.function(y)})
    exe = ky.compile(module, backends=["onnxruntime"], strict=True)
    assert_offloaded(exe, "onnxruntime", "onnxruntime.nn.group_norm")
    x = np.random.default_rng(0).standard_normal((2, 4, 5))
    assert_allclose(exe(x).numpy(), evaluate(module, [x])[0])


def explained(op: str, *operands: tuple[tuple[int, ...], str], **attributes: object) -> ky.Report:
    b = FunctionBuilder()
    y = b.op(op, *(b.input(f"x{i}", *operand) for i, operand in enumerate(operands)), **attributes)
    return ky.explain(IRModule({"main": b.function(y)}), backends=["onnxruntime"])


def test_what_it_lacks_is_declined() -> None:
    assert_declined(explained("exp", ((2, 3), "bfloat16")), "onnxruntime", "dtype")
    assert_declined(explained("power", ((2, 3), "int8"), ((2, 3), "int8")), "onnxruntime", "onnx")
    assert_declined(explained("nn.celu", ((2, 3), "float32"), alpha=0.0), "onnxruntime", "onnx")
    assert_declined(explained("erf", ((2, 3), "float64")), "onnxruntime", "reference-implementation")
    assert_declined(explained("fmod", ((2, 3), "int64"), ((2, 3), "int64")), "onnxruntime", "zero")
    lrn = {"size": 2, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    assert_declined(explained("nn.lrn", ((1, 4, 2, 2), "float32"), **lrn), "onnxruntime", "attribute")
    empty = ((1, 0, 5), "float32"), ((0,), "float32"), ((0,), "float32")
    assert_declined(explained("nn.group_norm", *empty, num_groups=1), "onnxruntime", "shape")
    reflected = {"pads": (2, 0, 0, 1), "mode": "reflect"}
    for rows in (2, symbol("n")):
        assert_declined(explained("pad", ((rows, 3), "float32"), **reflected), "onnxruntime", "attribute")
    image, kernel = ((1, 2, 4, 4), "float32"), ((2, 2, 2, 2), "float32")
    window = {"strides": (2, 2), "output_padding": (0, 2)}
    assert_declined(explained("nn.conv2d_transpose", image, kernel, **window), "onnxruntime", "attribute")


def test_what_it_fuses_to_other_numbers_is_declined() -> None:
    """A layer between dequantize and quantize, which onnxruntime has forms of integers of."""
    scales, zeros = Constant(np.float32([0.1, 0.2])), Constant(np.uint8([0, 3]))
    for op, attrs, code in (
        ("nn.softmax", {"axis": 2}, "numbers"),
        ("nn.avg_pool1d", {"pool_size": (3,), "dilation": (2,)}, "attribute"),
        ("quantize", {"axis": 1, "dtype": "uint8"}, "attribute"),
        ("quantize", {"axis": 0, "dtype": "uint8"}, "attribute"),
    ):
        b = FunctionBuilder()
        x = b.op("dequantize", b.input("x", (1, 2, 8), "uint8"), np.float32(0.1), np.uint8(3))
        if op == "quantize":
            given = scales if attrs["axis"] else b.input("scale", (1,))
            numbers = zeros if attrs["axis"] else Constant(np.uint8([0]))
            module = IRModule({"main": b.function(b.op(op, b.op("nn.relu", x), given, numbers, **attrs))})
        else:
            layer = b.op("permute_dims", b.op(op, x, **attrs), axes=(0, 2, 1))
            module = IRModule(
                {"main": b.function(b.op("quantize", layer, np.float32(0.01), np.uint8(0), dtype="uint8"))}
            )
        assert_declined(ky.explain(module, backends=["onnxruntime"]), "onnxruntime", code, f"onnxruntime.{op}")


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_of_several_scales_are_taken_along_the_channels_of_the_result(axis: int) -> None:
    b = FunctionBuilder()
    x = b.op("dequantize", b.input("x", (1, 3, 8), "uint8"), np.float32(0.1), np.uint8(3))
    codes = np.random.default_rng(0).integers(-99, 99, (3, 3, 2)).astype(np.int8)
    scales, zeros = Constant(np.float32([0.01, 0.02, 0.03])), Constant(np.zeros(3, np.int8))
    y = b.op("nn.conv1d", x, b.op("dequantize", Constant(codes), scales, zeros, axis=axis))
    module = IRModule({"main": b.function(b.op("quantize", y, np.float32(0.1), np.uint8(128), dtype="uint8"))})
    exe = ky.compile(module, backends=["onnxruntime"])
    if axis:
        assert_declined(exe, "onnxruntime", "attribute", "onnxruntime.nn.conv1d")
    stored = np.random.default_rng(0).integers(0, 256, (1, 3, 8)).astype(np.uint8)
    np.testing.assert_array_equal(exe(stored).numpy(), evaluate(module, [stored])[0])


def test_weights_that_are_floats_stay_so() -> None:
    b, random = FunctionBuilder(), np.random.default_rng(0)
    x = b.op("dequantize", b.input("x", (1, 3, 800), "uint8"), np.float32(0.1), np.uint8(3))
    y = b.op("nn.conv1d", x, random.normal(size=(3, 3, 2)).astype(np.float32))
    module = IRModule({"main": b.function(b.op("quantize", y, np.float32(0.1), np.uint8(128), dtype="uint8"))})
    exe = ky.compile(module, backends=["onnxruntime"])
    assert_offloaded(exe, "onnxruntime", "onnxruntime.nn.conv1d", count=1)
    stored = random.integers(0, 256, (1, 3, 800)).astype(np.uint8)
    np.testing.assert_array_equal(exe(stored).numpy(), evaluate(module, [stored])[0])


def test_an_average_of_integers_is_taken() -> None:
    b = FunctionBuilder()
    x = b.op("dequantize", b.input("x", (1, 2, 8, 8), "uint8"), np.float32(0.1), np.uint8(3))
    mean = b.op("nn.avg_pool2d", x, pool_size=(3, 2), strides=(2, 2))
    module = IRModule({"main": b.function(b.op("quantize", mean, np.float32(0.05), np.uint8(0), dtype="uint8"))})
    exe = ky.compile(module, backends=["onnxruntime"])
    assert_offloaded(exe, "onnxruntime", "onnxruntime.nn.avg_pool2d", count=1)
    stored = np.random.default_rng(0).integers(0, 256, (1, 2, 8, 8)).astype(np.uint8)
    steps = exe(stored).numpy().astype(int) - evaluate(module, [stored])[0]
    assert np.abs(steps).max() <= 1  # onnxruntime rounds twice


def test_what_is_quantized_twice_is_rounded_twice() -> None:
    b = FunctionBuilder()
    x = b.input("x", (257,))
    for scale, zero in ((0.11, 3), (0.019, 0), (0.05, 7)):
        x = b.op(
            "dequantize",
            b.op("quantize", x, np.float32(scale), np.uint8(zero), dtype="uint8"),
            np.float32(scale),
            np.uint8(zero),
        )
    module = IRModule({"main": b.function(x)})
    exe = ky.compile(module, backends=["onnxruntime"])
    assert_offloaded(exe, "onnxruntime", "onnxruntime.quantize", count=3)
    values = np.linspace(-1, 30, 257).astype(np.float32)
    assert_allclose(exe(values), evaluate(module, [values])[0])


def test_it_takes_nothing_by_default() -> None:
    assert "onnxruntime" not in ky.explain(network()).coverage
    assert_offloaded(ky.compile(network(), backends=["onnxruntime"]), "onnxruntime", "onnxruntime.nn.conv2d", count=1)


def test_bytes_that_are_not_whole_are_refused() -> None:
    from kernelyard_onnxruntime.runtime import load

    (module,) = ky.compile(network(), backends=["onnxruntime"]).modules
    data = module.save_to_bytes()
    with pytest.raises(ArtifactCorruptedError):
        load(data[:-1], module.constants())
    with pytest.raises(ArtifactCorruptedError):
        load(data, {})
    assert load(data, module.constants()).save_to_bytes() == data


def test_a_program_runs_without_the_compiler(tmp_path: Path) -> None:
    ky.compile(network(), backends=["onnxruntime"], strict=True).save(tmp_path / "network.kyar")
    code = f"""
import sys, numpy as np, kernelyard as ky
print(ky.load({str(tmp_path / "network.kyar")!r})(np.ones((2, 3, 8, 8), np.float32)).shape)
assert not {{"onnx", "kernelyard.ir", "kernelyard_onnx_export"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(2, 5)\n"), done.stderr
