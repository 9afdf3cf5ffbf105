"""The scenarios of TVM's test_codegen_cudnn.py, by name, on the emulator; NumPy computes in cuDNN's place.

Operators carry no layout: a convolution in NHWC with weights in OHWI is one between permutations, which are strides to
cuDNN. First that all is one region, then that it is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, Var
from kernelyard.placement import partition_for_cudnn
from kernelyard.testing import assert_allclose, evaluate

from .conftest import compiled, feeds_of, module_of, numbers

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
EPILOGUES = [
    ("float32", ()),
    ("float32", ("bias",)),
    ("float32", ("bias", "nn.relu")),
    ("float16", ("bias", "nn.relu")),
]


def convolution(b: FunctionBuilder, dtype: str, epilogue: tuple[str, ...], is_last: bool) -> Var:
    """As TVM's tests have it: data, weights and bias are parameters."""
    shape, kernel, bias = (
        ((16, 32, 32, 16), (32, 3, 3, 16), (1, 1, 1, 32))
        if is_last
        else ((16, 16, 32, 32), (32, 16, 3, 3), (1, 32, 1, 1))
    )
    shape = (2, *[9 if size == 32 and axis else size for axis, size in enumerate(shape)][1:])  # TVM's are larger
    x, w = b.input("x", shape, dtype), b.input("w", kernel, dtype)
    if is_last:
        x, w = b.op("permute_dims", x, axes=FIRST), b.op("permute_dims", w, axes=FIRST)
    y = b.op("nn.conv2d", x, w, padding=(1, 1, 1, 1))
    y = b.op("permute_dims", y, axes=LAST) if is_last else y
    if "bias" in epilogue:
        y = b.op("add", y, b.input("bias", bias, dtype))
    return b.op("nn.relu", y) if "nn.relu" in epilogue else y


@pytest.mark.parametrize(("dtype", "epilogue"), EPILOGUES, ids=str)
def test_conv2d_offload(check: Any, dtype: str, epilogue: tuple[str, ...]) -> None:
    exe = check(lambda b: convolution(b, dtype, epilogue, is_last=True), "cudnn.conv2d")
    (graph,) = exe.modules[0].graphs.values()
    orders = graph.nodes[-1].attrs["orders"]
    assert {tuple(order) for order in orders.values()} == {LAST}, "permutations are strides: nothing is moved"


@pytest.mark.parametrize(("dtype", "epilogue"), EPILOGUES, ids=str)
def test_conv2d_nchw_oihw_offload(check: Any, dtype: str, epilogue: tuple[str, ...]) -> None:
    """Skipped by TVM as flaky."""
    check(lambda b: convolution(b, dtype, epilogue, is_last=False), "cudnn.conv2d", layout="first")


def test_cudnn_partition_conv2d_without_bias() -> None:
    """The convolution alone is taken."""
    module = module_of(lambda b: convolution(b, "float32", (), is_last=True))
    placed = partition_for_cudnn(module)
    composites = [f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert composites == ["cudnn.conv2d"]


def stacked(b: FunctionBuilder, layout: str, start: str, heads: int = 2, shared: int = 2, batch: Any = 3) -> Var:
    """Queries, keys and values are pieces of one tensor along its last axis."""
    size = 8
    widths = [heads * size, shared * size, shared * size] if layout == "BS3NH" else [size] * 3
    shape = (batch, 5, sum(widths)) if layout == "BS3NH" else (5, batch, heads, sum(widths))
    x = b.input("qkv", shape, "float16")
    axis, begins = len(shape) - 1, [0, widths[0], widths[0] + widths[1]]
    if start == "split":
        split = b.op("split", x, axis=axis, sections=tuple(widths))
        pieces = [b.get(split, index) for index in range(3)]
    else:
        pieces = [
            b.op("strided_slice", x, axes=(axis,), begin=(begin,), end=(begin + width,), strides=(1,))
            for begin, width in zip(begins, widths, strict=True)
        ]
    if layout == "SBN3H":
        q, k, v = (b.op("permute_dims", piece, axes=(1, 0, 2, 3)) for piece in pieces)
        return b.op("permute_dims", b.op("nn.attention", q, k, v), axes=(1, 0, 2, 3))
    counts = (heads, shared, shared)
    q, k, v = (b.op("reshape", p, shape=(batch, 5, n, size)) for p, n in zip(pieces, counts, strict=True))
    return b.op("nn.attention", q, k, v)


@pytest.mark.parametrize("start", ["split", "strided_slice"])
@pytest.mark.parametrize("layout", ["BS3NH", "SBN3H"])
def test_stacked_attention_split_offload(check: Any, layout: str, start: str) -> None:
    """Skipped by TVM where the frontend is not built in."""
    exe = check(lambda b: stacked(b, layout, start), f"cudnn.attention.{layout}")
    (graph,) = exe.modules[0].graphs.values()
    assert len(graph.inputs) == 1, "the pieces are read where they lie"


def test_stacked_attention_of_grouped_queries(check: Any) -> None:
    """TVM's runtime takes them; its patterns do not."""
    check(lambda b: stacked(b, "BS3NH", "split", heads=4, shared=2), "cudnn.attention.BS3NH")


def test_stacked_attention_of_any_batch(check: Any) -> None:
    sizes = [{"n": 1}, {"n": 4}]
    check(lambda b: stacked(b, "BS3NH", "split", batch=symbol("n")), "cudnn.attention.BS3NH", sizes=sizes)


def test_the_search_is_for_the_shapes_that_run(machine: Any) -> None:
    """A defect of TVM: it searches once, for the static shapes in its JSON. Here each set of shapes has a graph."""
    n, h = symbol("n"), symbol("h")
    module = module_of(
        lambda b: b.op("nn.conv2d", b.input("x", (n, 3, h, 8)), numbers(4, 3, 3, 3), padding=(1, 1, 1, 1))
    )
    exe = compiled(module)
    run = machine(exe)
    for sizes in ({"n": 1, "h": 5}, {"n": 3, "h": 9}, {"n": 1, "h": 5}):
        feeds = feeds_of(module, **sizes)
        assert_allclose(np.asarray(run(*feeds).numpy()), evaluate(module, feeds)[0])
    graphs = {exe.modules[0].lower_kernel("cudnn_0", {"n": n, "h": h}).graph.result.dims for n, h in ((1, 5), (3, 9))}
    assert graphs == {(1, 4, 5, 8), (3, 4, 9, 8)}


ACTIVATIONS = [
    "nn.relu",
    "nn.elu",
    "tanh",
    "sigmoid",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.leaky_relu",
    "nn.softplus",
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_read_from_the_operators(check: Any, activation: str) -> None:
    """A defect of TVM: it looks for parts of the pattern's name, so that none but relu is ever reached."""
    attrs = {"alpha": 1.0} if activation == "nn.elu" else {}

    def build(b: FunctionBuilder) -> Var:
        x = b.op("permute_dims", b.input("x", (2, 6, 6, 8), "float16"), axes=FIRST)
        y = b.op("permute_dims", b.op("nn.conv2d", x, numbers(8, 8, 3, 3, dtype="float16")), axes=LAST)
        return b.op(activation, b.op("add", y, numbers(8, dtype="float16")), **attrs)

    check(build, "cudnn.conv2d")


SCENARIOS = {
    "cudnn: cudnn_partition_conv2d_without_bias": test_cudnn_partition_conv2d_without_bias,
    "cudnn: conv2d_offload": test_conv2d_offload,
    "cudnn: conv2d_nchw_oihw_offload": test_conv2d_nchw_oihw_offload,
    "cudnn: stacked_attention_split_offload": test_stacked_attention_split_offload,
    "cudnn: a search for other shapes (defect of TVM)": test_the_search_is_for_the_shapes_that_run,
    "cudnn: activations read from names (defect of TVM)": test_activations_are_read_from_the_operators,
}
