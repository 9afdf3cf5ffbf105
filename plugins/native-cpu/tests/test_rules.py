"""Which schedule rule takes what, and that packed operands and turned results are right."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.target import Target
from kernelyard.testing.reference import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.machine import Machine, features_of_level, resolve_machine
from kernelyard_native_cpu.schedule.groups import Group, make_groups
from kernelyard_native_cpu.schedule.loops import Loops, loops_of
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.rules import RULES

RNG = np.random.default_rng(5)
WIDE = Machine("x86_64", features_of_level("x86-64-v4"))
NARROW = Machine("x86_64", features_of_level("x86-64-v3"))
N = dims.symbol("n")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def module_of(op: str, *shapes: tuple[Dim, ...], weights: tuple[np.ndarray, ...] = (), **attributes) -> IRModule:
    b = FunctionBuilder()
    inputs = [b.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    return IRModule({"main": b.function(b.op(op, *inputs, *weights, **attributes))})


def function_of(module: IRModule) -> PrimFunc:
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    return function


def rules_of(function: PrimFunc, machine: Machine = WIDE) -> list[str]:
    """The rule that takes each stage, in order."""

    def loops(group: Group) -> list[Loops]:
        rows = frozenset(axis.name for axis in group.stages[0].spatial[: group.shared])
        private = dict.fromkeys(group.private, group.shared)
        return [loops_of(stage, rows, private, machine) for stage in group.stages]

    every = [each for group in make_groups(function) for each in loops(group)]
    return [next(rule.__name__ for rule in RULES if rule(each) is not None) for each in every]


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize(
    ("rule", "module"),
    [
        ("matmul", module_of("matmul", (64, 96), (96, 48))),
        ("matmul", module_of("matmul", (N, 96), (96, 48))),
        ("matmul", module_of("matmul", (4, 64, 32), (4, 32, 64))),
        ("gemv", module_of("matmul", (1, 96), (96, 48))),
        ("gemv", module_of("matmul", (8, 96), (96, 48))),
        ("gemv", module_of("matmul", (12, 1, 64), (12, 64, 48))),
        ("general_reduction", module_of("nn.softmax", (8, 64), axis=1)),
        ("general_reduction", module_of("nn.layer_norm", (8, 64), (64,), (64,), axes=(1,))),
        ("reduction", module_of("sum", (8, 64), axes=(1,))),
        ("reduction", module_of("argmax", (8, 64), axis=1)),
        ("transpose", module_of("permute_dims", (32, 64), axes=(1, 0))),
        ("elementwise", module_of("nn.gelu", (8, 64))),
        ("elementwise", module_of("add", (N, 64), (64,))),
        ("fallback", module_of("cumsum", (64,), axis=0)),
    ],
)
def test_the_rule_for_each_class(rule, module, machine):
    assert set(rules_of(function_of(module), machine)) == {rule}


CONV = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}


def test_a_convolution_pads_by_maps_and_multiplies_by_tiles():
    function = function_of(module_of("nn.conv2d", (1, 32, 9, 9), (64, 32, 3, 3), **CONV))
    assert rules_of(function)[-1] == "conv"
    assert set(rules_of(function)[:-1]) <= {"elementwise", "general_reduction"}, "padding"


def test_weights_are_packed_where_vectors_go_along_them():
    """Of matrices always; of convolutions where the image is too narrow for whole vectors."""
    assert choose_packings(function_of(module_of("matmul", (64, 96), (96, 64))), [1], WIDE)[1].axis == 1
    narrow = function_of(module_of("nn.conv2d", (1, 32, 7, 7), (64, 32, 3, 3), **CONV))
    assert choose_packings(narrow, [1], WIDE)[1].axis == 0
    depthwise = function_of(module_of("nn.conv2d", (1, 64, 32, 32), (64, 1, 9, 9), **{**CONV, "groups": 64}))
    assert choose_packings(depthwise, [1], WIDE) == {}
    assert choose_packings(function_of(module_of("matmul", (64, 96), (96, 50))), [1], WIDE) == {}, "50 is no multiple"
    assert choose_packings(function_of(module_of("matmul", (64, 8), (8, 64))), [1], WIDE) == {}, "small"


def check_program(module: IRModule, *feeds: np.ndarray, mcpu: str | None, packed: bool) -> None:
    exe = ky.compile(module, target=Target("cpu", mcpu=mcpu), backends=[])
    machine = resolve_machine(mcpu)
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    assert bool(choose_packings(function, [1], machine)) == packed
    (wanted,) = evaluate(module, list(feeds))
    np.testing.assert_allclose(np.asarray(exe(*feeds)), wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel", "stride"),
    [
        (64, 64, 7, 3, 1),
        (64, 96, 14, 3, 2),
        (48, 64, 13, 3, 1),
        (128, 64, 5, 1, 1),
        (64, 64, 17, 1, 2),
        (64, 64, 1, 1, 1),
    ],
)
def test_convolutions_with_packed_weights(mcpu, channels, filters, size, kernel, stride):
    b = FunctionBuilder()
    x, other = b.input("x", (2, channels, size, size)), normal(1, filters, 1, 1)
    attributes = {"strides": (stride,) * 2, "padding": (kernel // 2,) * 4, "dilation": (1, 1), "groups": 1}
    product = b.op("nn.conv2d", x, normal(filters, channels, kernel, kernel) / channels, **attributes)
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("add", product, other)))})
    check_program(module, normal(2, channels, size, size), mcpu=mcpu, packed=True)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 33])
@pytest.mark.parametrize("columns", [64, 96])
def test_products_with_packed_weights(mcpu, rows, columns):
    b = FunctionBuilder()
    x = b.input("x", (rows, 70))
    product = b.op("add", b.op("matmul", x, normal(70, columns) / 8), normal(columns))
    module = IRModule({"main": b.function(b.op("nn.gelu", product))})
    check_program(module, normal(rows, 70), mcpu=mcpu, packed=True)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_of_symbolic_rows_with_packed_weights(rows):
    module = module_of("matmul", (N, 70), weights=(normal(70, 64),))
    check_program(module, normal(rows, 70), mcpu=None, packed=True)
