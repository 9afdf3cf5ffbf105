"""Convolutions by Winograd's algorithm: that it is used, its numbers beside float64, and what keeps it away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.errors import OptionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.abi.memory import Workspace, address_of, aligned_empty
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl import _native
from kernelyard_dnnl.primitives import winograd_choice
from kernelyard_dnnl.runtime import DnnlRuntime
from kernelyard_llvm.winograd import algorithm, choice
from kernelyard_llvm.winograd.choice import pad_to_vectors
from kernelyard_llvm.winograd.epilogue import BINARY, ELTWISE
from kernelyard_llvm.winograd.kernel import BLOCK
from kernelyard_llvm.winograd.record import MAX_OPERANDS

if not winograd_choice.vector_lanes():
    pytest.skip("no code of ours on this machine", allow_module_level=True)

TILES = tuple(algorithm.PAIRS)
# Of the largest sum of absolute products, wherever the filter stands: README.md says this.
ERROR = {2: 1e-6, 4: 3e-6}
RELU = {"kind": "eltwise", "algorithm": "relu"}


def convolved(x, weight, begin=(1, 1), end=(1, 1)):
    """The convolution in float64."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64), optimize=True)


def convolved_volumes(x, weight, begin, end):
    """The convolution of volumes in float64."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3, 4))
    return np.einsum("ncdhwkij,ockij->nodhw", windows, weight.astype(np.float64), optimize=True)


def error_of(actual, x, weight, *paddings):
    """The largest error, in parts of the largest sum of absolute products, wherever the filter stands.

    Zeros around a small image hide weights from its results, but not from the transformed weights, which are rounded.
    """
    scale = convolved(np.abs(x), np.abs(weight), (2, 2), (2, 2)).max()
    return np.abs(actual - convolved(x, weight, *paddings)).max() / scale


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def conv(builder, data, weight, shape, begin=(1, 1), end=(1, 1), post_ops=(), winograd=True, **operands):
    if isinstance(weight, np.ndarray):
        weight = builder.constant(weight)
    ones = (1,) * len(begin)
    return builder.kernel(
        "conv", shape, {"data": data, "weight": weight, **operands}, rank=len(begin), strides=ones, dilation=ones, groups=1,
        padding_begin=begin, padding_end=end, post_ops=list(post_ops), winograd=winograd,
    )  # fmt: skip


def implementation(ran):
    """What ran the one convolution."""
    (found,) = [name for label, name in ran if label.startswith("conv")]
    return found


@pytest.fixture(params=TILES, ids=lambda m: f"{m}x{m}")
def tile(request, monkeypatch):
    """Every convolution that may be done by tiles is, by tiles of this size."""
    monkeypatch.setattr(choice, "best_tile", lambda *_: request.param)
    return request.param


# --- numbers -------------------------------------------------------------------------------------------------------
@st.composite
def convolutions(draw):
    """Shapes (images, channels, height, width), filters, and padding on all sides."""
    shape = tuple(draw(st.integers(1, most)) for most in (3, 40, 15, 15))
    begin, end = (tuple(draw(st.integers(0, 3)) for _ in range(2)) for _ in range(2))
    assume(all(size + a + b >= 3 for size, a, b in zip(shape[2:], begin, end, strict=True)))
    return shape, draw(st.integers(1, 140)), begin, end


@pytest.mark.parametrize("m", TILES)
@given(convolutions(), st.sampled_from((1, 2, 3)), st.integers(0, 2**32 - 1))
def test_any_shape_and_padding(m, new_builder, convolution, threads, seed):
    shape, filters, begin, end = convolution
    x, weight = numbers(seed, *shape), numbers(seed + 1, filters, shape[1], 3, 3)
    sizes = [size + a + b - 2 for size, a, b in zip(shape[2:], begin, end, strict=True)]
    builder = new_builder()
    result = conv(builder, builder.input(shape), weight, (shape[0], filters, *sizes), begin, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "best_tile", lambda *_: m)
        (actual,), ran = builder.run([result], x, threads=threads)
    assert implementation(ran) == f"winograd:{m}x{m}"
    assert error_of(actual, x, weight, begin, end) < ERROR[m]


@st.composite
def convolutions_of_volumes(draw):
    """Shapes (volumes, channels, depth, height, width), filters, planes of a window, and padding on all sides."""
    shape = tuple(draw(st.integers(1, most)) for most in (3, 40, 5, 9, 9))
    begin, end = (tuple(draw(st.integers(0, 2)) for _ in range(3)) for _ in range(2))
    window = (draw(st.integers(1, 4)), 3, 3)
    assume(all(size + a + b >= w for size, a, b, w in zip(shape[2:], begin, end, window, strict=True)))
    return shape, draw(st.integers(1, 40)), window, begin, end


@pytest.mark.parametrize("m", TILES)
@given(convolutions_of_volumes(), st.sampled_from((1, 3)), st.integers(0, 2**32 - 1))
def test_volumes(m, new_builder, convolution, threads, seed):
    """A sum over the planes of a window is one over more channels."""
    shape, filters, window, begin, end = convolution
    x, weight = numbers(seed, *shape), numbers(seed + 1, filters, shape[1], *window)
    expected = convolved_volumes(x, weight, begin, end)
    builder = new_builder()
    result = conv(builder, builder.input(shape), weight, expected.shape, begin, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "best_tile", lambda *_: m)
        (actual,), ran = builder.run([result], x, threads=threads)
    name = implementation(ran)
    assert name == f"winograd:{m}x{m}" or 1 in expected.shape[2:], "one pixel wide, it may be one of images"
    wide = tuple(size - 1 for size in window)
    scale = convolved_volumes(np.abs(x), np.abs(weight), wide, wide).max()
    assert np.abs(actual - expected).max() / scale < ERROR[m]


@pytest.mark.parametrize(
    "shape", [(1, 24, 1, 1, 1), (2, 24, 4, 6, 6), (2, 24, 1, 1, 1), (1, 1, 4, 6, 6), (1, 1, 4, 1, 1)]
)
@pytest.mark.parametrize("volumes", [1, 2])
def test_operands_of_volumes(shape, volumes, tile, builder):
    """Leave other operands to others: they differ by the volume but not by the plane, or the other way round."""
    shape = (min(shape[0], volumes), *shape[1:])
    x, weight, other = numbers(0, volumes, 16, 4, 6, 6), numbers(1, 24, 16, 3, 3, 3), numbers(2, *shape)
    result = conv(
        builder, builder.input(x.shape), weight, (volumes, 24, 4, 6, 6), (1, 1, 1), (1, 1, 1),
        [RELU, {"kind": "binary", "algorithm": "mul", "role": "gate"}], gate=builder.input(shape),
    )  # fmt: skip
    (actual,), ran = builder.run([result], x, other)
    steps = [name for label, name in ran if label.startswith("conv")]
    is_even = volumes == 1 or (shape[0] == 1) == (shape[2] == 1)
    assert steps[0] == f"winograd:{tile}x{tile}"
    assert len(steps) == (1 if is_even else 2)
    expected = np.maximum(convolved_volumes(x, weight, (1, 1, 1), (1, 1, 1)), 0) * other
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_volumes_are_chosen_by_their_cost(builder):
    x, weight = numbers(0, 1, 32, 8, 16, 16), numbers(1, 32, 32, 3, 3, 3)
    result = conv(builder, builder.input(x.shape), weight, (1, 32, 8, 16, 16), (1, 1, 1), (1, 1, 1))
    _, ran = builder.run([result], x)
    assert implementation(ran).startswith("winograd")


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("filters", [1, 8, 24, 40, 64, 72])
def test_vectors_of_both_widths(lanes, filters, tile, monkeypatch, builder):
    """Processors with AVX2 have vectors of 8 floats, those with AVX-512 of 16."""
    if lanes > winograd_choice.vector_lanes():
        pytest.skip("this processor has no such vectors")
    monkeypatch.setattr(winograd_choice, "vector_lanes", lambda: lanes)
    x, weight = numbers(0, 1, 20, 10, 11), numbers(1, filters, 20, 3, 3)
    result = conv(builder, builder.input(x.shape), weight, (1, filters, 10, 11))
    (actual,), ran = builder.run([result], x)
    assert implementation(ran) == f"winograd:{tile}x{tile}"
    assert error_of(actual, x, weight) < ERROR[tile]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("blocks", [0.1, 0.9, 1, 1.7, 6.3])
def test_threads_share_a_block_or_have_their_own(threads, blocks, tile, builder):
    """Few tiles are one block that all work on; many are shared out block by block, the last one smaller."""
    images = max(1, round(blocks * BLOCK))
    x, weight = numbers(0, images, 64, tile, tile), numbers(1, 96, 64, 3, 3)  # each image is a tile
    result = conv(builder, builder.input(x.shape), weight, (images, 96, tile, tile))
    (actual,), ran = builder.run([result], x, threads=threads)
    assert implementation(ran) == f"winograd:{tile}x{tile}"
    assert error_of(actual, x, weight) < ERROR[tile]


def test_an_infinity_stays_in_its_tiles(tile, builder):
    """It makes NaN of other results of the tiles that read it, and of no more."""
    x, weight = numbers(0, 1, 4, 40, 40), numbers(1, 8, 4, 3, 3)
    x[0, 2, 20, 20] = np.inf
    result = conv(builder, builder.input(x.shape), weight, (1, 8, 40, 40))
    (actual,), ran = builder.run([result], x)
    assert implementation(ran) == f"winograd:{tile}x{tile}"
    wrong = np.argwhere(~np.isfinite(actual))[:, 2:]
    assert len(wrong)
    assert np.abs(wrong - 20).max() <= tile + 1


# --- post-ops ------------------------------------------------------------------------------------------------------
NUMPY = {
    "relu": lambda x: np.where(x > 0, x, 0.1 * x),
    "clip": lambda x: np.clip(x, 0.1, 1.5),
    "linear": lambda x: 0.1 * x + 1.5,
    "hardsigmoid": lambda x: np.clip(0.1 * x + 1.5, 0, 1),
    "hardswish": lambda x: x * np.clip(0.1 * x + 1.5, 0, 1),
    "abs": np.abs,
    "square": np.square,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "prelu": lambda x, slope: np.where(x > 0, x, slope * x),
}
OPERANDS = [(1, 37, 10, 9), (37, 1, 1), (10, 9), (1, 1, 1, 1), (2, 1, 1, 1)]


def small_weights():
    return numbers(1, 37, 5, 3, 3) / 7


def run_with_post_ops(builder, post_ops, operands=()):
    """A convolution of two images with a bias and post-ops: (result, what ran, the result without post-ops)."""
    x, weight, bias = numbers(0, 2, 5, 10, 9), small_weights(), numbers(2, 37)
    given = {f"post{i}": builder.input(operand.shape) for i, operand in enumerate(operands)}
    data, constant = builder.input(x.shape), builder.constant(bias)
    result = conv(builder, data, weight, (2, 37, 10, 9), post_ops=post_ops, bias=constant, **given)
    (actual,), ran = builder.run([result], *operands, x)
    return actual, ran, convolved(x, weight) + bias[:, None, None]


@pytest.mark.parametrize("algorithm", [name for name in ELTWISE if name != "round"])
def test_functions_are_fused(algorithm, tile, builder):
    post_ops = [{"kind": "eltwise", "algorithm": algorithm, "alpha": 0.1, "beta": 1.5}]
    actual, ran, bare = run_with_post_ops(builder, post_ops)
    assert ("conv", f"winograd:{tile}x{tile}") in [(label[:4], name) for label, name in ran]
    assert not any(label.startswith("conv") and "winograd" not in name for label, name in ran), ran
    np.testing.assert_allclose(actual, NUMPY[algorithm](bare), rtol=1e-4, atol=1e-5)


def test_rounding_is_fused(tile, builder):
    actual, ran, bare = run_with_post_ops(builder, [{"kind": "eltwise", "algorithm": "round"}])
    assert [name for label, name in ran if label.startswith("conv")] == [f"winograd:{tile}x{tile}"]
    np.testing.assert_array_equal(actual, np.rint(actual))
    assert np.abs(actual - bare).max() < 0.5 + 1e-4


@pytest.mark.parametrize("shape", OPERANDS, ids=str)
@pytest.mark.parametrize("algorithm", BINARY)
def test_operands_are_fused(algorithm, shape, tile, builder):
    operand = numbers(3, *shape)
    post_ops = [{"kind": "binary", "algorithm": algorithm, "role": "post0"}, RELU]
    actual, ran, bare = run_with_post_ops(builder, post_ops, [operand])
    assert not any(label.startswith("conv") and "winograd" not in name for label, name in ran), ran
    np.testing.assert_allclose(actual, np.maximum(NUMPY[algorithm](bare, operand), 0), rtol=1e-4, atol=1e-5)


def test_what_is_not_fused_follows(tile, builder):
    """Costly functions, and what comes after them, are primitives over the convolution's result."""
    operand = numbers(3, 2, 37, 10, 9)
    post_ops = [RELU, {"kind": "eltwise", "algorithm": "tanh"}, {"kind": "sum", "role": "post0"}]
    actual, ran, bare = run_with_post_ops(builder, post_ops, [operand])
    assert f"winograd:{tile}x{tile}" in [name for _, name in ran]
    np.testing.assert_allclose(actual, np.tanh(np.maximum(bare, 0)) + operand, rtol=1e-4, atol=1e-5)


def test_more_post_ops_than_the_record_has_places_for(tile, builder):
    count = MAX_OPERANDS + 2
    half = {"kind": "eltwise", "algorithm": "linear", "alpha": 0.5, "beta": 1.0}
    actual, ran, bare = run_with_post_ops(builder, [half] * count)
    assert f"winograd:{tile}x{tile}" in [name for _, name in ran]
    np.testing.assert_allclose(actual, bare / 2**count + 2 - 2 / 2**count, rtol=1e-5, atol=1e-6)


def test_a_residual_is_added_in_place(tile, builder):
    """The result lies where the residual was, which nobody else reads."""
    x, first, second = numbers(0, 1, 8, 12, 12), numbers(1, 16, 8, 3, 3) / 9, numbers(2, 16, 16, 3, 3) / 12
    shape = (1, 16, 12, 12)
    a = conv(builder, builder.input(x.shape), first, shape, post_ops=[RELU])
    b = conv(builder, a, second, shape)
    c = conv(builder, b, second, shape, post_ops=[{"kind": "sum", "role": "post0"}, RELU], post0=a)
    (actual,), _ = builder.run([c], x)
    one = np.maximum(convolved(x, first), 0)
    expected = np.maximum(convolved(convolved(one, second), second) + one, 0)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    plan = DnnlRuntime([builder.graph(c)], builder.constants).plan("dnnl_0", {}, 1)
    last = [each for each in plan.operations if each.code.implementation.startswith("winograd")][-1]
    assert last.arguments[enums.ARG["dst"]].buffer is last.arguments[enums.post_op_argument(0)].buffer


# --- the rest of the runtime ---------------------------------------------------------------------------------------
def test_sizes_that_are_known_late(tile, builder):
    x = builder.input(("n", 6, "h", "w"))
    weight = numbers(1, 20, 6, 3, 3)
    runtime = DnnlRuntime([builder.graph(conv(builder, x, weight, ("n", 20, "h", "w")))], builder.constants)
    for n, h, w in ((1, 9, 13), (2, 1, 4), (1, 24, 24), (1, 9, 13)):
        data = numbers(h, n, 6, h, w)
        actual = np.empty((n, 20, h, w), np.float32)
        runtime.get_function("dnnl_0")(data, actual)
        assert error_of(actual, data, weight) < ERROR[tile]
    places = algorithm.size_of_tile(tile) ** 2
    columns = pad_to_vectors(20, winograd_choice.vector_lanes())
    assert runtime._plans.packed.info().nbytes == 4 * places * 6 * columns, "weights are transformed once for all sizes"


def test_arguments_may_move(tile, builder):
    """A bound call runs again over other memory. With one channel no copy stands between arguments and kernel."""
    weight = numbers(1, 1, 1, 3, 3)
    runtime = DnnlRuntime(
        [builder.graph(conv(builder, builder.input((1, 1, 9, 9)), weight, (1, 1, 9, 9)))], builder.constants
    )
    (operation,) = runtime.plan("dnnl_0", {}, 1).operations
    assert operation.code.implementation == f"winograd:{tile}x{tile}"
    arrays = [aligned_empty((1, 1, 9, 9), "float32") for _ in range(4)]
    args = [BoundTensor(address_of(each), each.shape, "float32") for each in arrays[:2]]
    call = runtime.bind("dnnl_0", args, {}, BindContext(1, Workspace()))
    for number in (0, 1):
        call.rebind[number](address_of(arrays[2 + number]))
    arrays[2][...] = numbers(5, 1, 1, 9, 9)
    CallTable(call.steps).run()
    assert error_of(arrays[3], arrays[2], weight) < ERROR[tile]


def network():
    """Two convolutions with a residual."""
    b = FunctionBuilder()
    x = b.input("x", (1, 32, 24, 24))
    weights = [numbers(i, 32, 32, 3, 3) / 17 for i in range(2)]
    first = b.op("nn.relu", b.op("nn.conv2d", x, weights[0], padding=(1, 1, 1, 1)))
    second = b.op("nn.relu", b.op("add", b.op("nn.conv2d", first, weights[1], padding=(1, 1, 1, 1)), first))
    return IRModule({"main": b.function(second)})


def used(exe):
    """The convolutions' implementations, without what follows the first colon."""
    (runtime,) = [each for each in exe.modules if isinstance(each, DnnlRuntime)]
    (symbol,) = runtime.symbols()
    ran = runtime.plan(symbol, {}, 1).implementations
    return [name.partition(":")[0] for label, name in ran if label.startswith("conv")]


def test_saved_programs_use_it(tmp_path):
    exe, x = ky.compile(network(), backends=["dnnl"]), numbers(7, 1, 32, 24, 24)
    exe.save(tmp_path / "network.kyar")
    loaded = ky.load(tmp_path / "network.kyar")
    assert used(exe) == used(loaded) == ["winograd", "winograd"]
    np.testing.assert_array_equal(np.asarray(exe(x)), np.asarray(loaded(x)))


def test_the_option_turns_it_off(tmp_path):
    exe, direct = (
        ky.compile(network(), backends=["dnnl"], options={"dnnl": {"winograd": wanted}}) for wanted in (True, False)
    )
    direct.save(tmp_path / "direct.kyar")
    assert used(exe) == ["winograd", "winograd"]
    assert used(direct) == used(ky.load(tmp_path / "direct.kyar"))
    assert "winograd" not in used(direct)
    x = numbers(7, 1, 32, 24, 24)
    np.testing.assert_allclose(np.asarray(exe(x)), np.asarray(direct(x)), rtol=1e-4, atol=1e-5)


def test_the_option_is_true_or_false():
    with pytest.raises(OptionError, match="winograd"):
        ky.compile(network(), backends=["dnnl"], options={"dnnl": {"winograd": "yes"}})


# --- what is left direct -------------------------------------------------------------------------------------------
def is_direct(builder, result, *feeds):
    _, ran = builder.run([result], *feeds)
    return not any(name.startswith("winograd") for _, name in ran)


def large(builder, **kwargs):
    """A convolution that gains."""
    return conv(builder, builder.input((1, 32, 28, 28)), numbers(1, 32, 32, 3, 3), (1, 32, 28, 28), **kwargs)


X = numbers(0, 1, 32, 28, 28)


def test_the_large_one_gains(builder):
    assert not is_direct(builder, large(builder), X)


@pytest.fixture
def asked_anew():
    """What this machine can do is found out again, and once more afterwards."""
    winograd_choice.vector_lanes.cache_clear()
    yield
    winograd_choice.vector_lanes.cache_clear()


def test_without_llvmlite(builder, monkeypatch, asked_anew):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert is_direct(builder, large(builder), X)


def test_without_a_team(builder, monkeypatch, asked_anew):
    monkeypatch.setitem(vars(_native.load_library()), "team_functions", None)
    assert is_direct(builder, large(builder), X)


@pytest.mark.parametrize(("isa", "lanes"), [(0x01, 0), (0x07, 8), (0x1F, 8), (0x27, 16), (0x1EF, 16)], ids=str)
def test_vectors_are_those_of_onednn(isa, lanes, monkeypatch, asked_anew):
    monkeypatch.setitem(_native.load_library()._functions, "dnnl_get_effective_cpu_isa", lambda: isa)
    assert winograd_choice.vector_lanes() == lanes


def test_weights_that_are_no_constants(builder):
    data, weight = builder.input(X.shape), builder.input((32, 32, 3, 3))
    assert is_direct(builder, conv(builder, data, weight, X.shape), X, numbers(1, 32, 32, 3, 3))


@pytest.mark.parametrize(
    "changed", [{"strides": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}], ids=lambda changed: next(iter(changed))
)
def test_other_windows(changed, builder):
    groups = changed.get("groups", 1)
    weight = builder.constant(numbers(1, 32, 32 // groups, 3, 3))
    size = 14 if "strides" in changed else 26 if "dilation" in changed else 28
    attrs = {"strides": (1, 1), "dilation": (1, 1), "groups": 1, **changed}
    result = builder.kernel(
        "conv", (1, 32, size, size), {"data": builder.input(X.shape), "weight": weight}, rank=2, padding_begin=(1, 1),
        padding_end=(1, 1), post_ops=[], **attrs,
    )  # fmt: skip
    assert is_direct(builder, result, X)
