"""DecomposeRandom: kernels draw the numbers of the reference, on every target, from seeds and from keys."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, dtypes
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, get_op, verify
from kernelyard.legalize import legalize_call
from kernelyard.ops.interpreter import run
from kernelyard.tir.interpreter import evaluate
from kernelyard.transform.lowering.decompose_random import DecomposeRandom
from kernelyard.transform.pipelines import get_pipeline

NAMES = ("random.uniform", "random.normal")
PARAMETERS = {"random.uniform": {"low": -2.0, "high": 3.0}, "random.normal": {"mean": 1.0, "scale": 2.0}}


def drawn(name: str, shape: dims.Shape, **attributes) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.function(b.op(name, shape=shape, **PARAMETERS[name], **attributes))})


def assert_equal_numbers(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert found.dtype == wanted.dtype
    tolerance = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 0.3)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_arithmetic_on_bits_gives_the_numbers_of_the_reference(name, dtype):
    module = drawn(name, (5, 7), dtype=dtype, seed=11)
    decomposed = verify(DecomposeRandom()(module))
    ops = {binding.value.op_name for binding in decomposed.graph_functions()["main"].bindings}
    assert "random.bits" in ops
    assert ops.isdisjoint(NAMES)
    assert_equal_numbers(run(decomposed, [])[0], run(module, [])[0], dtype)


@pytest.mark.parametrize("word", range(4))
def test_the_rule_gives_the_bits_of_the_reference(word):
    op, key = get_op("random.bits"), TensorType((), "uint64")
    attrs = op.check_attributes({"shape": (3, 50), "word": word})
    function = legalize_call("random.bits", [key], attrs, op.infer_type([key], attrs))
    given = np.asarray(0x0123456789ABCDEF, np.uint64)
    assert op.reference is not None
    np.testing.assert_array_equal(evaluate(function, [given])[0], op.reference(given, **attrs))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_draw_the_same_numbers(name, dtype, target):
    module = drawn(name, (40, 33), dtype=dtype, seed=2**40 + 5)
    exe = ky.compile(module, target=target, backends=[])
    assert [each.kind for each in exe.modules] == [f"native-{target}"]
    device = ky.cuda("emulator") if target == "cuda" else ky.cpu()
    found = ky.VirtualMachine(exe, device)["main"]()
    assert_equal_numbers(np.asarray(found.numpy()), run(module, [])[0], dtype)


def test_without_a_seed_each_call_draws_anew():
    exe = ky.compile(drawn("random.uniform", (1000,)), backends=[])
    first, second = (next(iter(exe.run({}).values())).numpy().copy() for _ in range(2))
    assert not np.array_equal(first, second)
    assert abs(first.mean() - 0.5) < 0.4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_spread_as_they_should_be(dtype):
    uniform = run(drawn("random.uniform", (200_000,), dtype=dtype, seed=3), [])[0]
    normal = run(drawn("random.normal", (200_000,), dtype=dtype, seed=3), [])[0]
    counts, _ = np.histogram(uniform, 50, (-2, 3))
    assert counts.sum() == uniform.size
    assert ((counts - 4000) ** 2 / 4000).sum() < 100  # chi square, 49 degrees of freedom
    assert abs(normal.mean() - 1) < 0.02
    assert abs(normal.std() - 2) < 0.02
    assert abs(np.mean(((normal - 1) / 2) ** 4) - 3) < 0.1


def test_kernels_of_bits_are_fused_with_what_reads_them():
    module = get_pipeline("legalize")(drawn("random.uniform", (64,), seed=1))
    assert len(module.graph_functions()["main"].bindings) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_report_names_the_code_generator(name):
    exe = ky.compile(drawn(name, (5, 7), dtype="float32", seed=None), backends=[])
    assert [(node.op, node.backend) for node in exe.report.nodes] == [(name, "native-cpu")]
