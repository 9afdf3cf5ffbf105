"""Which schedule rule takes what, and that packed operands and transposed results are right."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.target import Target
from kernelyard.testing.reference import evaluate
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate as interpret
from kernelyard.tir.schedule import first_that_applies
from kernelyard.tir.stages import Stage
from kernelyard.transform.fusion.fuse_transpose_matmul import FuseTransposeMatmul
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard_native_cpu.machine import Machine, features_of_level, resolve_machine
from kernelyard_native_cpu.schedule.groups import Group, make_groups
from kernelyard_native_cpu.schedule.interleave_rows import with_interleaved_rows
from kernelyard_native_cpu.schedule.loops import Loops, loops_of
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import RULES, make_plan

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
    return [first_that_applies(RULES, each)[1][-1][0] for each in every]


def test_values_of_attention_are_read_along_their_rows():
    b = FunctionBuilder()
    new, cache = (
        [b.input(f"x{i}", (1, 1, 4, 64)) for i in range(3)],
        [b.input(f"c{i}", (1, 4, N, 64)) for i in range(2)],
    )
    call = b.op("nn.attention_cached", *new, *cache, b.input("lengths", (1,), "int64"))
    function = function_of(IRModule({"main": b.function(call)}))
    groups = make_groups(function)
    (group,) = (group for group in groups if group.stages[0].first.name == "weighted")
    axes = frozenset(axis.name for axis in group.stages[0].spatial[: group.shared])
    plan = make_plan(group.stages[0], axes, dict.fromkeys(group.private, group.shared), WIDE)
    assert (plan.vector, plan.extents[plan.vector]) == (group.stages[0].spatial[-1].name, 64)


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize(
    ("rule", "module"),
    [
        ("matmul", module_of("matmul", (64, 96), (96, 48))),
        ("matmul", module_of("matmul", (N, 96), (96, 48))),
        ("matmul", module_of("matmul", (4, 64, 32), (4, 32, 64))),
        ("matmul", module_of("matmul", (64, 1, 96), (96, 48))),
        ("matmul", module_of("matmul", (N, 1, 96), (96, 48))),
        ("gemv", module_of("matmul", (8, 1, 96), (96, 48))),
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
        ("scan", module_of("cumsum", (64,), axis=0)),
        ("scan", module_of("cumprod", (N, 7, 5), axis=1)),
        ("sort", module_of("topk", (8, N), axis=1, k=5)),
    ],
)
def test_the_rule_for_each_class(rule, module, machine):
    assert set(rules_of(function_of(module), machine)) == {rule}


def test_the_rule_for_a_scatter():
    indices = np.array([[1], [0]], np.int64)
    module = module_of("scatter_nd", (4, 5), weights=(indices, normal(2, 5)))
    assert rules_of(function_of(module)) == ["elementwise", "fallback"]


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


@pytest.mark.parametrize(
    ("channels", "filters", "window", "stride", "packed"),
    [(1, 64, 10, 5, True), (2, 64, 10, 5, True), (2, 32, 12, 4, True), (1, 64, 48, 8, False), (1, 64, 10, 1, False)],
)
def test_small_weights_are_packed_where_signals_are_read_in_steps(channels, filters, window, stride, packed):
    """Unless the signal is transposed in parts that many filters read: then there are vectors along its places."""
    attributes = {"strides": (stride,), "padding": (0, 0), "dilation": (1,), "groups": 1}
    data, weight = (1, channels, 600), (filters, channels, window)
    assert bool(choose_packings(function_of(module_of("nn.conv1d", data, weight, **attributes)), [1], WIDE)) == packed
    module, x = module_of("nn.conv1d", data, weights=(normal(*weight),), **attributes), normal(*data)
    (wanted,) = evaluate(module, [x])
    np.testing.assert_allclose(np.asarray(ky.compile(module, backends=[])(x)), wanted, rtol=2e-4, atol=2e-4)


def check_program(module: IRModule, *feeds: np.ndarray, mcpu: str | None, packed: bool) -> None:
    exe = ky.compile(module, target=Target("cpu", mcpu=mcpu), backends=[])
    machine = resolve_machine(mcpu)
    (function,) = (f for f in get_pipeline("legalize")(module).functions.values() if isinstance(f, PrimFunc))
    assert bool(choose_packings(function, [1], machine)) == packed
    (wanted,) = evaluate(module, list(feeds))
    np.testing.assert_allclose(np.asarray(exe(*feeds)), wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
@pytest.mark.parametrize(("rows", "counts"), [(N, (1, 7, 24)), (1, (1,)), (24, (24,)), (5000, (5000,))])
def test_large_weights_are_filled_up_to_whole_blocks(rows: Dim, counts: tuple[int, ...], mcpu: str | None) -> None:
    """Unless very many rows meet them: the copy of the result then takes longer than what is saved."""
    packings = choose_packings(function_of(module_of("matmul", (rows, 272), (272, 1001))), [1], resolve_machine(mcpu))
    assert bool(packings) == (rows != 5000)
    module = module_of("matmul", (rows, 272), weights=(normal(272, 1001),))
    exe = ky.compile(module, target=Target("cpu", mcpu=mcpu), backends=[])
    for count in counts:
        x = normal(count, 272)
        np.testing.assert_allclose(np.asarray(exe(x)), evaluate(module, [x])[0], rtol=2e-4, atol=2e-4)


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


def plan_of(module: IRModule, machine: Machine) -> Plan:
    """The plan of the last stage."""
    *_, group = make_groups(function_of(module))
    return make_plan(group.stages[-1], frozenset(), {}, machine)


@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_large_matrices_are_asked_for_ahead(machine):
    """Where they cannot be in cache; several tiles share them part by part."""
    assert plan_of(module_of("matmul", (4, 600), (600, 512)), machine).stream is not None
    assert plan_of(module_of("matmul", (4, 60), (60, 512)), machine).stream is None
    assert plan_of(module_of("matmul", (4, 600), (600, 512)), machine).k_blocks is None
    assert plan_of(module_of("matmul", (40, 600), (600, 512)), machine).k_blocks is not None
    assert plan_of(module_of("matmul", (400, 600), (600, 512)), machine).k_blocks is None


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (2, 4), (3, 2)])
def test_tiles_of_one_row_or_two_are_wide(rows, width):
    """So that with 16 registers as many sums are made at a time as a multiplication takes."""
    plan = plan_of(module_of("matmul", (rows, 100), (100, 256)), NARROW)
    assert (plan.tiles[-1:], plan.unroll) == (() if rows == 1 else ((plan.tiles[0][0], rows),), width)


@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_registers_hold_the_tiles_of_a_few_rows(machine):
    """Of a number of rows that is known only at run time."""
    plan = plan_of(module_of("matmul", (N, 100), (100, 1024)), machine)
    assert plan.for_fewer_rows
    for each in (plan, *plan.for_fewer_rows):
        ((_, height),) = each.tiles
        assert height * each.unroll < machine.vector_registers


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("depth", "columns"), [(70, 64), (33, 200), (100, 1000)])
def test_products_of_one_row_or_two(mcpu, rows, depth, columns):
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (rows, depth)), normal(depth, columns) / 20)
    check_program(IRModule({"main": b.function(b.op("nn.relu", product))}), normal(rows, depth), mcpu=mcpu, packed=True)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("rows", [1, 5, 16, 23, 64])
@pytest.mark.parametrize(("depth", "columns"), [(600, 512), (517, 543)])
@pytest.mark.parametrize("is_constant", [False, True])
def test_products_of_a_few_rows_with_large_matrices(mcpu, rows, depth, columns, is_constant):
    b = FunctionBuilder()
    x, w = b.input("x", (rows, depth)), normal(depth, columns) / 20
    product = b.op("matmul", x, w if is_constant else b.input("w", (depth, columns)))
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("add", product, normal(columns))))})
    feeds = (normal(rows, depth),) if is_constant else (normal(rows, depth), w)
    check_program(module, *feeds, mcpu=mcpu, packed=True)


def test_rows_of_skinny_gemm_are_interleaved():
    """One cache line per step holds what all rows give; not for a few columns, nor for rows that are near."""
    for shapes, is_changed in (
        (((8, 300), (300, 512)), True),
        (((8, 300), (300, 64)), False),
        (((3, 300), (300, 512)), False),
        (((300, 8), (8, 512)), False),
    ):
        function = function_of(module_of("matmul", *shapes))
        changed = with_interleaved_rows(function)
        assert (changed is not function) == is_changed
        operands = [normal(*shape) for shape in shapes]
        np.testing.assert_array_equal(interpret(changed, operands, {})[0], interpret(function, operands, {})[0])


def transposed_product(rows: int, depth: int, columns: int) -> IRModule:
    """A product with a matrix that lies transposed."""
    b = FunctionBuilder()
    x, w = b.input("x", (rows, depth)), b.input("w", (columns, depth))
    module = IRModule({"main": b.function(b.op("matmul", x, b.op("permute_dims", w, axes=(1, 0))))})
    return DeadCodeElimination()(FuseTransposeMatmul()(module))


@pytest.mark.parametrize("machine", [WIDE, NARROW])
def test_a_transposed_matrix_is_transposed_as_it_is_packed(machine):
    """Where enough rows share it; few rows take dot products with its rows as they lie."""
    panel = plan_of(transposed_product(128, 64, 96), machine).panel
    assert panel is not None
    assert panel.is_transposed
    few = plan_of(transposed_product(4, 600, 512), machine)
    assert (few.panel, few.vector) == (None, "r0")
    assert few.stream is not None
    assert few.stream.axis == "s1"


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(128, 64, 128), (100, 70, 50), (64, 33, 49), (3, 600, 512), (16, 523, 541)]
)
def test_products_with_transposed_matrices(mcpu, rows, depth, columns):
    feeds = normal(rows, depth), normal(columns, depth)
    exe = ky.compile(transposed_product(rows, depth, columns), target=Target("cpu", mcpu=mcpu), backends=[])
    np.testing.assert_allclose(np.asarray(exe(*feeds)), feeds[0] @ feeds[1].T, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(
    ("channels", "filters", "groups", "size", "stride"),
    [(64, 64, 8, 9, 1), (24, 48, 4, 7, 1), (64, 32, 2, 17, 2), (6, 12, 3, 5, 1)],
)
def test_filters_of_a_group_share_its_channels(mcpu, channels, filters, groups, size, stride):
    """They are a tile's rows: what is loaded of the image serves them all."""
    attributes = {**CONV, "strides": (stride, stride), "groups": groups}
    shapes = (2, channels, size, size), (filters, channels // groups, 3, 3)
    module = module_of("nn.conv2d", *shapes, **attributes)
    assert rules_of(function_of(module))[-1] == "conv"
    feeds = [normal(*shape) for shape in shapes]
    exe = ky.compile(module, target=Target("cpu", mcpu=mcpu), backends=[])
    np.testing.assert_allclose(np.asarray(exe(*feeds)), evaluate(module, feeds)[0], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_are_packed(mcpu, dtype):
    b = FunctionBuilder()
    x, w = b.input("x", (8, 70), dtype), (normal(70, 128) / 8).astype(dtypes.to_numpy(dtype))
    module = IRModule({"main": b.function(b.op("matmul", x, w))})
    assert choose_packings(function_of(module), [1], resolve_machine(mcpu))[1].axis == 1
    feed = normal(8, 70).astype(w.dtype)
    found = ky.compile(module, target=Target("cpu", mcpu=mcpu), backends=[])(feed)
    wanted = feed.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_allclose(np.asarray(found).astype(np.float32), wanted, rtol=1e-2, atol=1e-2)


def test_rules_say_why():
    """Those that decline, and the plan of the one that applies."""
    (group,) = make_groups(function_of(module_of("permute_dims", (64, 96), axes=(1, 0))))
    plan, reasons = first_that_applies(RULES, loops_of(group.stages[-1], frozenset(), {}, WIDE))
    assert [name for name, _ in reasons] == [rule.__name__ for rule in RULES[: len(reasons)]]
    assert dict(reasons)["reduction"].startswith("the stage has no reduction")
    assert reasons[-1] == ("transpose", f"1 vectors of 16 along {plan.vector}, 16 of {plan.transposed_axis} at a time")


def test_tiles_are_inside_of_the_rows_that_stages_share(monkeypatch):
    """A product of one number each reads its matrix in every row: the rows, which others share, are not its to tile,
    whatever it is that lets the stages share them.
    """
    function = function_of(module_of("nn.attention", (1, 16, 1, 1), (1, 16, 1, 1), (1, 16, 1, 1)))
    product = next(stage for group in make_groups(function) for stage in group.stages if stage.first.reducer == "sum")
    assert [axis.extent for axis in product.reduce] == [1]
    rows = frozenset(axis.name for axis in product.spatial[:3])
    for is_contraction in (True, False):
        monkeypatch.setattr(Stage, "is_contraction", property(lambda stage, given=is_contraction: given))
        plan = make_plan(product, rows, {}, WIDE)
        assert plan.spatial == ("s3",)
        assert not rows & dict(plan.tiles).keys()
