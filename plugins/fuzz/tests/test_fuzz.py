"""The generator, the bound, the oracles and the campaign."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from byte_products import HAS_BYTE_PRODUCTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.ir import Call, FunctionBuilder, IRModule, get_op, verify
from kernelyard.ops.interpreter import run
from kernelyard.patterns import FusionPattern, Matcher, is_op, wildcard
from kernelyard.patterns.templates import swaps_last_two
from kernelyard.transform import MergeCompositeFunctions
from kernelyard_fuzz import campaign as campaigns
from kernelyard_fuzz import oracles, quantized, untaken
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.bound import compute_expected
from kernelyard_fuzz.campaign import all_patterns, try_seeds
from kernelyard_fuzz.chooser import SeededChooser
from kernelyard_fuzz.configuration import SHARES, Configuration, random_configuration
from kernelyard_fuzz.coverage import choose_favoured, find_never_taken
from kernelyard_fuzz.drawn_patterns import check_drawn
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.graphs import Graph, Recipe, graph_of_seed, graphs
from kernelyard_fuzz.idioms import IDIOMS, idiom
from kernelyard_fuzz.operators import grow
from kernelyard_fuzz.oracles import Taken, check
from kernelyard_fuzz.programs import check_called
from kernelyard_fuzz.quantized import add_quantized_layers
from kernelyard_fuzz.sketch import Sketch, is_tame
from kernelyard_fuzz.spliced import _holds, check_spliced
from kernelyard_fuzz.splices import splice
from kernelyard_fuzz.symbolic import resize_feeds, symbols, with_symbols
from kernelyard_fuzz.twins import RULES, _rewrite
from kernelyard_fuzz.untaken import find_untaken_patterns
from kernelyard_fuzz.writer import RefusedError, Writer

RECIPE = Recipe(patterns=all_patterns())


def one_op(name, *arrays, **attrs) -> Graph:
    b = FunctionBuilder()
    inputs = [b.input(f"x{n}", array.shape, array.dtype.name) for n, array in enumerate(arrays)]
    return Graph(IRModule({"main": b.function(b.op(name, *inputs, **attrs))}), arrays)


# --- the generator ----------------------------------------------------------------------------------------------------
def test_graphs_verify_and_stay_finite():
    names = set()
    for seed in range(100):
        graph = graph_of_seed(seed, RECIPE)
        verify(graph.module)
        assert all(map(is_tame, run(graph.module, list(graph.feeds))))
        names |= {b.value.op_name for b in graph.module["main"].bindings if isinstance(b.value, Call)}
    assert len(names) > 100
    assert {"if", "while", "dequantize", "nn.conv2d", "matmul"} <= names


def test_boxes_of_a_group_come_one_after_another():
    """As the operator asks for: random groups would be suppressed by boxes that are none of their own, or not."""
    groups = [
        np.asarray(sketch.value(call.args[1]))
        for seed in range(20)
        for sketch in (Sketch(),)
        for var in grow(SeededChooser(seed), sketch, get_op("image.suppress_boxes"))
        for call in (next(each.value for each in sketch.builder.bindings if each.var is var),)
    ]
    assert len(groups) > 10
    assert all((np.diff(each) >= 0).all() for each in groups)


def test_a_seed_makes_the_same_graph_again():
    one, other = (graph_of_seed(7, RECIPE) for _ in range(2))
    assert str(one.module) == str(other.module)
    assert all(map(np.array_equal, one.feeds, other.feeds))


@settings(max_examples=5, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example])
@given(graph=graphs(Recipe(smallest=1, largest=4)), seed=st.integers(0, 1 << 20))
def test_hypothesis_draws_graphs(graph, seed):
    chooser = SeededChooser(seed)
    check(graph, random_configuration(chooser), chooser, Taken())


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms_are_written(name):
    """As they are meant, with numbers that are off, and of values of any rank."""
    written = 0
    for seed in range(30):
        sketch = Sketch()
        shape = ((2, 3, 5, 5), (4, 8), (3,))[seed % 3]
        x = sketch.input(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
        with suppress(RefusedError):
            IDIOMS[name](Writer(SeededChooser(seed), sketch), x)
            written += 1
        verify(sketch.module())
    assert written >= 8


def test_most_patterns_can_be_spliced():
    made = {p.name for p in RECIPE.patterns for seed in range(8) if splice(SeededChooser(seed), Sketch(), p)}
    assert len(made) >= 30, sorted({p.name for p in RECIPE.patterns} - made)


def test_quantized_layers_are_integers_on_both_sides():
    """An operator between dequantize and quantize, whose weights are dequantized, too."""
    between, weighted = set(), set()
    for seed in range(80):
        sketch = Sketch()
        add_quantized_layers(SeededChooser(seed), sketch, RECIPE.layers, RECIPE.ops, None)
        values = {b.var: b.value for b in sketch.builder.bindings if isinstance(b.value, Call)}
        names = {var: call.op_name for var, call in values.items()}
        for call in values.values():
            layer = values.get(call.args[0]) if call.op_name == "quantize" else None
            decoded = [names.get(arg) == "dequantize" for arg in layer.args] if layer else []
            between |= {layer.op_name} if any(decoded) else set()
            weighted |= {layer.op_name} if sum(decoded) > 1 else set()
    assert len(between) >= 12, between
    assert weighted & {"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "add"}


def test_idioms_read_floats(monkeypatch):
    """Most of what was drawn came to nothing: a recent value is as often integers, or one number."""
    written = Counter[bool]()

    def write(*given):
        name = idiom(*given)
        written[bool(name)] += 1
        return name

    monkeypatch.setattr(sys.modules[Graph.__module__], "idiom", write)
    for seed in range(100):
        graph_of_seed(seed, RECIPE)
    assert written[True] > 4 * written[False] > 0


def test_no_scale_makes_denormal_numbers_large():
    """Libraries take them for zeros, and may: what they would be in steps of such a scale, nothing bounds."""
    for dtype, seed in itertools.product(("int8", "uint8"), range(5)):
        tiny, none, habits = Interval(-1e-39, 6e-39), Interval(0.0, 0.0), quantized.Habits(0, 0, 0)
        found, wanted = (
            quantized._parameters(SeededChooser(seed), Sketch(), each, dtype, (3,), habits) for each in (tiny, none)
        )
        assert Sketch().value(found.scale).min() > 1e-3
        assert Sketch().value(found.zero).tolist() == Sketch().value(wanted.zero).tolist()


def test_weights_of_channels_and_padded_maxima_are_as_networks_have_them():
    """A scale for each channel of the result, and zeros around what is never negative: what rewrites ask for."""
    kinds = Counter[str]()
    for seed in range(150):
        values = {
            b.var: b.value for b in graph_of_seed(seed, RECIPE).module["main"].bindings if isinstance(b.value, Call)
        }
        for call in values.values():
            read = [values.get(arg) for arg in call.args]
            names = [None if each is None else each.op_name for each in read]
            if call.op_name.startswith("nn.conv") and names[1:] == ["dequantize"]:
                kinds["by channel"] += read[1].args[1].tensor_type.rank == 1
            if call.op_name == "nn.max_pool2d" and names == ["pad"]:
                kinds["padded"] += values[call.args[0]].attrs["value"] == 0
    assert min(kinds["by channel"], kinds["padded"]) >= 1, kinds


def test_stored_tensors_meet_with_zero_points_of_their_own():
    """A product of two that are both shifted is none of a library's; few samples would have it."""
    shifted = Counter[str]()
    for seed, name in itertools.product(range(20), ("add", "multiply")):
        sketch = Sketch()
        add_quantized_layers(SeededChooser(seed), sketch, [get_op(name)], [get_op(name)], None)
        values = {b.var: b.value for b in sketch.builder.bindings if isinstance(b.value, Call)}
        for call in values.values():
            read = [values.get(arg) for arg in call.args] if call.op_name == name else []
            zeros = [each.args[2] for each in read if each is not None and each.op_name == "dequantize"]
            shifted[name] += len(zeros) == 2 and all(sketch.value(zero).any() for zero in zeros)
    assert min(shifted["add"], shifted["multiply"]) >= 4, shifted


def test_sizes_become_symbols():
    found = [with_symbols(SeededChooser(seed), graph_of_seed(seed, RECIPE).module) for seed in range(60)]
    symbolic = [module for module in found if module is not None]
    assert len(symbolic) >= 20
    assert all(symbols(module) == {"n"} for module in symbolic)


@pytest.mark.parametrize("rule", RULES)
def test_twins_compute_the_same(rule):
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    graph = one_op("tanh", x)
    main = graph.module["main"]
    for seed in range(5):
        other = _rewrite(main, {main.params[0]}, RULES[rule], SeededChooser(seed))
        assert other is not None
        assert np.allclose(run(IRModule({"main": other}), [x])[0], np.tanh(x), atol=1e-6)


# --- the bound --------------------------------------------------------------------------------------------------------
def test_the_bound_follows_the_condition():
    """Where a result is a small difference of large numbers, or a step is near, more is allowed."""
    x = np.float32([1.0, 1.0])
    sums = compute_expected(
        one_op("subtract", x, np.float32([1.0000001, 0.5])).module, [x, np.float32([1.0000001, 0.5])]
    )[0]
    assert sums.slack[0] > abs(sums.value[0])
    assert sums.slack[1] < 1e-4
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("floor", b.op("multiply", b.input("x", (2,)), 2.0)))})
    steps = compute_expected(module, [np.float32([0.5, 0.75])])[0]
    assert steps.slack[0] >= 1
    assert steps.slack[1] == 0
    assert steps.worst(np.float32([0.0, 1.0])) <= 1 < steps.worst(np.float32([1.0, 0.0]))


def test_a_wide_result_of_narrow_numbers_may_show_their_rounding():
    x = np.float32([1.5])
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("astype", b.op("tanh", b.input("x", (1,))), dtype="float64"))})
    wide = compute_expected(module, [x])[0]
    assert wide.worst(np.tanh(np.float64([1.5])) * (1 + 3e-5)) <= 1
    assert wide.worst(np.tanh(np.float64([1.5])) * (1 + 1e-3)) > 1


def test_what_underflows_may_be_zero():
    x = np.float32([[0.0, -100.0]])
    b = FunctionBuilder()
    module = IRModule(
        {"main": b.function(b.op("astype", b.op("nn.softmax", b.input("x", (1, 2)), axis=1), dtype="bool"))}
    )
    is_nonzero = compute_expected(module, [x])[0]
    assert is_nonzero.worst(np.array([[True, False]])) <= 1
    assert is_nonzero.worst(np.array([[False, False]])) > 1


@pytest.mark.parametrize("op", ["nn.gelu", "nn.gelu_tanh"])
def test_where_an_operator_subtracts_nearly_equal_numbers_it_may_lose_their_last_digits(op):
    x = np.float32([-4.0, 1.0])
    tail = compute_expected(one_op(op, x).module, [x])[0]
    right = tail.value
    assert tail.worst((right + [2**-22, 0]).astype(np.float32)) <= 1
    assert tail.worst((right + [1e-4, 0]).astype(np.float32)) > 1
    far = np.float32([-8.0])
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("astype", b.op(op, b.input("x", (1,))), dtype="bool"))})
    assert compute_expected(module, [far])[0].worst(np.array([False])) <= 1


def test_a_softplus_far_below_zero_may_be_zero():
    x = np.float32([-14.0])
    softplus = compute_expected(one_op("nn.softplus", x).module, [x])[0]
    assert softplus.worst(np.float32([0.0])) <= 1 < softplus.worst(np.float32([1e-5]))


def test_a_mish_far_below_zero_may_be_zero():
    x = np.float32([-27.0, -1.0])
    mish = compute_expected(one_op("nn.mish", x).module, [x])[0]
    assert mish.worst(np.float32([0.0, mish.value[1]])) <= 1 < mish.worst(np.float32([1e-4, mish.value[1]]))


def test_a_product_whose_large_factors_overflow_depends_on_their_order():
    x = np.array([[1e30, 1e30, 0.0], [1e10, 1e-10, 2.0]], np.float32)
    products = compute_expected(one_op("prod", x, axes=(1,)).module, [x])[0]
    assert products.worst(np.float32([np.nan, 2.0])) <= 1 < products.worst(np.float32([0.0, 2.1]))


def test_what_is_nearly_equal_may_be_equal():
    x, y = np.float32([1.0, 1.0, 2.0]), np.float32([1.0, 1.0000001, 3.0])
    for op, right in (("equal", [True, False, False]), ("not_equal", [False, True, True])):
        b = FunctionBuilder()
        computed = [b.op("multiply", b.input(name, (3,)), 1.0) for name in ("x", "y")]
        each = compute_expected(IRModule({"main": b.function(b.op(op, *computed))}), [x, y])[0]
        right = np.array(right)
        assert each.worst(right) <= 1
        assert each.worst(right ^ [True, True, False]) <= 1 < each.worst(right ^ [False, False, True])


def test_what_is_nearly_zero_may_be_false():
    x = np.array([1.0, 1e-3, 0.5], ml_dtypes.bfloat16)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("astype", b.input("x", (3,), "bfloat16"), dtype="bool"))})
    is_nonzero = compute_expected(module, [x])[0]
    assert is_nonzero.worst(np.array([True, False, True])) <= 1 < is_nonzero.worst(np.array([True, True, False]))


def test_norms_of_what_hardly_varies_and_coordinates_may_show_their_rounding():
    x, one = np.float32([[[1.5]], [[-0.5]]]), np.float32([1.0])  # a variance of 0, so that x is taken times 316
    norm = compute_expected(one_op("nn.instance_norm", x, one, one).module, [x, one, one])[0]
    assert norm.worst(np.float32([[[1 + 4e-5]], [[1.0]]])) <= 1
    assert norm.worst(np.float32([[[1 + 1e-2]], [[1.0]]])) > 1
    x, ones = np.full((1, 4, 5000), 1.5, np.float32), np.ones(4, np.float32)
    groups = compute_expected(one_op("nn.group_norm", x, ones, ones, num_groups=1).module, [x, ones, ones])[0]
    assert groups.worst(groups.value.astype(np.float32) + np.float32(1e-3)) <= 1
    assert groups.worst(groups.value.astype(np.float32) + np.float32(1e-1)) > 1
    image = np.zeros((1, 1, 1801), np.float32)
    image[..., ::2] = 900
    module = one_op("image.resize", image, sizes=(7,), method="linear").module
    resized = compute_expected(module, [image])[0]
    assert resized.worst((resized.value + 900 * 1801 * 2**-23).astype(np.float32)) <= 1
    assert resized.worst((resized.value + 5).astype(np.float32)) > 1


def test_bits_may_be_those_of_what_a_kernel_may_give():
    x = np.float32([-3.0, 0.5])
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("reinterpret", b.op("exp", b.input("x", (2,))), dtype="int32"))})
    bits = compute_expected(module, [x])[0]
    assert bits.worst((np.exp(x) * np.float32(1 + 3e-5)).view(np.int32)) <= 1
    assert bits.worst((np.exp(x) * np.float32(1 + 1e-2)).view(np.int32)) > 1


def test_what_has_not_all_of_its_digits_may_lose_more():
    x = np.array([3e-323, 1.0])
    halves = compute_expected(one_op("multiply", x, np.array([0.1, 1.0])).module, [x, np.array([0.1, 1.0])])[0]
    assert halves.worst(np.array([0.0, 1.0])) <= 1 < halves.worst(np.array([3e-323, 1.001]))


def test_the_bound_refuses_what_is_no_result():
    each = compute_expected(one_op("tanh", np.ones(3, np.float32)).module, [np.ones(3, np.float32)])[0]
    right = np.tanh(np.ones(3, np.float32))
    assert each.worst(right) <= 1
    assert each.worst(right + np.float32(1e-3)) > 1
    assert each.worst(right.astype(np.float64)) == each.worst(right[:2]) == each.worst(right * np.nan) == np.inf


def test_patterns_are_spliced_with_attributes_that_fulfil_a_condition():
    pattern = next(pattern for pattern in RECIPE.patterns if pattern.name == "dnnl.transposed_matmul")
    found: list[tuple[int, ...]] = []
    for seed in range(40):
        sketch = Sketch()
        splice(SeededChooser(seed), sketch, pattern)
        values = [binding.value for binding in sketch.builder.bindings]
        found += [v.attrs["axes"] for v in values if isinstance(v, Call) and v.op_name == "permute_dims"]
    fulfilling = sum(map(swaps_last_two, found))
    assert len(found) > fulfilling > 0.6 * len(found)  # one now and then is near what is asked for


def test_drawn_patterns_match_as_a_plain_search_says():
    for seed in range(20):
        check_drawn(SeededChooser(seed), graph_of_seed(seed, RECIPE).module)


def test_a_matcher_that_takes_other_constants_is_found(monkeypatch):
    monkeypatch.setattr("kernelyard.patterns.matching.feasibility._holds_only", lambda constant, value, rtol: True)

    def draw_from_many() -> None:
        for seed in range(200):
            check_drawn(SeededChooser(seed), graph_of_seed(seed, RECIPE).module)

    with pytest.raises(FoundError, match="a match"):
        draw_from_many()


def test_symbols_say_sizes_that_follow_from_others():
    b = FunctionBuilder()
    x, y = b.input("x", (3, 4)), b.input("y", (4, 4))
    module = IRModule({"main": b.function(b.op("negative", x), b.op("negative", y))})
    found = {
        str(made["main"].params[1].type) for seed in range(80) if (made := with_symbols(SeededChooser(seed), module))
    }
    assert any("n + 1" in type_ for type_ in found), found


# --- the oracles ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [{}, {"compiled": False}, {"each_pass": True}], ids=str)
def test_a_wrong_pass_is_named(monkeypatch, how):
    from kernelyard.transform.simplify.canonicalize import Canonicalize

    def wrong(self, module, context):
        return one_op("negative", np.ones(3, np.float32)).module

    monkeypatch.setattr(Canonicalize, "run", wrong)
    with pytest.raises(FoundError) as found:
        check(one_op("exp", np.ones(3, np.float32)), Configuration(**how), SeededChooser(0), Taken())
    assert (found.value.oracle, found.value.kind, found.value.place) == ("pass", "values", "canonicalize")


def test_a_wrong_result_is_found(monkeypatch):
    def wrong(oracle, exe, feeds):
        return [np.zeros(3, np.float32)]

    monkeypatch.setattr(oracles, "run_program", wrong)
    with pytest.raises(FoundError, match="times the bound"):
        check(one_op("exp", np.ones(3, np.float32)), Configuration(), SeededChooser(0), Taken())


def exponential() -> tuple[IRModule, np.ndarray]:
    b = FunctionBuilder()
    x = b.input("x", (ky.dims.symbol("n"), 3))
    names = {"input_names": ("in",), "output_names": ("out",)}
    return IRModule({"main": b.function(b.op("exp", x), attrs=names)}), np.ones((5, 3), np.float32)


def test_a_program_is_called_by_names_with_strided_operands():
    module, feed = exponential()
    exe = ky.compile(module, backends=[])
    check_called(exe, module, [feed], [exe(feed).numpy()])
    other = IRModule({"main": module["main"].with_attrs(input_names=("x",), output_names=("out",))})
    with pytest.raises(FoundError, match="names"):
        check_called(exe, other, [feed], [exe(feed).numpy()])
    with pytest.raises(FoundError, match="other bits"):
        check_called(exe, module, [feed], [feed])


def test_a_program_of_symbols_is_run_with_other_sizes(monkeypatch):
    module, feed = exponential()
    (other,) = resize_feeds(SeededChooser(2), module, [feed])
    assert other.shape[0] != 5
    assert other.shape[1:] == (3,)
    known = oracles.run_program

    def wrong(oracle, exe, feeds):
        return [np.zeros_like(feeds[0])] if oracle == "resized" else known(oracle, exe, feeds)

    monkeypatch.setattr(oracles, "run_program", wrong)
    monkeypatch.setattr(oracles, "with_symbols", lambda chooser, given: module)
    with pytest.raises(FoundError) as found:
        check(Graph(module, (feed,)), Configuration((), symbolic=True), SeededChooser(2), Taken())
    assert found.value.oracle == "resized"


def test_what_is_built_from_a_pattern_is_matched():
    made = matched = 0
    for pattern, seed in itertools.product(RECIPE.patterns, range(3)):
        sketch = Sketch()
        if splice(SeededChooser(seed), sketch, pattern) is not None:
            check_spliced(sketch.module(), sketch.spliced)
            made += 1
            matched += _holds(sketch.spliced[0], {b.var: b.value for b in sketch.builder.bindings})
    assert matched > 0.75 * made > 30


def test_a_pattern_that_is_not_matched_is_found(monkeypatch):
    sketch = Sketch()
    pattern = FusionPattern("some.relu", is_op("nn.relu")(wildcard()))
    assert splice(SeededChooser(0), sketch, pattern) is not None
    monkeypatch.setattr(Matcher, "matches", lambda self, pattern, expr: iter(()))
    with pytest.raises(FoundError, match="0 matches, none as it was built"):
        check_spliced(sketch.module(), sketch.spliced)


def test_what_is_wrong_while_a_backend_is_asked_is_told(monkeypatch):
    """The guard around the backend takes it for the plugin's own failure, with and without code generated."""
    graph, other = (one_op(name, np.ones((4, 4), np.float32)) for name in ("exp", "negative"))
    monkeypatch.setattr(MergeCompositeFunctions, "run", lambda self, module, context: other.module)
    for compiled in (False, True):
        with pytest.raises(FoundError, match="times the bound") as found:
            check(graph, Configuration(("dnnl",), compiled=compiled), SeededChooser(0), Taken())
        assert (found.value.oracle, found.value.place) == ("pass", "MergeCompositeFunctions")


def test_what_rounding_decides_is_left_out():
    b = FunctionBuilder()
    table, at = b.input("table", (4,)), b.op("add", b.input("at", (1,)), np.float32(1.5e-7))  # 4 in float32 alone
    module = IRModule({"main": b.function(b.op("take", table, b.op("astype", at, dtype="int64"), axis=0))})
    graph = Graph(module, (np.ones(4, np.float32), np.nextafter(np.float32([4]), np.float32(0))))
    check(graph, Configuration(), SeededChooser(0), taken := Taken())
    assert taken.counts["oracle", "undefined"] == 1
    assert not taken.counts["oracle", "run"]


def test_what_is_not_compiled_is_placed():
    graph = one_op("matmul", np.ones((64, 64), np.float32), np.ones((64, 64), np.float32))
    check(graph, Configuration(("dnnl",), compiled=False), SeededChooser(0), taken := Taken())
    assert taken.counts["pattern", "dnnl.matmul"]
    assert not taken.counts["oracle", "run"]


def test_all_of_a_configuration_is_checked():
    flags = dict.fromkeys(SHARES, True)
    how = Configuration((), ("simplify.fold_scale_axis",), 2, **flags)
    check(graph_of_seed(3, RECIPE), how, SeededChooser(3), taken := Taken())
    assert taken.counts["pass", "legalize_ops"]


# --- the campaign -----------------------------------------------------------------------------------------------------
def test_a_crash_is_a_find_and_others_go_on(monkeypatch):
    def crash(graph, how, chooser, taken):
        if chooser.below(1 << 30) % 3 == 0:
            os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(campaigns, "check", crash)
    tally = try_seeds(range(12), Recipe(smallest=1, largest=2))
    assert tally.graphs == 12
    assert tally.finds
    assert {(find.oracle, find.kind) for find in tally.finds} == {("process", "crash")}


@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0)], ids=["kill", "exit"]
)
def test_a_worker_that_ends_without_a_word_is_a_find(monkeypatch, end):
    """By the system, which needs the memory, or by a library that ends the process."""
    monkeypatch.setattr(campaigns, "check", lambda graph, how, chooser, taken: end())
    tally = try_seeds([3, 9], Recipe(smallest=1, largest=2))
    assert tally.graphs == 2
    assert [(find.seed, find.oracle, find.kind) for find in tally.finds] == [
        (3, "process", "crash"),
        (9, "process", "crash"),
    ]


def test_what_a_campaign_did_is_written_as_it_goes(monkeypatch, tmp_path):
    def killed(tally):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaigns, "check", lambda *given: None)
    monkeypatch.setattr(campaigns, "BATCH", 2)
    with pytest.raises(KeyboardInterrupt):
        campaigns.run_campaign(7, 1000, Recipe(smallest=1, largest=2), killed, tmp_path)
    facts = json.loads((tmp_path / "campaign.json").read_text())
    assert (facts["first"], facts["next"], facts["graphs"]) == (7, 9, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["campaign.json"]


def test_a_hang_is_a_find(monkeypatch):
    monkeypatch.setattr(campaigns, "check", lambda *given: signal.pause())
    monkeypatch.setattr(campaigns, "SLEEP", 1)
    assert [find.kind for find in try_seeds(range(1), Recipe(smallest=1, largest=2)).finds] == ["hang"]


def test_a_graph_that_cannot_be_made_is_a_find_and_is_written(monkeypatch, tmp_path):
    def broken(chooser, recipe):
        raise AssertionError("pad: the reference and the type rule disagree")

    monkeypatch.setattr(campaigns, "random_graph", broken)
    monkeypatch.setattr(campaigns, "BATCH", 2)
    tally = campaigns.run_campaign(3, 0, Recipe(smallest=1, largest=2), folder=tmp_path)
    assert [(find.seed, find.oracle, find.kind) for find in tally.finds] == [
        (3, "worker", "error"),
        (4, "worker", "error"),
    ]
    assert "disagree" in json.loads((tmp_path / "seed_3" / "find.json").read_text())["message"]


def test_a_graph_that_hangs_when_it_is_made_again_does_not_end_a_campaign(monkeypatch, tmp_path):
    monkeypatch.setattr(campaigns, "random_graph", lambda *given: signal.pause())
    monkeypatch.setattr(campaigns, "SLEEP", 1)
    monkeypatch.setattr(campaigns, "BATCH", 1)
    tally = campaigns.run_campaign(3, 0, Recipe(smallest=1, largest=2), folder=tmp_path)
    assert [(find.seed, find.kind) for find in tally.finds] == [(3, "hang")]
    assert [path.name for path in (tmp_path / "seed_3").iterdir()] == ["find.json"]


# The command for two graphs, and with an oracle that finds all of them wrong.
TWO_GRAPHS = """
import sys
from kernelyard_fuzz import campaign
from kernelyard_fuzz.command import command
from kernelyard_fuzz.errors import FoundError

def wrong(*given):
    raise FoundError("run", "values", "wrong")

campaign.BATCH = 2
if sys.argv.pop(1) == "wrong":
    campaign.check = wrong
command()
"""


def run_command(*arguments):
    """In a process of its own: workers are forked, and the threads and locks of other tests would be in them."""
    return subprocess.run([sys.executable, "-c", TWO_GRAPHS, *arguments], capture_output=True, text=True, check=False)


def test_the_command_counts_and_writes_finds(tmp_path):
    done = run_command("right", "--minutes", "0", "--seed", "5", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert (facts["graphs"], facts["finds"], facts["seed"]) == (2, [], 5)
    done = run_command("wrong", "--minutes", "0", "--seed", "5", "-o", str(tmp_path))
    assert done.returncode == 1
    assert "seed 5: run: values: wrong" in done.stdout
    assert "pattern that never took part" in done.stdout
    again = run_command("wrong", "--replay", str(tmp_path / "seed_5"))
    assert again.returncode == 1
    assert "seed 5: run: values: wrong" in again.stdout
    assert run_command("right", "--replay", str(tmp_path)).returncode == 1
    from kernelyard_debug import load_case

    case = load_case(tmp_path / "seed_5")
    assert run(case.module, case.feeds)


def test_operators_that_no_kernel_can_have_are_not_asked_for():
    """Else they would take the places of what is rare: references run them."""
    none = Counter[tuple[str, str]]()
    missing = find_never_taken(none, RECIPE)["kernel"]
    assert {"exp", "nn.conv2d", "topk"} <= set(missing)
    assert not {"det", "round_to_format"} & {*missing, *choose_favoured(none, RECIPE)}


def test_what_cannot_take_part_leaves_places_to_others():
    """Where a processor lacks instructions, patterns are never taken, however often they are tried."""
    missing = find_never_taken(Counter(), RECIPE)
    every = [(kind, name) for kind in ("pattern", "kernel") for name in missing[kind]]
    taken = Counter({name: 2 + at for at, name in enumerate(every)})
    impossible = {name for _, name in every[:20]}
    for name in every[:20]:
        del taken[name]
    turns = []
    for tried in range(0, 20, 5):
        taken["oracle", "reference"] = tried
        turns.append(choose_favoured(taken, RECIPE))
    places = len(turns[0])
    assert all(len(each & impossible) == places // 3 for each in turns)
    assert impossible == set().union(*turns) & impossible
    assert {name for _, name in every[20:25]} <= set.intersection(*map(set, turns))


# --- backends ---------------------------------------------------------------------------------------------------------
def test_patterns_that_nothing_brings_about_are_named(monkeypatch):
    """Each has graphs of its own; a check that refuses all of them makes no result wrong."""
    of_integers = ("dnnl.quantized_conv2d",) if HAS_BYTE_PRODUCTS else ()  # without VNNI oneDNN declines all
    names = ("dnnl.conv2d", "dnnl.softmax", *of_integers)
    recipe = Recipe(patterns=tuple(pattern for pattern in RECIPE.patterns if pattern.name in names))
    assert find_untaken_patterns("dnnl", recipe) == ()
    monkeypatch.setattr(untaken, "TRIES", 0)
    assert set(find_untaken_patterns("dnnl", recipe)) == set(names)
