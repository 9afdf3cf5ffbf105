"""Graphs of several nodes: layouts kept between neighbours, memory reused only when its contents are dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kernelyard.errors import ArtifactCorruptedError, CodegenError
from kernelyard.runtime.abi.module import NativeCall
from kernelyard_dnnl import processor
from kernelyard_dnnl.runtime import DnnlRuntime

F = np.float64
RELU = {"kind": "eltwise", "algorithm": "relu"}


def conv(builder, data, shape, weight, post_ops=(), groups=1, padding=1, strides=(1, 1), winograd=True, **operands):
    return builder.kernel(
        "conv", shape, {"data": data, "weight": builder.constant(weight), **operands}, rank=2, strides=strides,
        padding_begin=(padding,) * 2, padding_end=(padding,) * 2, dilation=(1, 1), groups=groups, post_ops=list(post_ops),
        winograd=winograd,
    )  # fmt: skip


def convolve(x, w, padding=1):
    x = np.pad(x.astype(F), [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(F), optimize=True)


def names(ran):
    return [label.split(" (")[0] for label, _ in ran]


@pytest.fixture
def weights(rng):
    return [(rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32) for _ in range(3)]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_no_reorder_between_convolutions(builder, rng, weights):
    x = rng.standard_normal((1, 16, 9, 9), dtype=np.float32)
    y = builder.input(x.shape)
    for weight in weights:
        y = conv(builder, y, x.shape, weight, [RELU])
    (actual,), ran = builder.run([y], x)
    expected = x
    for weight in weights:
        expected = np.maximum(convolve(expected, weight), 0)
    close(actual, expected)
    assert names(ran) == ["reorder for conv", "conv", "conv", "conv", "reorder for output 0"]


def test_channels_last_through_every_kind_of_node(builder, rng, weights):
    """conv, binary, pool, resample, concat, eltwise, reduce, conv: one layout, reorders only at the borders."""
    x = rng.standard_normal((1, 16, 8, 8), dtype=np.float32)
    a = conv(builder, builder.input(x.shape), x.shape, weights[0])
    s = builder.constant(rng.standard_normal((1, 16, 1, 1), dtype=np.float32))
    b = builder.kernel("binary", x.shape, {"a": a, "b": s}, algorithm="mul", post_ops=[])
    c = builder.kernel(
        "pool", (1, 16, 4, 4), {"x": b}, algorithm="max", kernel=(2, 2), strides=(2, 2), padding_begin=(0, 0),
        padding_end=(0, 0), dilation=(1, 1), post_ops=[],
    )  # fmt: skip
    d = builder.kernel("resample", x.shape, {"x": c}, algorithm="nearest", post_ops=[])
    e = builder.kernel("concat", (1, 32, 8, 8), {"x0": d, "x1": b}, axis=1)
    f = builder.kernel("eltwise", (1, 32, 8, 8), {"x": e}, algorithm="tanh", post_ops=[])
    g = builder.kernel("reduce", (1, 32, 1, 1), {"x": f}, algorithm="mean", axes=(2, 3), keepdims=True, post_ops=[])
    h = builder.kernel("binary", (1, 32, 8, 8), {"a": f, "b": g}, algorithm="mul", post_ops=[])
    w = rng.standard_normal((8, 32, 1, 1), dtype=np.float32)
    y = conv(builder, h, (1, 8, 8, 8), w, padding=0)
    (actual,), ran = builder.run([y], x)
    z = convolve(x, weights[0]) * next(v for v in builder.constants.values() if v.shape == (1, 16, 1, 1))
    pooled = z.reshape(1, 16, 4, 2, 4, 2).max((3, 5)).repeat(2, 2).repeat(2, 3)
    z = np.tanh(np.concatenate([pooled, z], 1))
    close(actual, convolve(z * z.mean((2, 3), keepdims=True), w, 0))
    moved = [name for name in names(ran) if name.startswith("reorder") and name != "reorder for concat"]
    # The last product scales channels, for which the weights are scaled.
    assert moved == ["reorder for conv", "reorder for the weights of conv", "reorder for output 0"]
    assert not any("ref" in implementation for _, implementation in ran)


def residual_graph(builder, x, weights, *, also_returned):
    data = builder.input(x.shape)
    a = conv(builder, data, x.shape, weights[0], [RELU])
    b = conv(builder, a, x.shape, weights[1], [RELU])
    y = conv(builder, b, x.shape, weights[2], [{"kind": "sum", "role": "post0"}, RELU], post0=a)
    first = np.maximum(convolve(x, weights[0]), 0)
    last = np.maximum(convolve(np.maximum(convolve(first, weights[1]), 0), weights[2]) + first, 0)
    return ([y, a], [last, first]) if also_returned else ([y], [last])


def test_a_dead_residual_is_added_to_in_place(builder, rng, weights):
    from kernelyard_dnnl.runtime import DnnlRuntime

    x = rng.standard_normal((1, 16, 9, 9), dtype=np.float32)
    outputs, expected = residual_graph(builder, x, weights, also_returned=False)
    (actual,), _ = builder.run(outputs, x)
    close(actual, expected[0])
    plan = DnnlRuntime([builder.graph(*outputs)], builder.constants).plan("dnnl_0", {}, 1)
    last = plan.operations[-2]
    first = plan.operations[1]
    assert last.writes is first.writes, "the sum goes into the memory of the residual"


def test_a_live_residual_is_kept(builder, rng, weights):
    x = rng.standard_normal((1, 16, 9, 9), dtype=np.float32)
    outputs, expected = residual_graph(builder, x, weights, also_returned=True)
    actual, _ = builder.run(outputs, x)
    for a, e in zip(actual, expected, strict=True):
        close(a, e)


def test_residual_that_is_also_the_data(builder, rng, weights):
    x = rng.standard_normal((1, 16, 9, 9), dtype=np.float32)
    a = conv(builder, builder.input(x.shape), x.shape, weights[0])
    y = conv(builder, a, x.shape, weights[1], [{"kind": "sum", "role": "post0"}], post0=a)
    (actual,), _ = builder.run([y], x)
    first = convolve(x, weights[0])
    close(actual, convolve(first, weights[1]) + first)


def test_a_chain_in_place_does_not_touch_the_inputs(builder, rng):
    x = rng.standard_normal((4, 5), dtype=np.float32)
    entry = builder.input(x.shape)
    a = builder.kernel("eltwise", x.shape, {"x": entry}, algorithm="square", post_ops=[])
    b = builder.kernel("eltwise", x.shape, {"x": a}, algorithm="linear", alpha=2.0, beta=1.0, post_ops=[])
    c = builder.kernel("binary", x.shape, {"a": b, "b": entry}, algorithm="sub", post_ops=[])
    (c1, b1), ran = builder.run([c, b], x)
    close(b1, 2 * x.astype(F) ** 2 + 1)
    close(c1, 2 * x.astype(F) ** 2 + 1 - x)
    assert len(ran) == 3


def test_an_input_returned_as_it_is(builder, rng):
    x = rng.standard_normal((4, 5), dtype=np.float32)
    entry = builder.input(x.shape)
    y = builder.kernel("reshape", (5, 4), {"x": entry})
    z = builder.kernel("reorder", (4, 5), {"x": y}, axes=(1, 0))
    actual, _ = builder.run([entry, y, z, z], x)
    for a, e in zip(actual, (x, x.reshape(5, 4), x.reshape(5, 4).T, x.reshape(5, 4).T), strict=True):
        np.testing.assert_array_equal(a, e)


def test_attention_reads_permuted_operands_without_copies(builder, rng):
    q, k, v = (rng.standard_normal((1, 12, 4, 16), dtype=np.float32) for _ in range(3))

    def heads(x, axes):
        shape = tuple(x.shape[a] for a in axes)
        return builder.kernel("reorder", shape, {"x": builder.input(x.shape)}, axes=axes)

    scores = builder.kernel(
        "matmul", (1, 4, 12, 12), {"a": heads(q, (0, 2, 1, 3)), "b": heads(k, (0, 2, 3, 1))}, transpose_a=False,
        transpose_b=False, post_ops=[{"kind": "eltwise", "algorithm": "linear", "alpha": 0.25, "beta": 0.0}],
    )  # fmt: skip
    p = builder.kernel("softmax", (1, 4, 12, 12), {"x": scores}, axis=3)
    operands = {"a": p, "b": heads(v, (0, 2, 1, 3))}
    context = builder.kernel("matmul", (1, 4, 12, 16), operands, transpose_a=False, transpose_b=False, post_ops=[])
    back = builder.kernel("reorder", (1, 12, 4, 16), {"x": context}, axes=(0, 2, 1, 3))
    y = builder.kernel("reshape", (1, 12, 64), {"x": back})
    (actual,), ran = builder.run([y], q, k, v)
    s = np.einsum("bqhd,bkhd->bhqk", q.astype(F), k) * 0.25
    e = np.exp(s - s.max(-1, keepdims=True))
    close(actual, np.einsum("bhqk,bkhd->bqhd", e / e.sum(-1, keepdims=True), v).reshape(1, 12, 64))
    assert names(ran)[:3] == ["matmul", "softmax", "matmul"]
    assert not any("ref" in implementation for _, implementation in ran), ran


@pytest.fixture
def dynamic(builder, weights):
    """conv, global mean, multiplication for any batch, height and width; returns the runtime module."""
    from kernelyard_dnnl.runtime import DnnlRuntime

    data = builder.input(("n", 16, "h", "w"))
    a = conv(builder, data, ("n", 16, "h", "w"), weights[0], [RELU], winograd=False)
    m = builder.kernel("reduce", ("n", 16, 1, 1), {"x": a}, algorithm="mean", axes=(2, 3), keepdims=True, post_ops=[])
    y = builder.kernel("binary", ("n", 16, "h", "w"), {"a": a, "b": m}, algorithm="mul", post_ops=[])
    return DnnlRuntime([builder.graph(y)], builder.constants)


def dynamic_reference(x, weights):
    a = np.maximum(convolve(x, weights[0]), 0)
    return a * a.mean((2, 3), keepdims=True)


SIZES = [(1, 9, 9), (2, 5, 7), (1, 40, 33), (3, 1, 1), (1, 9, 9)]


def test_several_shapes_share_packed_weights(dynamic, weights, rng):
    for n, h, w in SIZES:
        x = rng.standard_normal((n, 16, h, w), dtype=np.float32)
        y = np.empty_like(x)
        dynamic.get_function("dnnl_0")(x, y)
        close(y, dynamic_reference(x, weights))
    assert dynamic._plans.packed.info().nbytes == weights[0].nbytes


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts(threads, builder, weights, rng):
    from kernelyard_dnnl._native import load_library

    before = load_library().threads
    x = rng.standard_normal((2, 16, 30, 30), dtype=np.float32)
    outputs, expected = residual_graph(builder, x, weights, also_returned=False)
    (actual,), _ = builder.run(outputs, x, threads=threads)
    close(actual, expected[0])
    assert load_library().threads == before, "the caller's number of threads is put back"


@pytest.mark.parametrize(
    ("shape", "features", "expected"),
    [((1, 8, 6, 6), 8, 1), ((1, 64, 56, 56), 64, 2), ((1, 1, 6, 6), 1, 1)],
)
def test_small_primitives_are_not_shared_among_threads(shape, features, expected, builder, rng):
    """A network's small layers run on one thread, its large ones on all."""
    x = rng.standard_normal(shape, dtype=np.float32)
    weight = rng.standard_normal((features, shape[1], 3, 3), dtype=np.float32) / np.float32(3 * shape[1] ** 0.5)
    result = conv(builder, builder.input(shape), (1, features, *shape[2:]), weight)
    runtime = DnnlRuntime([builder.graph(result)], builder.constants)
    for threads in (1, 2):
        (convolution,) = (
            each.code for each in runtime.plan("dnnl_0", {}, threads).operations if each.label.startswith("conv")
        )
        assert convolution.threads == min(threads, expected)
    (actual,), _ = builder.run([result], x, threads=2)
    close(actual, convolve(x, weight))


def test_calls_from_many_threads(dynamic, weights, rng):
    x = rng.standard_normal((1, 16, 20, 20), dtype=np.float32)
    expected = dynamic_reference(x, weights)
    failures = []

    def work():
        function, y = dynamic.get_function("dnnl_0"), np.empty_like(x)
        for _ in range(20):
            function(x, y)
            if np.abs(y - expected).max() > 1e-3:
                failures.append(np.abs(y - expected).max())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_saved_and_loaded(dynamic, weights, rng):
    from kernelyard_dnnl.runtime import load

    data = dynamic.save_to_bytes()
    loaded = load(data, dynamic.constants())
    assert loaded.save_to_bytes() == data
    x = rng.standard_normal((1, 16, 6, 6), dtype=np.float32)
    y = np.empty_like(x)
    loaded.get_function("dnnl_0")(x, y)
    close(y, dynamic_reference(x, weights))
    with pytest.raises(ArtifactCorruptedError):
        load(data, {})
    with pytest.raises(ArtifactCorruptedError):
        load(data[:-5], dynamic.constants())


def test_a_region_is_native_calls_only(dynamic):
    from kernelyard.runtime.abi.memory import Workspace, address_of, aligned_empty
    from kernelyard.runtime.abi.module import BindContext, BoundTensor

    arrays = [aligned_empty((1, 16, 8, 8), "float32") for _ in range(2)]
    args = [BoundTensor(address_of(array), array.shape, "float32") for array in arrays]
    call = dynamic.bind("dnnl_0", args, {"n": 1, "h": 8, "w": 8}, BindContext(1, Workspace()))
    assert all(isinstance(step, NativeCall) for step in call.steps)
    assert set(call.rebind) == {0, 1}


def test_rebinding_moves_inputs_and_outputs(dynamic, weights, rng):
    from kernelyard.runtime.abi.memory import Workspace, address_of, aligned_empty
    from kernelyard.runtime.abi.module import BindContext, BoundTensor
    from kernelyard.runtime.execute.call_table import CallTable

    shape = (1, 16, 8, 8)
    old, new = ([aligned_empty(shape, "float32") for _ in range(2)] for _ in range(2))
    args = [BoundTensor(address_of(array), shape, "float32") for array in old]
    call = dynamic.bind("dnnl_0", args, {"n": 1, "h": 8, "w": 8}, BindContext(1, Workspace()))
    new[0][...] = rng.standard_normal(shape)
    for number, array in enumerate(new):
        call.rebind[number](address_of(array))
    CallTable(call.steps).run()
    close(new[1], dynamic_reference(new[0], weights))


def test_an_unknown_kernel_is_named(builder):
    x = builder.input((2, 3))
    y = builder.kernel("fft", (2, 3), {"x": x})
    with pytest.raises(CodegenError, match="'fft'"):
        builder.run([y], np.zeros((2, 3), np.float32))


def test_probe_names_what_would_run(builder, weights):
    from kernelyard_dnnl.runtime import probe_implementation

    y = conv(builder, builder.input((1, 16, "h", 8)), (1, 16, "h", 8), weights[0])
    ran = probe_implementation(builder.graph(y), {"h": 64}, builder.constants)
    assert [name for name, _ in ran] == ["reorder for conv (node 2)", "conv (node 2)", "reorder for output 0"]
    assert "ref" not in ran[1][1]


def test_arguments_that_no_size_makes_valid_are_refused(builder, monkeypatch):
    """With symbols, that oneDNN calls arguments invalid may be for sizes that do not belong together: others are tried."""
    from kernelyard_dnnl import _native, probe

    def refusing(*sizes):
        def planned(graph, values, constants):
            if values["h"] in sizes:
                raise _native.StatusError("dnnl_primitive_create", 2)
            return [("eltwise", "jit:avx2")]

        return planned

    y = builder.kernel("eltwise", (2, "h"), {"x": builder.input((2, "h"))}, algorithm="tanh")
    graph = builder.graph(y)
    objections = []
    for sizes in ((), (64,), (64, 1), (64, 1, 2)):
        monkeypatch.setattr(probe, "probe_implementation", refusing(*sizes))
        objections.append(probe._answer(graph, ("h",), {}))
    assert objections[:3] == [None] * 3
    assert "dnnl_primitive_create returned invalid_arguments" in objections[3]


@pytest.mark.parametrize(
    "attrs",
    [{}, {"algorithm": "sinh", "alpha": 0.0, "beta": 0.0}, {"algorithm": "tanh", "alpha": "x"},
     {"algorithm": "tanh", "post_ops": [{"kind": "sum", "role": "nobody"}]}, {"algorithm": "tanh", "post_ops": [{"kind": "swirl"}]}],
)  # fmt: skip
def test_attributes_that_make_no_sense_are_errors(attrs, builder):
    y = builder.kernel("eltwise", (2, 3), {"x": builder.input((2, 3))}, **attrs)
    with pytest.raises(CodegenError, match=r"eltwise|post-op") as caught:
        builder.run([y], np.zeros((2, 3), np.float32))
    assert "eltwise (node 1)" in str(caught.value)


def test_a_result_of_another_shape_is_an_error(builder):
    y = builder.kernel("reorder", (2, 3), {"x": builder.input((2, 3))}, axes=(1, 0))
    with pytest.raises(CodegenError, match="has the wrong shape"):
        builder.run([y], np.zeros((2, 3), np.float32))


def test_what_oneDNN_refuses_names_the_node(builder):
    from kernelyard_dnnl._native import StatusError

    operands = {"data": builder.input((1, 3, 5, 5)), "weight": builder.constant(np.ones((4, 2, 3, 3), np.float32))}
    y = builder.kernel(
        "conv", (1, 4, 3, 3), operands, rank=2, strides=(1, 1), padding_begin=(0, 0), padding_end=(0, 0),
        dilation=(1, 1), groups=1, post_ops=[],
    )  # fmt: skip
    with pytest.raises(StatusError, match="invalid_arguments") as caught:
        builder.run([y], np.zeros((1, 3, 5, 5), np.float32))
    assert "dnnl_0, conv (node 2)" in str(caught.value)


@pytest.mark.parametrize("n", [0, 1])
def test_tensors_without_elements(n, builder, weights):
    x = np.ones((n, 16, 5, 5), np.float32)
    a = conv(builder, builder.input(("n", 16, 5, 5)), ("n", 16, 5, 5), weights[0], [RELU])
    b = builder.kernel("reduce", ("n", 16, 1, 1), {"x": a}, algorithm="mean", axes=(2, 3), keepdims=True, post_ops=[])
    c = builder.kernel("binary", ("n", 16, 5, 5), {"a": a, "b": b}, algorithm="mul", post_ops=[])
    d = builder.kernel("reorder", ("n", 5, 5, 16), {"x": c}, axes=(0, 2, 3, 1))
    e = builder.kernel("softmax", ("n", 5, 5, 16), {"x": d}, axis=3)
    (actual,), _ = builder.run([e], x, n=n)
    assert actual.shape == (n, 5, 5, 16)
    assert np.isfinite(actual).all()


def test_a_forked_child_computes(tmp_path):
    """OpenMP's threads do not survive a fork; a child that waited for them would hang."""

    code = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
sys.path.insert(0, sys.argv[1])
from conftest import GraphBuilder
from kernelyard_dnnl.runtime import DnnlRuntime
builder = GraphBuilder()
w = np.ones((64, 64), np.float32)
y = builder.kernel("matmul", (256, 64), {"a": builder.input((256, 64)), "b": builder.constant(w)},
                   transpose_a=False, transpose_b=False, post_ops=[])
function = DnnlRuntime([builder.graph(y)], builder.constants).get_function("dnnl_0")
x, out = np.ones((256, 64), np.float32), np.zeros((256, 64), np.float32)
function(x, out)
child = os.fork()
if child == 0:
    signal.alarm(20)
    out[...] = 0
    function(x, out)
    os._exit(0 if (out == 64).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

    command = [sys.executable, "-c", code, str(Path(__file__).parent)]

    result = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_shuffled_channels_stay_innermost(builder, rng):
    x, w = rng.standard_normal((2, 12, 5, 6), dtype=np.float32), rng.standard_normal((12, 1, 3, 3), dtype=np.float32)
    y = conv(builder, builder.input(x.shape), x.shape, w, groups=12)
    y = builder.kernel("reshape", (2, 3, 4, 5, 6), {"x": y})
    y = builder.kernel("reorder", (2, 4, 3, 5, 6), {"x": y}, axes=(0, 2, 1, 3, 4))
    y = conv(builder, builder.kernel("reshape", x.shape, {"x": y}), x.shape, w, groups=12)
    (actual,), ran = builder.run([y], x)

    def depthwise(x):
        return np.concatenate([convolve(x[:, i : i + 1], w[i : i + 1]) for i in range(12)], axis=1)

    close(actual, depthwise(depthwise(x).reshape(2, 3, 4, 5, 6).swapaxes(1, 2).reshape(x.shape)))
    assert names(ran) == ["reorder for conv", "conv", "reorder for reshape", "conv", "reorder for output 0"]


@pytest.mark.parametrize(("channels", "half"), [(8, True), (24, True), (12, False), (16, False), (40, False)])
def test_vectors_of_8_where_those_of_16_would_be_half_empty(channels, half, builder, rng, monkeypatch):
    x, r = (rng.standard_normal((2, c, 9, 9), dtype=np.float32) for c in (16, channels))
    w = (rng.standard_normal((channels, 16, 3, 3)) / 12).astype(np.float32)
    used = {}
    for units in (False, True):
        monkeypatch.setattr(processor, "has_half_wide_units", lambda units=units: units)
        graph = type(builder)()
        post_ops = [{"kind": "sum", "role": "r"}, RELU]
        y = conv(graph, graph.input(x.shape), r.shape, w, post_ops, r=graph.input(r.shape))
        (actual,), ran = graph.run([y], x, r)
        close(actual, np.maximum(convolve(x, w) + r, 0))
        used[units] = next(name for label, name in ran if label.startswith("conv"))
    if "avx512" not in used[False]:
        pytest.skip("this processor has no vectors of 16")
    assert used[True] == (used[False].replace("avx512_core", "avx2") if half else used[False])


@pytest.mark.parametrize(
    ("vendor", "family", "half"), [("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("GenuineIntel", 25, False)]
)
def test_which_processors_work_on_halves(vendor, family, half, monkeypatch):
    monkeypatch.setattr(processor, "cpu_facts", lambda: {"vendor_id": vendor, "cpu family": str(family)})
    assert processor.has_half_wide_units.__wrapped__() is half
