"""The scenarios of test_codegen_cutlass.py, by name, run where no GPU is needed.

Kernels are run by NumPy in their place, from the arguments that they would get. Convolutions have one layout in this
vocabulary; with channels last they stand between two permutations.
"""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.patterns import match
from kernelyard.patterns.checks import Gemm
from kernelyard.patterns.templates import matmul
from kernelyard.testing import assert_declined
from kernelyard.testing.offload_bench import feeds_of, module_of, values
from kernelyard_cutlass.matmuls import check_gemm

from .conftest import compiled, composites, runtime_of

A, B = symbol("a"), symbol("b")
SIZES = {"a": 3, "b": 2}
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def swapped(shape):
    return (*shape[:-2], shape[-1], shape[-2])


def transposed(b, x):
    rank = x.tensor_type.rank
    return b.op("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


def conv_nhwc(b, x, weight, **attrs):
    """A convolution of images with channels last by weights (filters, height, width, channels)."""
    first, w = (b.op("permute_dims", each, axes=TO_FIRST) for each in (x, weight))
    return b.op("permute_dims", b.op("nn.conv2d", first, w, **attrs), axes=TO_LAST)


def finished(b, y, operands, epilogue, residual_op=None, residual_activation=None):
    """A bias where the epilogue is not none, an activation, and a residual, which is the last operand."""
    activations = {"relu": "nn.relu", "silu": "nn.silu", "gelu": "nn.gelu"}
    if epilogue != "none":
        y = b.op("add", y, operands[0])
    if epilogue in activations:
        y = b.op(activations[epilogue], y)
    if residual_op:
        y = b.op(residual_op, y, operands[-1])
    return b.op(activations[residual_activation], y) if residual_activation else y


# --- convolutions -----------------------------------------------------------------------------------------------------
def test_kernel_sharing(programs):
    """Two equal convolutions share a kernel, weights and all else apart."""

    def build(b, x, w, v):
        return conv_nhwc(b, conv_nhwc(b, x, w, padding=(1, 1, 1, 1)), v, padding=(1, 1, 1, 1))

    module = module_of(build, ((2, 8, 8, 8), "float16"), ((8, 3, 3, 8), "float16"), ((8, 3, 3, 8), "float16"))
    exe = compiled(module)
    assert composites(exe) == ["cutlass.conv2d"] * 2
    assert len(runtime_of(exe).codes) == 1
    programs.right(exe, module)


CONVOLUTIONS = [
    ("none", None, None),
    ("bias", None, None),
    ("relu", None, None),
    ("silu", None, None),
    ("bias", "add", None),
    ("relu", "multiply", "relu"),
    ("relu", "add", "relu"),
    ("silu", "multiply", None),
]


@pytest.mark.parametrize(("epilogue", "residual_op", "residual_activation"), CONVOLUTIONS, ids=str)
def test_conv2d_offload(epilogue, residual_op, residual_activation, programs):
    result = (2, 16, 8, 16)

    def build(b, x, w, *operands):
        y = conv_nhwc(b, x, w, padding=(1, 1, 1, 1))
        return finished(b, y, operands, epilogue, residual_op, residual_activation)

    inputs = [((2, 16, 8, 8), "float16"), ((16, 3, 3, 8), "float16")]
    inputs += [((16,), "float16")] if epilogue != "none" else []
    inputs += [(result, "float16")] if residual_op else []
    programs.taken("conv2d", build, *inputs)


def test_conv2d_dynamic(programs):
    """A symbolic channel has no alignment, and is declined; a symbolic batch is only a size, and is taken here."""

    def build(b, x, w):
        return conv_nhwc(b, x, w, padding=(1, 1, 1, 1))

    programs.declined("dynamic-shape", build, ((2, 8, 8, A), "float16"), ((16, 3, 3, A), "float16"), **SIZES)
    programs.taken("conv2d", build, ((A, 8, 8, 8), "float16"), ((16, 3, 3, 8), "float16"), **SIZES)


def test_cutlass_partition_conv2d_residual_blocked(programs):
    """What is added depends on the convolution: the group would read its own inner value outside."""

    def build(b, x, w, bias):
        y = b.op("nn.relu", b.op("add", conv_nhwc(b, x, w, padding=(1, 1, 1, 1)), bias))
        return b.op("add", y, b.op("exp", y))

    module = module_of(build, ((2, 8, 8, 8), "float16"), ((8, 3, 3, 8), "float16"), ((8,), "float16"))
    exe = compiled(module)
    assert composites(exe) == ["cutlass.conv2d"]
    (region,) = [region for region in exe.report.regions if region.backend == "cutlass"]
    assert "nn.relu" in region.ops
    assert region.ops.count("add") == 1
    programs.right(exe, module)


@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (16,), (1, 16)], ids=str)
def test_conv2d_residual_broadcast(shape, programs):
    """A residual that is the same for all positions."""

    def build(b, x, w, bias, residual):
        y = b.op("add", conv_nhwc(b, x, w, padding=(1, 1, 1, 1)), bias)
        return b.op("nn.relu", b.op("add", b.op("nn.silu", y), residual))

    inputs = [((2, 8, 8, 8), "float16"), ((16, 3, 3, 8), "float16"), ((16,), "float16"), (shape, "float16")]
    exe = programs.taken("conv2d", build, *inputs)
    (kernel,) = runtime_of(exe).codes
    assert (kernel.epilogue.activation, kernel.epilogue.combine, kernel.epilogue.final) == ("silu", "add", "relu")


# --- matrix products --------------------------------------------------------------------------------------------------
# left, right as it is multiplied, whether it is stored transposed, what follows, and a residual
MATMULS = [
    ((32, 6), (6, 16), False, "none", None, None),
    ((A, 6), (6, 16), False, "bias", None, None),
    ((A, 6), (6, 16), False, "none", None, None),
    ((4, 16), (16, 128), True, "relu", None, None),
    ((35, 8), (8, 8), True, "gelu", None, None),
    ((4, 16), (16, 128), True, "bias", "add", None),
    ((4, 16), (16, 128), False, "relu", "add", "relu"),
    ((4, 16), (16, 128), False, "gelu", "multiply", None),
    ((4, 16), (16, 128), True, "relu", "multiply", "relu"),
    ((A, 16), (16, 128), False, "gelu", "add", None),
    ((6, 32, 8), (6, 8, 10), False, "none", None, None),
    ((6, 32, 8), (6, 8, 10), True, "bias", None, None),
    ((A, 32, 8), (A, 8, 10), True, "gelu", None, None),
    ((6, 32, 8), (6, 8, 10), False, "bias", "add", None),
    ((5, 3, 32, 8), (5, 3, 8, 10), True, "relu", None, None),
    ((A, 3, 32, 8), (A, 3, 8, 10), True, "relu", None, None),
    ((A, B, 32, 8), (A, B, 8, 10), True, "relu", None, None),
    ((5, 3, 32, 8), (8, 10), False, "none", None, None),
    ((5, 3, 32, 8), (8, 10), False, "relu", "add", "relu"),
    ((A, B, 32, 8), (8, 10), True, "bias", None, None),
    ((32, 8), (5, 3, 8, 10), False, "relu", None, None),
    ((1, 1, 32, 8), (A, B, 8, 10), False, "bias", None, None),
    ((1, 5, 32, 8), (5, 8, 10), True, "gelu", None, None),
]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("left", "right", "is_transposed", "epilogue", "residual_op", "act"), MATMULS, ids=str)
def test_matmul_offload(left, right, is_transposed, epilogue, residual_op, act, dtype, programs):
    def build(b, x, w, *operands):
        y = b.op("matmul", x, transposed(b, w) if is_transposed else w)
        return finished(b, y, operands, epilogue, residual_op, act)

    inputs = [(left, dtype), (swapped(right) if is_transposed else right, dtype)]
    inputs += [(right[-1:], dtype)] if epilogue != "none" else []
    if residual_op:
        inputs.append(((*(left[:-2] if len(left) >= len(right) else right[:-2]), left[-2], right[-1]), dtype))
    programs.taken("matmul", build, *inputs, **SIZES)


def test_matmul_with_3d_bias_offload(programs):
    """A bias of three axes: a row for all, or all of the result."""

    def build(b, x, w, bias):
        return b.op("add", b.op("matmul", x, w), bias)

    for shape in ((1, 1, 10), (2, 32, 10)):
        programs.taken("matmul", build, ((2, 32, 8), "float16"), ((2, 8, 10), "float16"), (shape, "float16"))


SHAPES = [
    ((3, 4), (4, 5), True),
    ((3, 16, 15), (3, 15, 2), True),
    ((A, 16, 15), (A, 15, 2), True),
    ((3, 16, 15), (15, 2), True),
    ((A, 16, 15), (15, 2), True),
    ((16, 15), (3, 15, 2), True),
    ((1, 16, 15), (15, 2), True),
    ((1, 16, 15), (3, 15, 2), True),
    ((3, 16, 15), (1, 15, 2), True),
    ((1, 1, 16, 15), (3, 2, 4, 15, 2), True),
    ((1, 1, 16, 15), (3, A, 4, 15, 2), True),
    ((3, 2, 4, 16, 15), (3, 2, 4, 15, 2), True),
    ((A, B, 4, 16, 15), (A, B, 4, 15, 2), True),
    ((1, 2, 4, 16, 15), (1, 2, 4, 15, 2), True),
    ((3, 2, 1, 16, 15), (3, 2, 1, 15, 2), True),
    ((3, 2, 1, 16, 15), (1, 1, 3, 2, 1, 15, 2), True),
    ((3, 1, 1, 16, 15), (3, 2, 4, 15, 2), False),
    ((3, 2, 4, 16, 15), (2, 4, 15, 2), False),
    ((2, 1, 16, 15), (1, 2, 15, 2), False),
    ((3, A, 16, 15), (3, B, 15, 2), False),
    ((A, 16, 15), (3, 15, 2), False),
    ((3, A, 1, 16, 15), (1, 1, 3, 2, 1, 15, 2), False),
    ((3, A), (A, 5), False),
]


@pytest.mark.parametrize(("left", "right", "expected"), SHAPES, ids=str)
def test_is_shape_valid_for_cutlass_matmul(left, right, expected):
    """The rule itself: one product, or products at even distances, of rows whose length is known."""
    module = module_of(lambda b, x, w: b.op("matmul", x, w), (left, "float16"), (right, "float16"))
    function = module.graph_functions()["main"]
    found = match(matmul(), function.bindings[-1].var, function)
    assert isinstance(check_gemm(found), Gemm) is expected
    assert [row[2] for row in SHAPES].count(True) == 16
    assert len(SHAPES) == 23


BLOCKED = [
    (left, right, "dynamic-shape" if left[-1] is A else "batch") for left, right, expected in SHAPES if not expected
]


# Sizes that are not known to broadcast are left to the reference interpreter, which says that it is slow.
@pytest.mark.filterwarnings("ignore::kernelyard.errors.PerformanceWarning")
@pytest.mark.parametrize(("left", "right", "code"), [*BLOCKED, ((A, 1, 16, 15), (1, A, 15, 2), "batch")], ids=str)
def test_cutlass_partition_matmul_blocked(left, right, code, programs):
    module = module_of(lambda b, x, w: b.op("matmul", x, w), (left, "float16"), (right, "float16"))
    exe = ky.compile(module, target="cuda", backends=["cutlass"])
    assert composites(exe) == []
    assert_declined(exe, "cutlass", code)
    # Sizes with which what is not known to be the same is the same.
    sizes = {"a": 2} if left == (3, A, 1, 16, 15) else {"a": 3, "b": 3}
    programs.right(exe, module, **sizes)


def test_cutlass_partition_matmul_tuple_return_blocked(programs):
    """The product is also a result: it is not lost in a group."""

    def build(b, x, w, bias):
        y = b.op("matmul", x, w)
        z = b.op("add", y, bias)
        return y, z

    programs.partly(
        ["matmul"], "leaking-intermediate", build, ((16, 32), "float16"), ((32, 32), "float16"), ((32,), "float16")
    )


def test_cutlass_partition_matmul_cyclic_dependency_blocked(programs):
    """The residual is made of the product: taken together, the group would wait for itself."""

    def build(b, x, w):
        y = b.op("matmul", x, w)
        return b.op("add", y, b.op("exp", y))

    module = module_of(build, ((16, 32), "float16"), ((32, 32), "float16"))
    exe = compiled(module)
    assert composites(exe) == ["cutlass.matmul"]
    (region,) = [region for region in exe.report.regions if region.backend == "cutlass"]
    assert region.ops == ("matmul",)
    programs.right(exe, module)


# --- attention --------------------------------------------------------------------------------------------------------
ATTENTIONS = [
    (32, (A, 8), 16, (8, 8)),
    (32, (8, 8), 16, (8, 8)),
    (4, (16, 8), 32, (8, 8)),
    (4, (16, 8), 32, (8, 16)),
    (32, (8, 8), 16, (4, 4)),
    (2, (8, 8), 8, (256, 256)),
]


def attention_inputs(batch, rows, heads, sizes, dtype):
    return [
        ((batch, rows[0], heads, sizes[0]), dtype),
        ((batch, rows[1], heads, sizes[0]), dtype),
        ((batch, rows[1], heads, sizes[1]), dtype),
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("batch", "rows", "heads", "sizes"), ATTENTIONS, ids=str)
def test_attention_offload(batch, rows, heads, sizes, dtype, programs):
    def build(b, q, k, v):
        return b.op("nn.attention", q, k, v)

    programs.taken("attention", build, *attention_inputs(batch, rows, heads, sizes, dtype), **SIZES)


FULL = (2, 4, 16, 8)
BIASES = [
    tuple(full if keep else 1 for full, keep in zip(FULL, (i & 4, i & 2, i & 1, 1), strict=True)) for i in range(8)
]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_attention_bias_offload(shape, programs):
    def build(b, q, k, v, bias):
        return b.op("nn.attention_bias", q, k, v, bias)

    programs.taken("attention", build, *attention_inputs(2, (16, 8), 4, (8, 8), "float16"), (shape, "float16"))


@pytest.mark.parametrize("scale", [0.01, 1e-8, -0.5, 1.23])
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_scale_offload(scale, has_bias, programs):
    def build(b, *operands):
        return b.op("nn.attention_bias" if has_bias else "nn.attention", *operands, scale=scale)

    bias = [(FULL, "float16")] if has_bias else []
    programs.taken("attention", build, *attention_inputs(2, (16, 8), 4, (8, 8), "float16"), *bias)


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("rows", "has_bias"), [((8, 16), False), ((16, 16), False), ((8, 16), True)], ids=str)
def test_attention_causal_offload(rows, has_bias, causal, programs):
    def build(b, *operands):
        return b.op("nn.attention_bias" if has_bias else "nn.attention", *operands, causal=causal)

    bias = [((2, 4, *rows), "float16")] if has_bias else []
    programs.taken("attention", build, *attention_inputs(2, rows, 4, (8, 8), "float16"), *bias)


STACKED = [(4, 8, 32, 8, False), (4, 8, 16, 64, True), (2, A, 4, 8, False)]


def stacked(start, batch, rows, heads, size):
    def build(b, x, *bias):
        width = heads * size
        if start == "split":
            parts = b.op("split", x, axis=2, sections=(width,) * 3)
            pieces = [b.get(parts, i) for i in range(3)]
        else:
            slices = [{"begin": (i * width,), "end": ((i + 1) * width,)} for i in range(3)]
            pieces = [b.op("strided_slice", x, axes=(2,), strides=(1,), **s) for s in slices]
        operands = [b.op("reshape", piece, shape=(batch, rows, heads, size)) for piece in pieces]
        return b.op("nn.attention_bias" if bias else "nn.attention", *operands, *bias)

    return build


def check_stacked(start, batch, rows, heads, size, has_bias, programs):
    bias = [((batch, heads, rows, rows), "float16")] if has_bias else []
    build = stacked(start, batch, rows, heads, size)
    exe = programs.taken("stacked_attention", build, ((batch, rows, 3 * heads * size), "float16"), *bias, **SIZES)
    assert all(node.op != "split" or node.backend == "cutlass" for node in exe.report.nodes)


@pytest.mark.parametrize(("batch", "rows", "heads", "size", "has_bias"), STACKED, ids=str)
def test_stacked_attention_split_offload(batch, rows, heads, size, has_bias, programs):
    check_stacked("split", batch, rows, heads, size, has_bias, programs)


@pytest.mark.parametrize(("batch", "rows", "heads", "size", "has_bias"), STACKED, ids=str)
def test_stacked_attention_strided_slice_offload(batch, rows, heads, size, has_bias, programs):
    check_stacked("strided_slice", batch, rows, heads, size, has_bias, programs)


def spelled_out(b, q, k, v, bias=None, cast=False, scale=0.35, group=1):
    """Attention of (batch, sequence, heads, size) as many models write it."""
    batch, rows, heads, _ = q.tensor_type.shape

    def repeated(x):
        if group == 1:
            return x
        n, t, m, h = x.tensor_type.shape
        wide = b.op("broadcast_to", b.op("reshape", x, shape=(n, t, m, 1, h)), shape=(n, t, m, group, h))
        return b.op("reshape", wide, shape=(n, t, m * group, h))

    def flat(x):
        n, t, m, h = x.tensor_type.shape
        return b.op("reshape", b.op("permute_dims", x, axes=(0, 2, 1, 3)), shape=(n * m, t, h))

    keys = b.op("permute_dims", flat(repeated(k)), axes=(0, 2, 1))
    scores = b.op("multiply", b.op("matmul", flat(q), keys), np.array(scale, q.tensor_type.dtype))
    scores = scores if bias is None else b.op("add", scores, bias)
    scores = b.op("astype", scores, dtype="float32") if cast else scores
    weights = b.op("nn.softmax", scores, axis=2)
    weights = b.op("astype", weights, dtype="float16") if cast else weights
    result = b.op("matmul", weights, flat(repeated(v)))
    parts = b.op("reshape", result, shape=(batch, heads, rows, v.tensor_type.shape[3]))
    return b.op("permute_dims", parts, axes=(0, 2, 1, 3))


@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (6, 16, 16), (2, 16, 16), (16, 16)], ids=str)
def test_attention_rewrite_offload(shape, programs):
    """Attention that is spelled out, with a bias in the shapes in which models write it."""
    flat = {(2, 3, 16, 16): (6, 16, 16)}.get(shape, shape)
    if flat == (2, 16, 16):  # one bias for each example has no place beside batch and heads in one axis
        flat = (1, 16, 16)

    def build(b, q, k, v, bias):
        return spelled_out(b, q, k, v, bias)

    inputs = attention_inputs(2, (16, 16), 3, (8, 8), "float32")
    programs.taken("attention", build, *inputs, (flat, "float32"))


def test_attention_rewrite_fp16(programs):
    programs.taken(
        "attention",
        lambda b, *qkv: spelled_out(b, *qkv, cast=True),
        *attention_inputs(2, (16, 16), 4, (8, 8), "float16"),
    )


def test_attention_rewrite_multi_query(programs):
    """Heads of keys and values that are repeated are shared instead."""
    inputs = [((2, 16, 4, 8), "float32"), ((2, 16, 1, 8), "float32"), ((2, 16, 1, 8), "float32")]
    exe = programs.taken("attention", lambda b, *qkv: spelled_out(b, *qkv, group=4), *inputs)
    (graph,) = runtime_of(exe).graphs.values()
    assert [spec.shape for spec in graph.inputs] == [(2, 16, 4, 8), (2, 16, 1, 8), (2, 16, 1, 8)]


def var_len(queries, keys, programs, heads=4, shared=4, size=8, causal="none"):
    """Sequences of these lengths, packed."""
    starts = [np.cumsum([0, *lengths]).astype(np.int32) for lengths in (queries, keys)]
    longest = [np.array(max(lengths), np.int32) for lengths in (queries, keys)]

    def build(b, *operands):
        return b.op("nn.attention_var_len", *operands, causal=causal)

    tensors = [(1, sum(queries), heads, size), (1, sum(keys), shared, size), (1, sum(keys), shared, size)]
    inputs = [(shape, "float16") for shape in tensors] + [((len(queries) + 1,), "int32")] * 2 + [((), "int32")] * 2
    feeds = [values(shape, "float16", seed) for seed, shape in enumerate(tensors)]
    programs.taken("attention_var_len", build, *inputs, feeds=[*feeds, *starts, *longest])


@pytest.mark.parametrize("causal", ["none", "bottom_right"])
def test_batched_var_len_attention(causal, programs):
    var_len((5, 3, 8), (5, 3, 8), programs, causal=causal)
    var_len((1, 2, 65), (4, 9, 70), programs, causal=causal)


def test_batched_var_len_multi_query_attention(programs):
    var_len((5, 3, 8), (5, 3, 8), programs, heads=4, shared=1)


# --- norms ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((16, 16), (1,), "float16"),
        ((2, 8, 16), (2,), "float32"),
        ((2, 8, 16), (1,), "float32"),
        ((2, 8, 16), (1, 2), "float32"),
    ],
    ids=str,
)
def test_layer_norm(shape, axes, dtype, programs):
    def build(b, x, gamma, beta):
        return b.op("nn.layer_norm", x, gamma, beta, axes=axes)

    inner = tuple(shape[axis] for axis in axes)
    inputs = [(shape, dtype), (inner, dtype), (inner, dtype)]
    if axes == (len(shape) - 1,):
        programs.taken("layer_norm", build, *inputs)
    else:
        programs.declined("attribute", build, *inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rms_norm(dtype, programs):
    def build(b, x, gamma):
        return b.op("nn.rms_norm", x, gamma, axes=(2,), epsilon=1e-6)

    programs.taken("rms_norm", build, ((A, 4, 96), dtype), ((96,), dtype), **SIZES)


# --- weight-only quantization -----------------------------------------------------------------------------------------
def decoded(b, stored, scales, group=None):
    """A constant weight (K, N) of int8 times the scale of its column, or of its group of rows."""
    k, n = stored.shape
    if group is None:
        return b.op("multiply", b.op("astype", stored, dtype="float16"), scales)
    parts = b.op("astype", b.op("reshape", stored, shape=(k // group, group, n)), dtype="float16")
    return b.op("reshape", b.op("multiply", parts, scales.reshape(k // group, 1, n)), shape=(k, n))


def weight(bits, k, n, groups=1, seed=5):
    rng = np.random.default_rng(seed)
    most = 1 << (bits - 1)
    stored = rng.integers(-most, most, (k, n)).astype(np.int8)
    # Scales of few digits: the weights that the reference rounds to float16 are then the kernel's own.
    return stored, (rng.integers(8, 16, (groups, n)) / 2048).astype(np.float16)


def check_decode(bits, rows, k, n, programs, epilogue="none", groups=1, cast=False, residual=None):
    stored, scales = weight(bits, k, n, groups)

    def build(b, x, *operands):
        y = b.op("matmul", x, decoded(b, stored, scales, k // groups if groups > 1 else None))
        y = b.op("astype", y, dtype="float32") if cast else y
        return finished(b, y, operands, epilogue, *(residual or ()))

    out = "float32" if cast else "float16"
    inputs = [((*rows, k), "float16")] + ([((n,), out)] if epilogue != "none" else [])
    inputs += [((*rows, n), out)] if residual else []
    # What is rounded to float16 between the operators of the reference is not in the kernel.
    exe = programs.taken("decode_matmul", build, *inputs, dtype="float16", **SIZES)
    kernels = runtime_of(exe).codes
    assert {kernel.bits for kernel in kernels if kernel.template in ("decode_rows", "dequantize")} == {bits}
    return exe


@pytest.mark.parametrize("rows", [(1,), (16,), (40,), (A,)], ids=str)
def test_fp16A_int4B_gemm(rows, programs):
    """Few rows are multiplied as the weights are decoded; more, after they were."""
    check_decode(4, rows, 256, 512, programs, "bias")


@pytest.mark.parametrize(
    ("epilogue", "cast", "residual"),
    [
        ("none", False, None),
        ("bias", False, None),
        ("gelu", False, None),
        ("none", True, None),
        ("bias", True, None),
        ("gelu", True, None),
        ("bias", False, ("add", None)),
        ("gelu", False, ("multiply", "relu")),
        ("gelu", True, ("add", "relu")),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [(3,), (33,)], ids=str)
def test_fp16A_int8B_gemm(epilogue, cast, residual, rows, programs):
    check_decode(8, rows, 256, 512, programs, epilogue, cast=cast, residual=residual)


@pytest.mark.parametrize("rows", [(2, 3), (4, 12), (A, B)], ids=str)
def test_fp16A_int8B_gemm_batched(rows, programs):
    check_decode(8, rows, 256, 512, programs)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [(2, 3), (4, 12)], ids=str)
def test_fp16A_int8B_gemm_batched_finegrained(bits, rows, programs):
    """A scale for every 64 rows of a column."""
    check_decode(bits, rows, 256, 512, programs, groups=4)


# --- captured ---------------------------------------------------------------------------------------------------------
def test_conv2d_cuda_graph(programs):
    """All that a bound call does is to launch kernels, so that the device may capture it; replayed, it is right."""

    def build(b, x, w, bias):
        return b.op("nn.relu", b.op("add", conv_nhwc(b, x, w, padding=(1, 1, 1, 1)), bias))

    module = module_of(build, ((2, 8, 8, 8), "float16"), ((8, 3, 3, 8), "float16"), ((8,), "float16"))
    exe = compiled(module)
    assert composites(exe) == ["cutlass.conv2d"]
    assert runtime_of(exe).is_capturable
    machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
    feeds = feeds_of(module)
    first = machine["main"](*feeds).numpy()
    np.testing.assert_array_equal(machine["main"](*feeds).numpy(), first)
    programs.right(exe, module)


SCENARIOS = {
    "cutlass: kernel_sharing": test_kernel_sharing,
    "cutlass: conv2d_offload": test_conv2d_offload,
    "cutlass: conv2d_dynamic": test_conv2d_dynamic,
    "cutlass: cutlass_partition_conv2d_residual_blocked": test_cutlass_partition_conv2d_residual_blocked,
    "cutlass: conv2d_residual_broadcast": test_conv2d_residual_broadcast,
    "cutlass: conv2d_cuda_graph": test_conv2d_cuda_graph,
    "cutlass: matmul_offload": test_matmul_offload,
    "cutlass: matmul_with_3d_bias_offload": test_matmul_with_3d_bias_offload,
    "cutlass: is_shape_valid_for_cutlass_matmul": test_is_shape_valid_for_cutlass_matmul,
    "cutlass: cutlass_partition_matmul_blocked": test_cutlass_partition_matmul_blocked,
    "cutlass: cutlass_partition_matmul_tuple_return_blocked": test_cutlass_partition_matmul_tuple_return_blocked,
    "cutlass: cutlass_partition_matmul_cyclic_dependency_blocked": (
        test_cutlass_partition_matmul_cyclic_dependency_blocked
    ),
    "cutlass: attention_offload": test_attention_offload,
    "cutlass: attention_bias_offload": test_attention_bias_offload,
    "cutlass: attention_scale_offload": test_attention_scale_offload,
    "cutlass: attention_causal_offload": test_attention_causal_offload,
    "cutlass: stacked_attention_split_offload": test_stacked_attention_split_offload,
    "cutlass: stacked_attention_strided_slice_offload": test_stacked_attention_strided_slice_offload,
    "cutlass: attention_rewrite_offload": test_attention_rewrite_offload,
    "cutlass: attention_rewrite_fp16": test_attention_rewrite_fp16,
    "cutlass: attention_rewrite_multi_query": test_attention_rewrite_multi_query,
    "cutlass: batched_var_len_attention": test_batched_var_len_attention,
    "cutlass: batched_var_len_multi_query_attention": test_batched_var_len_multi_query_attention,
    "cutlass: layer_norm": test_layer_norm,
    "cutlass: rms_norm": test_rms_norm,
    "cutlass: fp16A_int4B_gemm": test_fp16A_int4B_gemm,
    "cutlass: fp16A_int8B_gemm": test_fp16A_int8B_gemm,
    "cutlass: fp16A_int8B_gemm_batched": test_fp16A_int8B_gemm_batched,
    "cutlass: fp16A_int8B_gemm_batched_finegrained": test_fp16A_int8B_gemm_batched_finegrained,
}
