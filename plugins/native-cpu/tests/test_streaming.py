"""Streaming stores: which results are written past the caches, and that they arrive."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims, legalize
from kernelyard.ir import TensorType, get_op
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cpu.generator import write_module
from kernelyard_native_cpu.machine import resolve_machine
from kernelyard_native_cpu.schedule import streaming

from .conftest import compile_one, run_module

LEVEL = "x86-64-v3"
LARGE = (1 << 11, 1 << 12)  # 32 MiB of float32


def operator(name: str, *operands: TensorType, **attributes: object) -> PrimFunc:
    op = get_op(name)
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(name, list(operands), attrs, op.infer_type(list(operands), attrs))


def text_of(function: PrimFunc, mcpu: str = LEVEL) -> str:
    return write_module({"kernel": function}, resolve_machine(mcpu))[1]


def streams(function: PrimFunc, mcpu: str = LEVEL) -> bool:
    text = text_of(function, mcpu)
    assert (", !nontemporal" in text) == ("@llvm.x86.sse.sfence()\n" in text)
    return ", !nontemporal" in text


def tensor(*shape: dims.Dim, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


@pytest.mark.parametrize(
    ("name", "operands", "attributes"),
    [
        ("nn.relu", [tensor(*LARGE)], {}),
        ("nn.relu", [tensor(8_388_613)], {}),
        ("add", [tensor(*LARGE), tensor(LARGE[1])], {}),
        ("add", [tensor(10_000, 1004), tensor(1004)], {}),
        ("cumsum", [tensor(10_000, 1004)], {"axis": 0}),
        ("concat", [tensor(1 << 11, 1 << 13), tensor(1 << 11, 1 << 13)], {"axis": 1}),
        ("nn.softmax", [tensor(*LARGE)], {"axis": 1}),
        ("cumsum", [tensor(*LARGE)], {"axis": 0}),
        ("cumsum", [tensor(8_388_613)], {"axis": 0}),
    ],
    ids=str,
)
def test_results_larger_than_caches_are_streamed(name, operands, attributes):
    assert streams(operator(name, *operands, **attributes))


def test_smaller_results_are_not():
    assert not streams(operator("nn.relu", tensor((1 << 23) - 1)))
    assert not streams(operator("cumsum", tensor((1 << 23) - 1), axis=0))


@pytest.mark.parametrize(
    ("name", "operands", "attributes"),
    [
        ("add", [tensor(10_000, 1001), tensor(1001)], {}),
        ("add", [tensor(100_000, 204), tensor(204)], {}),
        ("nn.softmax", [tensor(10_000, 1004)], {"axis": 1}),
        ("cumsum", [tensor(10_000, 1001)], {"axis": 0}),
    ],
    ids=str,
)
def test_rows_that_end_inside_of_lines_are_not(name, operands, attributes):
    assert not streams(operator(name, *operands, **attributes))


def test_what_is_gathered_is_not():
    rows = tensor(LARGE[0], dtype="int64")
    assert not streams(operator("take", tensor(*LARGE), rows, axis=0))


def test_what_takes_as_long_as_its_arithmetic_is_not():
    assert not streams(operator("matmul", tensor(1 << 11, 64), tensor(64, 1 << 12)))


def test_other_architectures_have_no_such_stores():
    function = operator("nn.relu", tensor(*LARGE))
    assert ", !nontemporal" not in write_module({"kernel": function}, resolve_machine(None, "aarch64"))[1]


CASES = {
    "relu": ("nn.relu", [(7, 64)], {}),
    "relu of a ragged row": ("nn.relu", [(531,)], {}),
    "bias": ("add", [(9, 64), (64,)], {}),
    "bias of rows that end inside of lines": ("add", [(9, 516), (516,)], {}),
    "rows that end inside of lines": ("cumsum", [(21, 516)], {"axis": 0}),
    "softmax": ("nn.softmax", [(9, 64)], {"axis": 1}),
    "rows": ("cumsum", [(21, 128)], {"axis": 0}),
    "long rows": ("cumsum", [(21, 2304)], {"axis": 0, "exclusive": True}),
    "a row": ("cumsum", [(531,)], {"axis": 0}),
    "ragged rows": ("cumsum", [(5, 107)], {"axis": 1}),
    "short rows": ("cumsum", [(50, 5)], {"axis": 1}),
    "backwards": ("cumsum", [(3, 107)], {"axis": 1, "reverse": True}),
}
UNDEFINED = {("softmax", "int64")}


@pytest.mark.parametrize("mcpu", [None, LEVEL, "x86-64-v2"])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, dtype) for case in CASES for dtype in ("float32", "int64", "float64") if (case, dtype) not in UNDEFINED],
)
def test_streamed_results_arrive(case, dtype, mcpu, monkeypatch):
    """Buffers that end with a page begin where they may: some of these are aligned, others not."""
    name, shapes, attributes = CASES[case]
    monkeypatch.setattr(streaming, "LEAST_STREAMED_BYTES", 256)
    function = operator(name, *(tensor(*shape, dtype=dtype) for shape in shapes), **attributes)
    assert streams(function, mcpu or "native")
    inputs = [np.random.default_rng(1).integers(-8, 9, shape).astype(dtype) for shape in shapes]
    for threads in (1, 3):
        (found,) = run_module(compile_one(function, mcpu), "kernel", inputs, {}, threads)
        (wanted,) = evaluate(function, inputs, {})
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
