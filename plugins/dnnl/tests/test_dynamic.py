"""Symbolic sizes: one compiled program for several shapes in turn, primitives made for each and kept in a bounded cache."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import ShapeError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

N, H, W = (dims.symbol(name) for name in "nhw")
SIZES = [(1, 8, 8), (2, 9, 5), (1, 17, 23), (3, 3, 4), (1, 8, 8)]


def weights(*shape, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def conv(b, x, w, padding=(1, 1, 1, 1), strides=(1, 1)):
    rank = w.ndim - 2
    return b.op(f"nn.conv{rank}d", x, w, strides=strides, padding=padding, dilation=(1,) * rank, groups=1)


def pool(b, x, kind="max", **attrs):
    window = {"pool_size": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1), "ceil_mode": False}
    return b.op(f"nn.{kind}_pool2d", x, **(window | attrs))


def dim(x, axis):
    return x.type.shape[axis]


IMAGE = [(N, 4, H, W)]
# label -> (pattern, program, inputs)
PROGRAMS = {
    "conv2d": ("dnnl.conv2d", lambda b, x: b.op("nn.relu", conv(b, x, weights(8, 4, 3, 3))), IMAGE),
    "conv2d strided": ("dnnl.conv2d", lambda b, x: conv(b, x, weights(8, 4, 3, 3), strides=(2, 2)), IMAGE),
    "conv2d_transpose": (
        "dnnl.conv2d_transpose",
        lambda b, x: b.op(
            "nn.conv2d_transpose", x, weights(4, 8, 2, 2), strides=(2, 2), padding=(0, 0, 0, 0), dilation=(1, 1),
            groups=1, output_padding=(0, 0),
        ), IMAGE,
    ),
    "residual": ("dnnl.conv2d", lambda b, x: b.op("nn.relu", b.op("add", conv(b, x, weights(4, 4, 3, 3)), x)), IMAGE),
    "matmul": ("dnnl.matmul", lambda b, x: b.op("nn.gelu", b.op("matmul", x, weights(6, 9))), [(N, H, 6)]),
    "matmul of two inputs": ("dnnl.matmul", lambda b, x, y: b.op("matmul", x, y), [(N, H, W), (N, W, 5)]),
    "transposed_matmul": (
        "dnnl.transposed_matmul",
        lambda b, x, y: b.op("matmul", x, b.op("permute_dims", y, axes=(0, 2, 1))), [(N, H, 6), (N, W, 6)],
    ),
    "softmax": ("dnnl.softmax", lambda b, x: b.op("nn.softmax", x, axis=2), [(N, H, W)]),
    "log_softmax": ("dnnl.softmax", lambda b, x: b.op("nn.log_softmax", x, axis=1), [(N, W)]),
    "layer_norm": (
        "dnnl.layer_norm",
        lambda b, x: b.op("nn.layer_norm", x, weights(16), weights(16), axes=(2,), epsilon=1e-5), [(N, H, 16)],
    ),
    "max pool": ("dnnl.pool", lambda b, x: pool(b, x), IMAGE),
    "max pool, rounded up": ("dnnl.pool", lambda b, x: pool(b, x, ceil_mode=True), IMAGE),
    "average pool, rounded up": ("dnnl.pool", lambda b, x: pool(b, x, "avg", ceil_mode=True, count_include_pad=False), IMAGE),
    "global average": ("dnnl.reduce", lambda b, x: b.op("mean", x, axes=(2, 3), keepdims=True), IMAGE),
    "sum": ("dnnl.reduce", lambda b, x: b.op("sum", x, axes=(2, 3), keepdims=False), IMAGE),
    "elementwise": ("dnnl.elementwise", lambda b, x, y: b.op("multiply", b.op("sigmoid", x), y), [(N, H, W), (N, H, W)]),
    "broadcast": ("dnnl.elementwise", lambda b, x, y: b.op("add", x, y), [(N, 4, H, W), (N, 4, 1, 1)]),
    "nearest": (
        "dnnl.resample",
        lambda b, x: b.op(
            "image.resize", x, sizes=(2 * H, 2 * W), scales=(), method="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        ), IMAGE,
    ),
    "linear": (
        "dnnl.resample",
        lambda b, x: b.op(
            "image.resize", x, sizes=(12, 10), scales=(), method="linear", coordinate_transformation_mode="half_pixel"
        ), IMAGE,
    ),
    "concat": ("dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=2), [(N, H, 20), (N, H, 20)]),
    "concat of symbolic sizes": ("dnnl.concat", lambda b, x, y: b.op("concat", x, y, axis=1), [(N, H), (N, W)]),
    "reorder": ("dnnl.reorder", lambda b, x: b.op("permute_dims", x, axes=(0, 2, 3, 1)), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("case", PROGRAMS)
def test_several_shapes_in_turn(case, offloading):
    pattern, build, inputs = PROGRAMS[case]
    module = offloading.module(build, *inputs)
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern, count=1)
    assert {row.backend for row in exe.report.placed} == {"dnnl"}
    for n, h, w in SIZES:
        offloading.right(module, exe, n=n, h=h, w=w)


def test_a_symbol_that_turns_out_to_be_one_broadcasts(offloading):
    module = offloading.module(lambda b, x, y: b.op("multiply", x, y), (N, 6), (H, 6))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.elementwise")
    for n, h in ((4, 4), (1, 4), (4, 1), (1, 1)):
        offloading.right(module, exe, n=n, h=h)


# --- padding whose amount follows from the sizes, as automatic padding has it -----------------------------------------
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_automatic_padding(rank, offloading):
    """SAME_UPPER with stride 2: the padding is 1 or 2, as the size is even or odd."""
    names = [dims.symbol(f"d{axis}") for axis in range(rank)]
    w = weights(8, 4, *[4] * rank)

    def build(b, x):
        total = [dims.maximum((dims.ceildiv(d, 2) - 1) * 2 + 4 - d, 0) for d in names]
        before = [dims.floordiv(t, 2) for t in total]
        after = [t - half for t, half in zip(total, before, strict=True)]
        x = b.op("pad", x, pads=(0, 0, *before, 0, 0, *after), mode="constant", value=0.0)
        return b.op("nn.relu", conv(b, x, w, (0,) * (2 * rank), (2,) * rank))

    module = offloading.module(build, (N, 4, *names))
    exe = ky.compile(module, backends=["dnnl"])
    assert [(r.pattern, r.ops) for r in exe.report.regions] == [
        (f"dnnl.padded_conv{rank}d", ("pad", f"nn.conv{rank}d", "nn.relu"))
    ]
    for sizes in ((8, 8, 8), (7, 8, 9), (5, 5, 5), (4, 6, 3)):
        offloading.right(module, exe, n=2, **{f"d{axis}": size for axis, size in enumerate(sizes[:rank])})


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding_of_an_onnx_model(auto_pad):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    w = weights(8, 3, 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=auto_pad, strides=[2, 2])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exe = ky.compile(model, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.padded_conv2d", count=1)
    for h, width in ((8, 8), (7, 9), (32, 31)):
        x = np.random.default_rng(0).standard_normal((2, 3, h, width)).astype(np.float32)
        assert_allclose(exe(x), same_padding(x, w, 2, auto_pad))


def same_padding(x, w, stride, auto_pad):
    """The convolution with as much padding as gives ceil(size / stride) outputs, the odd one at the end or begin."""
    out = [-(-size // stride) for size in x.shape[2:]]
    total = [max((o - 1) * stride + k - size, 0) for o, k, size in zip(out, w.shape[2:], x.shape[2:], strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(before, after, strict=True)])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True).astype(np.float32)


# --- what is kept between shapes --------------------------------------------------------------------------------------
def test_plans_are_kept_for_a_bounded_number_of_shapes(offloading):
    module = offloading.module(lambda b, x: b.op("matmul", x, weights(6, 9)), (N, 6))
    exe = ky.compile(module, backends=["dnnl"])
    for n in range(1, 40):
        offloading.right(module, exe, n=n)
    assert exe.cache_info()["dnnl: plans"][1:4] == (39, exe.max_plans, exe.max_plans)
    offloading.right(module, exe, n=1)


def test_graphs_share_the_room_for_plans(offloading):
    """A branch that is seldom taken keeps no plans of sizes of long ago."""
    module = offloading.module(lambda b, x: b.op("floor", b.op("matmul", x, weights(6, 9))), (N, 6))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.matmul", count=1)
    (runtime,) = [each for each in exe.modules if each.kind == "dnnl"]
    plans, (graph,) = runtime._plans, runtime.graphs.values()
    seldom = graph._replace(symbol="seldom")
    plans.plan(seldom, {"n": 1}, 1, 2)
    for n in range(2, 5):
        plans.plan(graph, {"n": n}, 1, 2)
    assert len([key for key in plans._kept if "seldom" in key]) == 1
    plans.plan(graph, {"n": 5}, 1, 2)
    assert not [key for key in plans._kept if "seldom" in key]
    assert exe.cache_info()["dnnl: plans"][1:4] == (5, 4, 4)


def test_a_saved_program_takes_every_shape(offloading, tmp_path):
    module = offloading.module(
        lambda b, x: b.op("mean", b.op("nn.relu", conv(b, x, weights(8, 4, 3, 3))), axes=(2, 3), keepdims=False), *IMAGE
    )
    ky.compile(module, backends=["dnnl"]).save(tmp_path / "program.kyar")
    loaded = ky.load(tmp_path / "program.kyar")
    for n, h, w in SIZES:
        (x,) = offloading.feeds(module, n=n, h=h, w=w)
        assert_allclose(loaded(x), evaluate(module, [x])[0])


def test_a_shape_that_only_some_sizes_have() -> None:
    """No size that stands for all others fits (24, 4) -> (n, 4); the run time knows better."""
    b = FunctionBuilder()
    x, like = b.input("x", (24, 4)), b.input("like", (N, 4))
    joined = b.op("concat", b.op("tanh", b.op("reshape", x, shape=(N, 4))), b.op("exp", like), axis=0)
    exe = ky.compile(IRModule({"main": b.function(joined)}), backends=["dnnl"], strict=True)
    assert_offloaded(exe, "dnnl", at_least=2)
    feeds = [np.random.default_rng(1).standard_normal((24, 4), dtype=np.float32) for _ in range(2)]
    expected = np.concatenate([np.tanh(feeds[0]), np.exp(feeds[1])])
    np.testing.assert_allclose(np.asarray(exe(*feeds)), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError):
        exe(feeds[0], feeds[1][:5])


def test_an_image_smaller_than_a_window_is_refused():
    """oneDNN divides by the size of the result of such a pool when it is created."""
    b = FunctionBuilder()
    x = b.input("x", (N, 4, H, W))
    narrow = {"pool_size": (3, 2), "strides": (3, 2), "padding": (0, 0, 0, 0)}
    y = b.op("mean", pool(b, conv(b, x, weights(384, 4, 1, 1), padding=(0, 0, 0, 0)), "avg", **narrow), axes=(2,))
    module = IRModule({"main": b.function(y)})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.pool")
    with pytest.raises(ShapeError, match="w - 2 is -1"):
        exe(np.ones((1, 4, 3, 1), np.float32))
    image = np.random.default_rng(0).standard_normal((1, 4, 9, 8), dtype=np.float32)
    (expected,) = evaluate(module, [image])
    assert_allclose(exe(image), expected)


RANDOM_SIZES = """
import sys
from pathlib import Path
import numpy as np
import kernelyard as ky

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

exe, random = ky.load(sys.argv[1], threads=1), np.random.default_rng(0)
for number in range(500):
    if number == 150:
        before = resident()
    height, width = random.integers(8, 64, 2)
    exe(np.ones((1, 8, height, width), np.float32))
print(resident() - before, exe.cache_info()["dnnl: primitives"].entries)
"""


def test_memory_stays_as_it_is_when_sizes_change_all_the_time(tmp_path):
    """Neither we nor oneDNN keep what was made for sizes of long ago; a convolution takes 60 KiB of code each time."""
    b = FunctionBuilder()
    x = b.input("x", (1, 8, H, W))
    y = b.op("nn.conv2d", x, weights(16, 8, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1)
    exe = ky.compile(IRModule({"main": b.function(b.op("nn.relu", y))}), backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d", at_least=1)
    exe.save(tmp_path / "m.kyar")
    command = [sys.executable, "-c", RANDOM_SIZES, str(tmp_path / "m.kyar")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    added, alive = map(float, done.stdout.split())
    assert added < 6, f"{added} MiB in 350 runs"
    assert alive < 200


def test_a_first_run_finds_primitives_that_were_prepared(offloading):
    module = offloading.module(lambda b, x: b.op("matmul", x, weights(6, 9)), (N, 6))
    exe = ky.compile(module, backends=["dnnl"])
    exe.warm(x0=(7, 6))
    misses = exe.cache_info()["dnnl: plans"].misses, exe.cache_info()["dnnl: primitives"].misses
    assert misses[0] == 1
    offloading.right(module, exe, n=7)
    assert (exe.cache_info()["dnnl: plans"].misses, exe.cache_info()["dnnl: primitives"].misses) == misses


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_after_many_sizes_code_is_preferred_that_onednn_frees(is_deterministic):
    """A deterministic program gives the same bits for the same sizes, whatever ran before: it keeps its choice."""
    b = FunctionBuilder()
    result = b.op("nn.relu", conv(b, b.input("x", (1, 8, H, W)), weights(16, 8, 3, 3)))
    module = IRModule({"main": b.function(result)})
    exe = ky.compile(module, backends=["dnnl"], target=ky.Target("cpu", deterministic=is_deterministic))
    x = np.random.default_rng(0).standard_normal((1, 8, 20, 20)).astype(np.float32)
    first = exe(x).numpy()
    for width in range(4, 60):
        exe(np.ones((1, 8, 9, width), np.float32))
    again = exe(x).numpy()
    assert_allclose(again, evaluate(module, {"x": x})[0])
    (runtime,) = [each for each in exe.modules if each.kind == "dnnl"]
    kept = runtime._plans._kept
    latest = kept.get_or_make(list(kept)[-1], lambda: None)
    assert any("brgconv" in name for _, name in latest.implementations) <= is_deterministic
    if is_deterministic:
        np.testing.assert_array_equal(again, first)


def test_a_graph_that_is_seldom_run_follows_those_of_many_sizes():
    """Forget its plans with those of the other graphs, long before it has as many sizes itself."""
    b = FunctionBuilder()
    result = b.op("nn.relu", conv(b, b.input("x", (1, 8, H, W)), weights(16, 8, 3, 3)))
    exe = ky.compile(IRModule({"main": b.function(result)}), backends=["dnnl"])
    (runtime,) = [each for each in exe.modules if each.kind == "dnnl"]
    (graph,) = runtime.graphs.values()
    for width in range(4, 40):
        runtime._plans.plan(graph, {"h": 9, "w": width}, 1)
    seldom = graph._replace(symbol="seldom")
    for width in range(4, 9):
        latest = runtime._plans.plan(seldom, {"h": 10, "w": width}, 1)
    assert not any("brgconv" in name for _, name in latest.implementations)
