"""FuseSiblings: which kernels become one with several results, which stay apart, and that the meaning stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fused_graphs import fused_graphs
from graph_builder import FusedGraph
from hypothesis import HealthCheck, given, settings

from kernelyard import dims
from kernelyard.ir import Call, Constant, Expr, FunctionBuilder, GlobalVar, IRModule, Var, parse_module, to_text, verify
from kernelyard.ops.interpreter import run
from kernelyard.ops.samples import draw_numbers
from kernelyard.tir import PrimFunc
from kernelyard.tir.op_pattern import cost
from kernelyard.tir.verify import verify as verify_primfunc
from kernelyard.transform import FuseSiblings, PassContext
from kernelyard.transform.fusion.fuse_siblings import MOST_OPERATIONS, MOST_TENSORS, WINDOW
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.pipelines import get_pipeline

LEGALIZE = get_pipeline("legalize")
N = dims.symbol("n")
LARGE = (256, 1024)


def legal(builder: FunctionBuilder, *results: Expr) -> IRModule:
    """The module as kernels; it verifies and means what it meant."""
    before = IRModule({"main": builder.function(*results)})
    module = LEGALIZE(before)
    verify(module)
    for function in module.functions.values():
        if isinstance(function, PrimFunc):
            verify_primfunc(function)
    params = module.graph_functions()["main"].params
    inputs = [
        draw_numbers(
            *(dims.evaluate(dim, {"n": 3}) for dim in p.tensor_type.shape), dtype=p.tensor_type.dtype, seed=seed
        )
        for seed, p in enumerate(params)
    ]
    for found, wanted in zip(run(module, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return module


def kernels(module: IRModule) -> list[set[str]]:
    """The ops of each kernel that main calls, in order."""
    return [
        set(module[callee.name].attrs["ops"])
        for binding in module.graph_functions()["main"].bindings
        if isinstance(binding.value, Call)
        for callee in binding.value.args[:1]
        if isinstance(callee, GlobalVar)
    ]


def outputs(module: IRModule) -> list[int]:
    return sorted(f.num_outputs for f in module.functions.values() if isinstance(f, PrimFunc))


def recurrent(b: FunctionBuilder, gates: Expr, weights: Expr, *, reverse: bool = False) -> Expr:
    """The hidden states of a recurrent layer at all steps."""
    state = Constant(np.full((2, 3), 0.25, np.float32))
    return b.get(b.op("nn.rnn", gates, weights, state, reverse=reverse), 0)


# --- put together -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(4, 8), LARGE, (N, 64), (N, 3)])
def test_functions_of_one_tensor_are_one_kernel_at_any_size(shape):
    b = FunctionBuilder()
    x = b.input("x", shape)
    module = legal(b, b.op("cos", x), b.op("sin", x))
    assert kernels(module) == [{"cos", "sin"}]
    assert outputs(module) == [2]


def test_its_text(golden):
    b = FunctionBuilder()
    x, other = b.input("x", (N, 64)), b.input("other", (N, 64))
    y = b.op("multiply", x, other)
    golden.check(to_text(legal(b, b.op("exp", y), b.op("tanh", y), b.op("negative", other))))


def test_text_of_the_groups_in_between_parses():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    module = IRModule({"main": b.function(b.op("cos", x), b.op("sin", x))})
    before_last = Sequential(LEGALIZE.passes[:-1], "groups")(module)
    verify(before_last)
    assert [name for name in before_last if name.startswith("fused")] == ["fused_cos_sin"]
    assert to_text(parse_module(to_text(before_last))) == to_text(before_last)


@pytest.mark.parametrize("shape", [(4, 8), LARGE])
def test_value_that_others_need_too_is_made_beside_its_function(shape):
    b = FunctionBuilder()
    y = b.op("add", b.input("x", shape), b.input("bias", shape[-1:]))
    module = legal(b, y, b.op("nn.relu", y))
    assert kernels(module) == [{"add", "nn.relu"}]
    assert outputs(module) == [2]


def test_value_that_only_siblings_read_is_never_stored():
    b = FunctionBuilder()
    y = b.op("multiply", b.input("x", LARGE), b.input("scale", (1,)))
    module = legal(b, b.op("exp", y), b.op("sin", y))
    (function,) = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    assert function.num_outputs == 2
    assert function.locals == ()


def test_small_kernels_that_have_nothing_in_common():
    b = FunctionBuilder()
    biases = [b.op("add", b.input(f"x{i}", (4, 8)), draw_numbers(8, dtype="float32", seed=i)) for i in range(3)]
    module = legal(b, *biases)
    assert len(kernels(module)) == 1
    assert outputs(module) == [3]


@pytest.mark.parametrize("steps", [5, N])
def test_both_directions_of_a_recurrent_layer(steps):
    b = FunctionBuilder()
    gates, weights = b.input("x", (steps, 2, 3)), b.input("w", (3, 3))
    module = legal(b, recurrent(b, gates, weights), recurrent(b, gates, weights, reverse=True))
    (kernel,) = kernels(module)
    assert kernel == {"nn.rnn"}


def test_small_ones_in_an_order_that_keeps_what_each_needs():
    """What the second sibling needs, and what needs the first, come between the two."""
    b = FunctionBuilder()
    x = b.input("x", (8, 8))
    first = b.op("exp", x)
    user = b.op("cumsum", first, axis=0)
    between = b.op("cumsum", x, axis=1)
    module = legal(b, first, user, b.op("sin", between))
    names = [binding.var.name for binding in module.graph_functions()["main"].bindings]
    assert kernels(module) == [{"cumsum"}, {"exp", "sin"}, {"cumsum"}]
    assert names[0] == between.name


def test_parts_of_a_split_are_one_kernel():
    b = FunctionBuilder()
    parts = b.op("split", b.input("x", (4, 6)), axis=1, sections=(2, 2, 2))
    module = legal(b, *(b.get(parts, n) for n in range(3)))
    assert kernels(module) == [{"split"}]
    assert outputs(module) == [3]


def test_transposes_that_turn_alike():
    b = FunctionBuilder()
    heads = [b.op("permute_dims", b.input(name, (2, 8, 4, 8)), axes=(0, 2, 1, 3)) for name in "kv"]
    assert kernels(legal(b, *heads)) == [{"permute_dims"}]


def test_mean_and_variance_of_the_same_rows():
    b = FunctionBuilder()
    x = b.input("x", (64, 96))
    mean = b.op("mean", x, axes=(1,), keepdims=True)
    variance = b.op("mean", b.op("square", b.op("subtract", x, mean)), axes=(1,))
    module = legal(b, mean, variance)
    assert len(kernels(module)) == 1
    assert outputs(module) == [2]


def test_reductions_of_the_same_rows_and_maps_of_them():
    b = FunctionBuilder()
    x = b.input("x", (N, 96))
    results = b.op("max", x, axes=(1,)), b.op("sum", x, axes=(1,), keepdims=True), b.op("exp", x)
    assert kernels(legal(b, *results)) == [{"max", "sum", "exp"}]


def test_sum_that_a_norm_reads_and_others_need():
    b = FunctionBuilder()
    x, residual = b.input("x", (64, 96)), b.input("residual", (64, 96))
    y = b.op("add", x, residual)
    scale = draw_numbers(96, dtype="float32")
    module = legal(b, y, b.op("nn.rms_norm", y, scale, axes=(1,), epsilon=1e-5))
    assert kernels(module) == [{"add", "nn.rms_norm"}]


# --- stay apart ---------------------------------------------------------------------------------------------------
def apart(build: Callable[[FunctionBuilder], tuple[Expr, ...]]) -> list[set[str]]:
    b = FunctionBuilder()
    found = kernels(legal(b, *build(b)))
    assert len(found) > 1
    return found


def two(b: FunctionBuilder, shape: tuple[int, ...], other: tuple[int, ...] = (), dtype: str = "float32") -> list[Var]:
    return [b.input("x", shape), b.input("y", other or shape, dtype)]


def test_large_ones_that_have_nothing_in_common():
    assert len(apart(lambda b: tuple(b.op("exp", x) for x in two(b, LARGE)))) == 2


def test_how_large_is_an_option():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(*(b.op("exp", x) for x in two(b, LARGE)))})
    with PassContext(options={"fuse_siblings.small_bytes": 1 << 30}):
        assert len(kernels(LEGALIZE(module))) == 1


def test_different_points():
    apart(lambda b: tuple(b.op("exp", x) for x in two(b, (4, 8), (8, 4))))


def test_sizes_that_may_differ():
    b = FunctionBuilder()
    x, y = b.input("x", (N, 8)), b.input("y", (3, 8))
    assert len(kernels(legal(b, b.op("exp", x), b.op("exp", y)))) == 2


def test_lanes_of_another_width():
    apart(lambda b: (b.op("exp", two(b, (4, 8))[0]), b.op("negative", b.input("z", (4, 8), "float64"))))


def test_transposed_beside_straight():
    apart(lambda b: (b.op("permute_dims", b.input("x", (64, 64)), axes=(1, 0)), b.op("exp", b.input("y", (64, 64)))))


def test_one_long_axis_beside_short_rows():
    """Walked as one axis of 300 the first fills vectors; in rows of 3 it would not."""
    apart(lambda b: (b.op("exp", b.input("x", (100, 3))), b.op("add", b.input("y", (100, 3)), b.input("c", (3,)))))


def test_products_stay_alone():
    b = FunctionBuilder()
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    y = b.op("matmul", x, w)
    module = legal(b, y, b.op("exp", y), b.op("nn.relu", y), b.op("matmul", x, x))
    assert kernels(module) == [{"matmul"}, {"exp", "nn.relu"}, {"matmul"}]


def test_products_of_rows_stay_alone():
    b = FunctionBuilder()
    x, w = b.input("x", (64, 96)), b.input("w", (96, 96))
    y = b.op("matmul", x, w)
    assert kernels(legal(b, y, b.op("nn.softmax", y, axis=1))) == [{"matmul"}, {"nn.softmax"}]
    b = FunctionBuilder()
    x, w = b.op("exp", b.input("x", (64, 96))), b.input("w", (96, 1))
    assert kernels(legal(b, x, b.op("matmul", x, w))) == [{"exp"}, {"matmul"}]


def test_few_rows_and_reductions_across():
    apart(lambda b: (b.op("max", (x := b.input("x", (4, 512))), axes=(1,)), b.op("sum", x, axes=(1,))))
    apart(lambda b: (b.op("max", (x := b.input("x", (64, 96))), axes=(0,)), b.op("sum", x, axes=(1,))))
    apart(lambda b: (b.op("max", (x := b.input("x", (64, 96))), axes=(0,)), b.op("sum", x, axes=(0,))))


def test_windows_are_no_rows():
    b = FunctionBuilder()
    x = b.input("x", (1, 8, 32, 32))
    pools = [b.op(name, x, pool_size=(3, 3)) for name in ("nn.max_pool2d", "nn.avg_pool2d")]
    assert len(kernels(legal(b, *pools))) == 2


def test_what_runs_in_order():
    b = FunctionBuilder()
    x = b.input("x", (64, 96))
    assert len(kernels(legal(b, b.op("cumsum", x, axis=1), b.op("cumsum", x, axis=1, reverse=True)))) == 2


def test_recurrences_one_after_another():
    b = FunctionBuilder()
    gates, weights = b.input("x", (5, 2, 3)), b.input("w", (3, 3))
    module = legal(b, recurrent(b, recurrent(b, gates, weights), weights))
    assert sum("nn.rnn" in ops for ops in kernels(module)) == 2


def test_recurrences_of_other_numbers_of_steps():
    b = FunctionBuilder()
    weights = b.input("w", (3, 3))
    layers = [recurrent(b, b.input(f"x{steps}", (steps, 2, 3)), weights) for steps in (4, 5)]
    assert sum("nn.rnn" in ops for ops in kernels(legal(b, *layers))) == 2


def test_no_cycle_is_made():
    """exp and sin are alike, and what reads the first is on the way to the second."""
    b = FunctionBuilder()
    first = b.op("exp", b.input("x", (8, 8)))
    second = b.op("sin", b.op("cumsum", first, axis=0))
    module = legal(b, first, second)
    assert kernels(module) == [{"exp"}, {"cumsum"}, {"sin"}]


def test_no_cycle_by_way_of_what_was_put_together():
    """sin and cos are one kernel: then the last tanh is behind the first exp, though it does not need it."""
    b = FunctionBuilder()
    first = b.op("exp", b.input("x", (8, 8)))
    second, other = b.op("sin", b.op("cumsum", first, axis=0)), b.op("cos", b.input("y", (8, 8)))
    third = b.op("tanh", b.op("cumsum", other, axis=1))
    module = legal(b, first, second, other, third)
    assert kernels(module) == [{"exp"}, {"cumsum"}, {"sin", "cos"}, {"cumsum"}, {"tanh"}]


def test_number_of_tensors_is_bounded():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    module = legal(b, *(b.op("add", x, float(n)) for n in range(1, 2 * MOST_TENSORS)))
    assert max(outputs(module)) == MOST_TENSORS - 1
    assert len(kernels(module)) == 3


def test_number_of_operations_is_bounded():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    for number in range(300):
        x = b.op(("tanh", "sigmoid")[number % 2], x)
    module = legal(b, x)
    found = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    assert len(kernels(module)) > 1
    assert all(cost(*(e for block in f.blocks for e in block.expressions)) <= MOST_OPERATIONS for f in found)


def test_siblings_are_looked_for_nearby():
    b = FunctionBuilder()
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    results = [b.op("exp", x)]
    for _ in range(WINDOW):
        w = b.op("matmul", w, w)
    assert {"exp", "sin"} not in kernels(legal(b, *results, w, b.op("sin", x)))


def test_nothing_moves_past_an_effect():
    b = FunctionBuilder()
    x = b.input("x", (4, 8))
    first = b.op("exp", x)
    b.op("random.uniform", shape=(2,), low=0.0, high=1.0)
    assert kernels(legal(b, first, b.op("sin", x))) == [{"exp"}, {"sin"}]


def test_nothing_to_do_is_no_change():
    b = FunctionBuilder()
    module = LEGALIZE(IRModule({"main": b.function(b.op("exp", b.input("x", (4,))))}))
    assert FuseSiblings()(module) is module


def test_equal_groups_share_one_kernel():
    b = FunctionBuilder()
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    results: list[Expr] = []
    for _ in range(2):
        results += [b.op("exp", x), b.op("sin", x)]
        x = b.op("matmul", results[-1], w)
    module = legal(b, *results, x)
    assert kernels(module) == [{"exp", "sin"}, {"matmul"}] * 2
    assert outputs(module) == [1, 2]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graph=fused_graphs(max_ops=12))
def test_meaning_of_random_graphs(graph: FusedGraph):
    module = LEGALIZE(graph.module)
    verify(module)
    for number, case in enumerate(graph.cases):
        graph.check(number, run(module, case.inputs))
