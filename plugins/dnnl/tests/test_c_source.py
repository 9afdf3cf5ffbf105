"""Regions as C: the same plan, so the same numbers to the last bit; what C is not written for is declined."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import CodegenError, ExecutionError, OptionError
from kernelyard.ir import Constant, FunctionBuilder, IRModule, Tuple
from kernelyard.runtime.jit.c_compiler import COMPILERS
from kernelyard.testing import assert_allclose, assert_declined, evaluate
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.c_source.codegen import DnnlC
from kernelyard_dnnl.c_source.region import RegionWriter

IN_C = {"dnnl": {"codegen": "c"}}
pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is installed here")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def constant(*shape, scale=1.0, seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    return Constant((rng.standard_normal(shape) * scale).astype(np.float32))


def positive(*shape):
    return Constant(np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32))


def window(rank, padding=1, stride=1, groups=1):
    ones = (1,) * rank
    return {"strides": (stride,) * rank, "padding": (padding,) * (2 * rank), "dilation": ones, "groups": groups}


def pool(padding=0):
    attrs = window(2, padding, 2)
    del attrs["groups"]
    return {**attrs, "pool_size": (2, 2), "ceil_mode": False}


def two_convolutions(b, x):
    first = b.op("nn.relu", b.op("nn.conv2d", x, constant(16, 16, 3, 3, scale=0.1), **window(2)))
    second = b.op("nn.conv2d", first, constant(16, 16, 3, 3, scale=0.1, seed=9), **window(2))
    return b.op("nn.relu", b.op("add", second, first))


def convolution_beside_zeros(b, x):
    first = b.op("nn.relu", b.op("nn.conv2d", x, constant(16, 16, 3, 3, scale=0.1), **window(2)))
    second = b.op("nn.conv2d", first, constant(20, 16, 3, 3, scale=0.1), **window(2))
    return b.op("add", second, b.op("pad", first, pads=(0, 1, 0, 0, 0, 3, 0, 0)))


IMAGE = (2, 16, 9, 9)
CASES = {
    "conv1d": ([(2, 8, 11)], lambda b, x: b.op("nn.conv1d", x, constant(4, 8, 3), **window(1))),
    "conv2d_bias_gelu": (
        [IMAGE],
        lambda b, x: b.op("nn.gelu", b.op("add", b.op("nn.conv2d", x, constant(24, 16, 3, 3), **window(2)), constant(1, 24, 1, 1))),
    ),
    "conv2d_depthwise_silu": (
        [IMAGE],
        lambda b, x: b.op("nn.silu", b.op("nn.conv2d", x, constant(16, 1, 3, 3), **window(2, groups=16))),
    ),
    "conv2d_strided_groups": (
        [IMAGE],
        lambda b, x: b.op("nn.conv2d", x, constant(8, 8, 3, 3), **window(2, stride=2, groups=2)),
    ),
    "conv3d": ([(1, 4, 5, 6, 7)], lambda b, x: b.op("nn.conv3d", x, constant(8, 4, 3, 3, 3), **window(3))),
    "conv2d_transpose": (
        [IMAGE],
        lambda b, x: b.op("nn.conv2d_transpose", x, constant(16, 8, 2, 2), **window(2, 0, 2), output_padding=(0, 0)),
    ),
    "residual": ([IMAGE], two_convolutions),
    "residual_that_grows": ([IMAGE], convolution_beside_zeros),
    "weight_is_an_input": ([IMAGE, (16, 16, 3, 3)], lambda b, x, w: b.op("nn.conv2d", x, w, **window(2))),
    "matmul_bias_relu": (
        [(7, 33)],
        lambda b, x: b.op("nn.relu", b.op("add", b.op("matmul", x, constant(33, 20)), constant(20))),
    ),
    "matmul_batches": ([(2, 3, 5, 8), (3, 8, 6)], lambda b, x, y: b.op("tanh", b.op("matmul", x, y))),
    "matmul_residual": (
        [(7, 16), (7, 16)],
        lambda b, x, r: b.op("multiply", b.op("add", b.op("matmul", x, constant(16, 16)), r), constant(7, 1)),
    ),
    "matmul_transposed": (
        [(7, 33), (20, 33)],
        lambda b, x, y: b.op("matmul", x, b.op("permute_dims", y, axes=(1, 0))),
    ),
    "elementwise_chain": (
        [(64, 48), (64, 48)],
        lambda b, x, y: b.op("sigmoid", b.op("multiply", b.op("subtract", x, y), constant(1, 48))),
    ),
    "pools": (
        [(2, 16, 8, 8)],
        lambda b, x: b.op("nn.avg_pool2d", b.op("nn.max_pool2d", x, **pool()), **pool(), count_include_pad=True),
    ),
    "softmax": ([(6, 40)], lambda b, x: b.op("nn.softmax", x, axis=1)),
    "log_softmax_of_columns": ([(6, 40)], lambda b, x: b.op("nn.log_softmax", b.op("permute_dims", x, axes=(1, 0)), axis=0)),
    "layer_norm": (
        [(6, 64)],
        lambda b, x: b.op("nn.layer_norm", x, constant(64), constant(64, seed=3), axes=(1,), epsilon=1e-5),
    ),
    "batch_norm": (
        [IMAGE],
        lambda b, x: b.op(
            "nn.relu",
            b.op("nn.batch_norm", x, constant(16), constant(16, seed=3), constant(16, seed=4), positive(16), epsilon=1e-5, axis=1),
        ),
    ),
    "squeeze_and_excitation": (
        [IMAGE],
        lambda b, x: b.op(
            "multiply",
            b.op("nn.conv2d", x, constant(16, 16, 1, 1), **window(2, 0)),
            b.op("sigmoid", b.op("mean", x, axes=(2, 3), keepdims=True)),
        ),
    ),
    "two_outputs": (
        [(7, 33)],
        lambda b, x: (b.op("matmul", x, constant(33, 20)), b.op("nn.softmax", b.op("matmul", x, constant(33, 8)), axis=1)),
    ),
}  # fmt: skip


def module_of(case):
    shapes, build = CASES[case]
    b = FunctionBuilder()
    result = build(b, *(b.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    if isinstance(result, tuple):
        result = Tuple(result)
    return IRModule({"main": b.function(result)})


def feeds_of(module, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(p.tensor_type.shape).astype(np.float32) for p in module["main"].params]


def results_of(exe, feeds):
    out = exe(*feeds)
    return [each.numpy() for each in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize("case", CASES)
def test_c_and_graphs_give_equal_results(case):
    module = module_of(case)
    graphs, in_c = ky.compile(module, backends=["dnnl"]), ky.compile(module, backends=["dnnl"], options=IN_C)
    assert "c_source" in [m.kind for m in in_c.modules]
    assert "dnnl" not in [m.kind for m in in_c.modules]
    assert [(r.pattern, r.ops) for r in in_c.report.regions] == [(r.pattern, r.ops) for r in graphs.report.regions]
    for seed in (0, 1):
        feeds = feeds_of(module, seed)
        for mine, other, right in zip(
            results_of(in_c, feeds), results_of(graphs, feeds), evaluate(module, feeds), strict=True
        ):
            np.testing.assert_array_equal(mine, other)
            assert_allclose(mine, right)


def test_a_saved_artifact_holds_the_text_and_is_compiled_where_it_runs(tmp_path):
    module = module_of("conv2d_bias_gelu")
    exe = ky.compile(module, backends=["dnnl"], options=IN_C)
    exe.save(tmp_path / "m.kyar")
    feeds = feeds_of(module)
    np.save(tmp_path / "x.npy", feeds[0])
    program = (
        "import sys, numpy, kernelyard as ky\n"
        "y = ky.load(sys.argv[1])(numpy.load(sys.argv[2])).numpy()\n"
        "assert 'kernelyard_dnnl' not in sys.modules and 'kernelyard.ir' not in sys.modules\n"
        "numpy.save(sys.argv[3], y)\n"
    )
    paths = [str(tmp_path / name) for name in ("m.kyar", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), results_of(exe, feeds)[0])


def test_the_same_model_gives_the_same_text():
    first, second = (ky.compile(module_of("residual"), backends=["dnnl"], options=IN_C) for _ in range(2))
    assert first.modules[0].save_to_bytes() == second.modules[0].save_to_bytes()


def test_symbolic_sizes_are_declined_with_a_reason():
    from kernelyard import dims

    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 33))
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", x, constant(33, 20))))})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": "c"}})
    assert_declined(exe, "dnnl", "dynamic-shape", "dnnl.matmul")
    feed = np.ones((3, 33), np.float32)
    assert_allclose(exe(feed).numpy(), evaluate(module, [feed])[0])
    graphs = ky.compile(module, backends=["dnnl"]).modules[0]
    with pytest.raises(CodegenError, match="known sizes"):
        DnnlC().generate_graphs(list(graphs.graphs.values()), graphs.constants())


def test_an_unknown_form_is_refused():
    with pytest.raises(OptionError, match="codegen"):
        ky.compile(module_of("softmax"), backends=["dnnl"], options={"dnnl": {"codegen": "fortran"}})


def test_regions_that_differ_in_constants_only_stay_two():
    """Guards against apache/tvm#19801: equal structure, different weights."""
    b = FunctionBuilder()
    x = b.input("x", (4, 4, 6, 6))
    first = b.op("nn.conv2d", x, constant(4, 4, 3, 3, seed=1), **window(2))
    cut = b.op("argmax", first, axis=1, keepdims=True)  # which oneDNN does not have: two regions
    back = b.op("multiply", first, b.op("astype", cut, dtype="float32"))
    between = b.op("cumsum", back, axis=1, exclusive=False, reverse=False)
    second = b.op("nn.conv2d", between, constant(4, 4, 3, 3, seed=2), **window(2))
    module = IRModule({"main": b.function(second)})
    feeds = feeds_of(module)
    exe = ky.compile(module, backends=["dnnl"], options=IN_C)
    (code,) = [m for m in exe.modules if m.kind == "c_source"]
    assert len([digest for digest, array in code.constants().items() if array.shape == (4, 4, 3, 3)]) == 2
    assert_allclose(results_of(exe, feeds)[0], evaluate(module, feeds)[0])


def test_threads_and_callers(rng):
    module = module_of("residual")
    exe = ky.compile(module, backends=["dnnl"], options=IN_C)
    x = [rng.standard_normal(IMAGE).astype(np.float32) for _ in range(4)]
    expected = [results_of(exe, [each])[0] for each in x]
    wrong = []

    def work(number):
        for _ in range(5):
            if not np.array_equal(results_of(exe, [x[number]])[0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    exe.threads = 2
    np.testing.assert_allclose(results_of(exe, [x[0]])[0], expected[0], rtol=1e-5, atol=1e-5)


def test_large_inputs_and_outputs_are_not_copied(rng):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("tanh", b.op("matmul", b.input("x", (512, 512)), constant(512, 512))))})
    exe = ky.compile(module, backends=["dnnl"], options=IN_C)
    for _ in range(3):
        x = (rng.standard_normal((512, 512)) / 20).astype(np.float32)
        assert_allclose(exe(x).numpy(), evaluate(module, [x])[0])


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(builder, seed):
    from kernelyard_dnnl.runtime import DnnlRuntime

    rng = np.random.default_rng(seed)
    shape, values = (2, 8, 5, 5), [builder.input((2, 8, 5, 5)), builder.input((2, 8, 5, 5))]
    geometry = {
        "strides": (1, 1),
        "padding_begin": (0, 0),
        "padding_end": (0, 0),
        "dilation": (1, 1),
        "groups": 1,
        "rank": 2,
    }
    for _ in range(10):
        a, other = (values[-min(int(rng.geometric(0.4)), len(values))] for _ in range(2))
        post = [[], [{"kind": "eltwise", "algorithm": "tanh"}], [{"kind": "sum", "role": "post0"}]][rng.integers(3)]
        extra = {"post0": other} if post and post[0]["kind"] == "sum" else {}
        if rng.random() < 0.5:
            weight = builder.constant((rng.standard_normal((8, 8, 1, 1)) / 4).astype(np.float32))
            values.append(
                builder.kernel("conv", shape, {"data": a, "weight": weight, **extra}, **geometry, post_ops=post)
            )
        else:
            values.append(
                builder.kernel("binary", shape, {"a": a, "b": other, **extra}, algorithm="sub", post_ops=post)
            )
    graph = builder.graph(*values[-2:])
    feeds = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    found = []
    for module in (DnnlC().generate_graphs([graph], builder.constants), DnnlRuntime([graph], builder.constants)):
        outs = [np.empty(shape, np.float32) for _ in range(2)]
        module.get_function("dnnl_0")(*feeds, *outs)
        found.append(outs)
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, other)


def two_sizes_with_one_weight():
    b = FunctionBuilder()
    x, weight = b.input("x", (1, 32, 20, 20)), constant(32, 32, 3, 3, scale=0.1)
    return IRModule(
        {"main": b.function(b.op("nn.conv2d", b.op("nn.conv2d", x, weight, **window(2, 2)), weight, **window(2, 2)))}
    )


def test_each_primitive_reads_weights_in_the_layout_that_it_chooses_where_it_runs():
    """oneDNN chooses by processor and threads: layouts that are equal where the text is written need not stay so."""
    module = two_sizes_with_one_weight()
    exe = ky.compile(module, backends=["dnnl"], options=IN_C)
    text = "".join(m.source for m in exe.modules if m.kind == "c_source")
    chosen = dict(re.findall(rf"ky_layout\(r, (\d+), (\d+), {enums.QUERY['weights_md']}, 0\)", text))
    places, operations = (re.search(rf"_{what}\[\] = {{(.*)}};", text)[1] for what in ("places", "operations"))
    layouts, read = re.findall(r"{'\w', \d+, \d+, (\d+), -?\d+}", places), []
    for primitive, operands in re.findall(r"{(\d+), \d+, (\w+)}", operations):
        weights = re.search(rf"{operands}\[\] = .*{{{enums.ARG['weights']}, (\d+)}}", text)
        read += [(primitive, chosen[layouts[int(weights[1])]])] if weights else []
    assert len(read) == 2
    assert read[0] != read[1]
    assert all(primitive == asked for primitive, asked in read)
    feeds = feeds_of(module)
    for mine, right in zip(results_of(exe, feeds), evaluate(module, feeds), strict=True):
        assert_allclose(mine, right)


def test_a_layout_that_a_primitive_does_not_read_is_refused(monkeypatch):
    def plain(writer, weights, recipe, primitive):
        return writer._descriptor(writer._origins[weights.buffer][0].descriptor)

    monkeypatch.setattr(RegionWriter, "_weights_layout", plain)
    module = two_sizes_with_one_weight()
    with pytest.raises(ExecutionError, match="cannot be prepared"):
        ky.compile(module, backends=["dnnl"], options=IN_C)(*feeds_of(module))
