"""What is taken and what is declined, with which code; every defect of TVM's that concerns such a library, by name."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import KernelyardError, OptionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import is_op, register_patterns, unregister_patterns, wildcard
from kernelyard.testing import assert_declined
from kernelyard.testing.offload_bench import module_of, values
from kernelyard_cutlass import tune
from kernelyard_cutlass.compiler import key_of, text_of
from kernelyard_cutlass.epilogue import Epilogue
from kernelyard_cutlass.kernels import GemmKernel, Tile
from kernelyard_cutlass.tiles import Problem
from kernelyard_cutlass.toolchain import Toolchain

from .conftest import compiled, composites, runtime_of
from .test_tvm_scenarios import conv_nhwc

N = symbol("n")
F16 = "float16"
TILE = Tile(64, 64, 32, 32, 32, 5)


def matmul(b, x, w):
    return b.op("matmul", x, w)


def biased(b, x, w, bias):
    return b.op("add", b.op("matmul", x, w), bias)


# --- dtypes and architectures -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats(dtype, programs):
    def build(b, x, w, bias):
        return b.op("nn.silu", biased(b, x, w, bias))

    programs.taken("matmul", build, ((N, 24), dtype), ((24, 40), dtype), ((40,), dtype), n=5)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
def test_dtypes_that_the_templates_have_not(dtype, programs):
    programs.declined("dtype", matmul, ((4, 16), dtype), ((16, 8), dtype))


@pytest.mark.parametrize(("arch", "code"), [("sm_75", "arch"), ("sm_70", "arch"), ("sm_80,sm_75", "arch")])
def test_architectures_before_the_templates(arch, code):
    """What is taken depends on the target alone: nothing is compiled to say no."""
    module = module_of(matmul, ((4, 16), F16), ((16, 8), F16))
    report = ky.explain(module, target=ky.Target("cuda", arch=arch), backends=["cutlass"])
    assert_declined(report, "cutlass", code)


def test_the_architecture_does_not_change_what_is_taken():
    module = module_of(matmul, ((4, 16), F16), ((16, 8), F16))
    for arch in (None, "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120"):
        report = ky.explain(module, target=ky.Target("cuda", arch=arch), backends=["cutlass"])
        assert [region.pattern for region in report.regions] == ["cutlass.matmul"]


# --- alignments -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("k", "n", "expected"), [(24, 40, (8, 8, 8)), (12, 10, (4, 2, 2)), (7, 9, (1, 1, 1)), (8, N, (8, 1, 1))], ids=str
)
def test_alignments_are_those_of_the_rows(k, n, expected, programs):
    exe = programs.taken("matmul", matmul, ((4, k), F16), ((k, n), F16), n=6)
    for kernel in runtime_of(exe).codes:
        assert (kernel.alignment_a, kernel.alignment_b, kernel.alignment_c) == expected
        # Copies that overlap bring at least four bytes; without them two sets of operands are all that helps.
        assert (kernel.tile.stages == 2) is (min(expected[:2]) < 2)


def test_a_stored_transposition_is_a_layout(programs):
    def build(b, x, w):
        return b.op("matmul", x, b.op("permute_dims", w, axes=(1, 0)))

    exe = programs.taken("matmul", build, ((4, 24), F16), ((10, 24), F16))
    (kernel,) = runtime_of(exe).codes
    assert kernel.column_major
    assert (kernel.alignment_b, kernel.alignment_c) == (8, 2)


# --- int8 -------------------------------------------------------------------------------------------------------------
def wide(b, x):
    return b.op("astype", x, dtype="int32")


@pytest.mark.parametrize("is_first", [True, False])
def test_int8_is_read_along_what_is_summed(is_first, programs):
    def build(b, x, w, bias):
        transposed = b.op("permute_dims", w, axes=(1, 0)) if is_first else w
        w = wide(b, transposed)
        w = w if is_first else b.op("permute_dims", w, axes=(1, 0))
        return b.op("add", b.op("matmul", wide(b, x), w), bias)

    programs.taken("matmul_int8", build, ((N, 32), "int8"), ((12, 32), "int8"), ((12,), "int32"), n=3)


def test_int8_constants_are_packed(programs):
    weight = values((512, 256), "int8")

    def build(b, x):
        return b.op("matmul", wide(b, x), wide(b, weight))

    exe = programs.taken("matmul_int8", build, ((4, 512), "int8"))
    (constant,) = runtime_of(exe).constants().values()
    np.testing.assert_array_equal(constant, weight.T)


def test_int8_that_cannot_be_read_so(programs):
    def build(b, x, w):
        return b.op("matmul", wide(b, x), wide(b, w))

    programs.declined("layout", build, ((4, 16), "int8"), ((16, 8), "int8"))
    programs.declined("alignment", build, ((4, 18), "int8"), ((18, 8), "int8"))


# --- epilogues --------------------------------------------------------------------------------------------------------
ACTIVATIONS = ["nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "nn.hard_swish"]


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_every_activation(op, programs):
    def build(b, x, w, bias, residual):
        y = b.op(op, biased(b, x, w, bias))
        return b.op(op, b.op("multiply", residual, y))

    shapes = ((5, 16), (16, 24), (24,), (5, 24))
    exe = programs.taken("matmul", build, *((shape, "float32") for shape in shapes))
    (kernel,) = runtime_of(exe).codes
    name = op.removeprefix("nn.")
    assert kernel.epilogue == Epilogue(name, "multiply", name)


def test_an_activation_that_cutlass_has_not(programs):
    def build(b, x, w, bias):
        return b.op("nn.hard_swish", biased(b, x, w, bias), alpha=0.2, beta=0.4)

    inputs = ((5, 16), F16), ((16, 24), F16), ((24,), F16)
    programs.partly(["matmul"], "attribute", build, *inputs)


def test_two_matrices_are_more_than_the_epilogue_reads(programs):
    def build(b, x, w, one, other):
        return b.op("add", b.op("add", b.op("matmul", x, w), one), other)

    inputs = ((5, 16), F16), ((16, 24), F16), ((5, 24), F16), ((5, 24), F16)
    programs.partly(["matmul"], "residual", build, *inputs)


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_a_residual_that_is_made_of_the_product_itself(op, programs):
    """Nothing else reads the product, so that a group of all would be legal; the epilogue cannot read it twice."""

    def build(b, x, w):
        y = b.op("matmul", x, w)
        return b.op(op, b.op("nn.gelu", y), y)

    inputs = ((5, 16), F16), ((16, 24), F16)
    programs.partly(["matmul"], "operand", build, *inputs)


def test_a_product_may_be_widened_first(programs):
    def build(b, x, w, bias):
        return b.op("nn.gelu", b.op("add", b.op("astype", b.op("matmul", x, w), dtype="float32"), bias))

    exe = programs.taken("matmul", build, ((5, 16), F16), ((16, 24), F16), ((24,), "float32"), dtype=F16)
    (kernel,) = runtime_of(exe).codes
    assert (kernel.dtype, kernel.output) == (F16, "float32")


# --- convolutions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "attrs",
    [
        {"padding": (0, 1, 2, 1)},
        {"strides": (2, 1), "padding": (1, 1, 1, 1)},
        {"dilation": (2, 2), "padding": (2, 2, 2, 2)},
        {"strides": (3, 2), "dilation": (1, 2), "padding": (0, 2, 1, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [3, 8])
def test_convolutions(attrs, channels, programs):
    def build(b, x, w):
        return conv_nhwc(b, x, w, **attrs)

    programs.taken("conv2d", build, ((2, 9, 10, channels), F16), ((12, 3, 2, channels), F16))


def test_weights_are_packed_or_transposed():
    """Constants when the model is compiled, parameters with channels first by a kernel, those with channels last not."""
    weight = values((8, 4, 3, 3), F16)
    constant = runtime_of(compiled(module_of(lambda b, x: b.op("nn.conv2d", x, weight), ((1, 4, 8, 8), F16))))
    (packed,) = constant.constants().values()
    np.testing.assert_array_equal(packed, weight.transpose(0, 2, 3, 1))
    module = module_of(lambda b, x, w: b.op("nn.conv2d", x, w), ((1, 4, 8, 8), F16), ((8, 4, 3, 3), F16))
    templates = {kernel.template for kernel in runtime_of(compiled(module)).codes}
    assert templates == {"conv2d", "transpose"}


def test_images_with_channels_first_are_permuted_at_the_ends_of_a_chain(programs):
    def build(b, x):
        y = b.op("nn.relu", b.op("nn.conv2d", x, values((8, 4, 3, 3), F16), padding=(1, 1, 1, 1)))
        z = b.op("nn.conv2d", y, values((8, 8, 3, 3), F16, 1), padding=(1, 1, 1, 1))
        return b.op("nn.relu", b.op("add", z, y))

    module = module_of(build, ((2, 4, 6, 6), F16))
    exe = compiled(module)
    assert composites(exe) == ["cutlass.conv2d"] * 2
    rest = [node.op for node in exe.report.nodes if node.backend == "native-cuda"]
    assert rest == ["permute_dims"] * 2
    programs.right(exe, module)


@pytest.mark.parametrize(("taps", "algorithm"), [(32, "kOptimized"), (33, "kAnalytic")])
def test_wide_windows_are_walked_in_another_way(taps, algorithm, programs):
    def build(b, x, w):
        return conv_nhwc(b, x, w, padding=(0, 16, 0, 16))

    exe = programs.taken("conv2d", build, ((1, 2, 20, 8), F16), ((8, 1, taps, 8), F16))
    assert {kernel.algorithm for kernel in runtime_of(exe).codes} == {algorithm}


def test_groups_are_declined(programs):
    def build(b, x, w):
        return b.op("nn.conv2d", x, w, groups=4)

    programs.declined("attribute", build, ((1, 4, 6, 6), F16), ((4, 1, 3, 3), F16))


# --- attention --------------------------------------------------------------------------------------------------------
def attention(b, *operands, **attrs):
    return b.op("nn.attention_bias" if len(operands) == 4 else "nn.attention", *operands, **attrs)


def qkv(size=8, rows=6, columns=10, heads=4, shared=4, wide=None):
    return (
        ((2, rows, heads, size), F16),
        ((2, columns, shared, size), F16),
        ((2, columns, shared, wide or size), F16),
    )


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_heads_may_share_keys(shared, programs):
    programs.taken("attention", attention, *qkv(shared=shared))


@pytest.mark.parametrize(("size", "is_aligned"), [(64, True), (12, False), (4, False), (96, True), (200, True)])
def test_sizes_of_heads(size, is_aligned, programs):
    exe = programs.taken("attention", attention, *qkv(size))
    (kernel,) = runtime_of(exe).codes
    assert kernel.is_aligned is is_aligned
    assert kernel.most_size >= size


def test_unknown_numbers_of_queries_and_keys(programs):
    exe = programs.taken("attention", attention, *qkv(rows=N, columns=symbol("t")), n=3, t=77)
    programs.right(exe, module_of(attention, *qkv(rows=N, columns=symbol("t"))), n=70, t=1)


@pytest.mark.parametrize("columns", [10, 16, symbol("t")], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 6), (1, 1, 6), (2, 1, 1)], ids=str)
def test_rows_of_a_bias_that_are_not_aligned_are_copied(columns, shape, programs):
    exe = programs.taken("attention", attention, *qkv(columns=columns), ((*shape, columns), F16), t=13)
    assert any(kernel.template == "pad" for kernel in runtime_of(exe).codes) is (columns != 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_of_other_floats(dtype, programs):
    inputs = [(shape, dtype) for shape, _ in qkv(size=8, wide=16)]
    programs.taken("attention", attention, *inputs)


def test_attention_that_is_declined(programs):
    programs.declined("alignment", attention, *qkv(6))
    programs.declined("operand", attention, *qkv(), ((2, 4, 6, 1), F16))

    def top(b, *operands):
        return attention(b, *operands, causal="bottom_right")

    module = module_of(top, *qkv(rows=12, columns=6))
    assert composites(compiled(module)) == []


def test_a_bias_of_known_size_for_unknown_batches(programs):
    """What the operator takes to be equal is checked before a program runs, so that nothing is read outside."""
    shapes = ((N, 6, 4, 8), (N, 10, 4, 8), (N, 10, 4, 8), (2, 1, 1, 10))
    module = module_of(attention, *((shape, F16) for shape in shapes))
    exe = programs.taken("attention", attention, *((shape, F16) for shape in shapes), n=2)
    with pytest.raises(KernelyardError):
        programs.right(exe, module, n=3)


# --- norms ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("columns", [1, 7, 64, 1000, 5000])
def test_norms_of_any_width(columns, programs):
    def build(b, x, gamma, beta):
        return b.op("nn.layer_norm", x, gamma, beta, axes=(1,), epsilon=1e-3)

    programs.taken(
        "layer_norm", build, ((N, columns), "float32"), ((columns,), "float32"), ((columns,), "float32"), n=3
    )


# --- weight-only quantization -----------------------------------------------------------------------------------------
def weight(most=7, k=512, n=256):
    rng = np.random.default_rng(3)
    return rng.integers(-most, most + 1, (k, n)).astype(np.int8), (rng.integers(8, 16, n) / 1024).astype(np.float16)


def spelling(name, b, stored, scales):
    """The ways in which a weight is decoded in models, and by importers."""
    k, n = stored.shape
    if name == "dequantize":
        return b.op("dequantize", stored, scales, np.int8(0), axis=1, dtype=F16)
    if name == "one scale":
        return b.op("multiply", b.op("astype", stored, dtype=F16), np.float16(0.01))
    if name == "through float32":
        whole = b.op("astype", b.op("astype", stored, dtype="int32"), dtype="float32")
        return b.op("astype", b.op("multiply", whole, scales.astype(np.float32)), dtype=F16)
    if name == "transposed":
        transposed = b.op("multiply", b.op("astype", np.ascontiguousarray(stored.T), dtype=F16), scales[:, None])
        return b.op("permute_dims", transposed, axes=(1, 0))
    spread = b.op("broadcast_to", scales.reshape(1, 1, n), shape=(k // 32, 32, n))  # blocks, as ONNX has them
    return b.op("multiply", b.op("astype", stored, dtype=F16), b.op("reshape", spread, shape=(k, n)))


@pytest.mark.parametrize("most", [7, 100])
@pytest.mark.parametrize("name", ["dequantize", "one scale", "through float32", "transposed", "blocks"])
def test_spellings_of_decoding(name, most, programs):
    stored, scales = weight(most)

    def build(b, x):
        return b.op("matmul", x, spelling(name, b, stored, scales))

    exe = programs.taken("decode_matmul", build, ((5, 512), F16))
    constants = runtime_of(exe).constants().values()
    nbytes = max(constant.nbytes for constant in constants)
    assert nbytes == stored.size // (2 if most == 7 else 1), "weights of 4 bits are stored two in a byte"


def test_weights_that_are_declined(programs):
    stored, scales = weight()

    def zero_point(b, x):
        decoded = b.op("dequantize", stored, scales, np.full(256, 3, np.int8), axis=1, dtype=F16)
        return b.op("matmul", x, decoded)

    module = module_of(zero_point, ((5, 512), F16))
    exe = compiled(module)
    assert "cutlass.decode_matmul" not in composites(exe)
    assert_declined(exe, "cutlass", "operand", "cutlass.decode_matmul")
    programs.right(exe, module)


# --- options ----------------------------------------------------------------------------------------------------------
def test_options_are_checked():
    module = module_of(matmul, ((4, 16), F16), ((16, 8), F16))
    for options in ({"f32": "fast"}, {"tune": 3}):
        with pytest.raises(OptionError):
            compiled(module, **options)


def test_float32_may_be_multiplied_faster(programs):
    for f32 in ("3xtf32", "tf32"):
        exe = programs.taken(
            "matmul", matmul, ((4, 16), "float32"), ((16, 8), "float32"), options={"f32": f32}, dtype=F16
        )
        assert {kernel.math for kernel in runtime_of(exe).codes} == {f32}


# --- defects ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_a_bias_of_one_number(shape, programs):
    """It would be read as if it had a number for each column."""
    programs.partly(["matmul"], "bias", biased, ((5, 16), F16), ((16, 24), F16), (shape, F16))


def test_a_bias_of_one_number_for_one_column(programs):
    def constant(b, x, w):
        return b.op("add", b.op("matmul", x, w), np.float16(0.5))

    programs.taken("matmul", biased, ((5, 16), F16), ((16, 1), F16), ((1,), F16))
    programs.taken("matmul", constant, ((5, 16), F16), ((16, 1), F16))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_constant_of_one_number_is_spread_to_a_row(dtype, programs):
    """Also what the simplifier makes of a bias whose numbers are all the same."""

    def build(b, x, w):
        y = b.op("nn.silu", b.op("add", b.op("matmul", x, w), np.full(24, 0.5, dtype)))
        return b.op("nn.relu", b.op("multiply", y, np.array(2, dtype)))

    exe = programs.taken("matmul", build, ((N, 16), dtype), ((16, 24), dtype), n=5)
    assert {constant.shape for constant in runtime_of(exe).constants().values()} == {(24,)}

    def convolution(b, x, w):
        return b.op("add", conv_nhwc(b, x, w), np.array(2, dtype))

    programs.taken("conv2d", convolution, ((1, 5, 5, 8), dtype), ((8, 3, 3, 8), dtype))


def test_a_bias_that_is_wider_than_the_product(programs):
    programs.partly(["matmul"], "bias", biased, ((5, 16), F16), ((16, 1), F16), ((24,), F16))


def test_a_bias_of_rows(programs):
    programs.partly(["matmul"], "bias", biased, ((5, 16), F16), ((16, 24), F16), ((5, 1), F16))


def test_batches_of_equal_number_and_other_shape(programs):
    programs.declined("batch", matmul, ((2, 1, 5, 16), F16), ((1, 2, 16, 8), F16))


def test_one_right_operand_for_many_left_ones(programs):
    """A right side (1, K, N) is one matrix: all rows are one product."""
    exe = programs.taken("matmul", matmul, ((5, 4, 16), F16), ((1, 16, 8), F16))
    assert composites(exe) == ["cutlass.matmul"]


def test_vectors_are_no_matrices(programs):
    programs.declined("rank", matmul, ((16,), F16), ((16, 8), F16))
    programs.declined("rank", matmul, ((4, 16), F16), ((16,), F16))


def test_a_permutation_that_does_not_swap_the_last_two_axes_stays_outside(programs):
    def build(b, x, w):
        return b.op("matmul", x, b.op("permute_dims", w, axes=(2, 1, 0)))

    module = module_of(build, ((4, 5, 16), F16), ((8, 16, 4), F16))
    exe = compiled(module)
    (region,) = [region for region in exe.report.regions if region.backend == "cutlass"]
    assert region.ops == ("matmul",)
    programs.right(exe, module)


@pytest.mark.parametrize("op", ["nn.gelu", "nn.gelu_tanh"])
def test_gelu_by_erf_is_not_its_approximation(op, programs):
    """Each has a functor of its own; where they differ, so do the kernels."""

    def build(b, x, w, bias):
        return b.op(op, biased(b, x, w, bias))

    x = np.linspace(-4, 4, 64, dtype=np.float32)[:, None]
    feeds = [x, np.ones((1, 4), np.float32), np.zeros(4, np.float32)]
    exe = programs.taken("matmul", build, ((64, 1), "float32"), ((1, 4), "float32"), ((4,), "float32"), feeds=feeds)
    (kernel,) = runtime_of(exe).codes
    functor = "GELU" if op == "nn.gelu" else "GELU_taylor"
    assert f"#define KY_ACTIVATION cutlass::epilogue::thread::{functor}" in text_of(kernel).splitlines()


def test_what_runs_is_read_from_the_match_and_not_from_a_name(programs):
    """A function that is called like an epilogue has none."""
    b = FunctionBuilder()
    y = b.op("matmul", b.input("gelu_relu_bias", (4, 16), F16), b.input("residual_multiply", (16, 8), F16))
    module = IRModule({"main": b.function(y)})
    exe = compiled(module)
    (kernel,) = runtime_of(exe).codes
    assert kernel.epilogue == Epilogue()
    programs.right(exe, module)


def gemm(**changed):
    given = {
        "dtype": F16, "output": F16, "math": F16, "alignment_a": 8, "alignment_b": 8, "alignment_c": 8, "tile": TILE,
        "epilogue": Epilogue(), "column_major": False,
    }  # fmt: skip
    return GemmKernel(**{**given, **changed})


OTHERS = {
    "dtype": gemm(dtype="bfloat16", output="bfloat16", math="bfloat16"),
    "output": gemm(output="float32"),
    "math": gemm(math="bfloat16"),
    "layout": gemm(column_major=True),
    "alignment": gemm(alignment_b=4),
    "tile": gemm(tile=Tile(128, 128, 32, 64, 64, 4)),
    "stages": gemm(tile=Tile(64, 64, 32, 32, 32, 4)),
    "epilogue": gemm(epilogue=Epilogue("relu")),
    "residual": gemm(epilogue=Epilogue("none", "add")),
}


def toolchain(tmp_path, nvrtc="12.9", cutlass="4.2.0"):
    return Toolchain("libnvrtc.so.12", nvrtc, tmp_path, cutlass, (tmp_path,))


@pytest.mark.parametrize("what", OTHERS)
def test_what_was_compiled_or_measured_is_kept_by_more_than_its_sizes(what, tmp_path):
    """TVM's caches are keyed by M, N and K alone, so that float32 gets what was found for float16."""
    here = toolchain(tmp_path)
    assert key_of(gemm(), "sm_80", here) != key_of(OTHERS[what], "sm_80", here)
    if what not in ("tile", "stages"):
        problem = Problem(64, 64, 64, 1, 2)
        assert tune.key_of(problem, [gemm()], "sm_80") != tune.key_of(problem, [OTHERS[what]], "sm_80")


def test_what_was_compiled_is_kept_for_one_architecture_and_one_toolchain(tmp_path):
    keys = {
        key_of(gemm(), "sm_80", toolchain(tmp_path)),
        key_of(gemm(), "sm_90", toolchain(tmp_path)),
        key_of(gemm(), "sm_80", toolchain(tmp_path, nvrtc="13.0")),
        key_of(gemm(), "sm_80", toolchain(tmp_path, cutlass="4.3.0")),
    }
    assert len(keys) == 4


def test_what_was_measured_is_kept_for_one_problem_and_one_device():
    problem = Problem(64, 64, 64, 1, 2)
    keys = {
        tune.key_of(problem, [gemm()], "sm_80"),
        tune.key_of(problem, [gemm()], "sm_90"),
        tune.key_of(Problem(64, 64, 64, 2, 2), [gemm()], "sm_80"),
    }
    assert len(keys) == 3


SCENARIOS = {
    "cutlass: a bias of one number (defect of TVM)": test_a_bias_of_one_number,
    "cutlass: a bias wider than the product (defect of TVM)": test_a_bias_that_is_wider_than_the_product,
    "cutlass: batches of equal number, other shape (defect of TVM)": test_batches_of_equal_number_and_other_shape,
    "cutlass: one right operand of rank 3 (defect of TVM)": test_one_right_operand_for_many_left_ones,
    "cutlass: vectors (defect of TVM)": test_vectors_are_no_matrices,
    "cutlass: any permutation taken for a transposition (defect of TVM)": (
        test_a_permutation_that_does_not_swap_the_last_two_axes_stays_outside
    ),
    "cutlass: gelu taken for its approximation (defect of TVM)": test_gelu_by_erf_is_not_its_approximation,
    "cutlass: behaviour read from a name (defect of TVM)": (test_what_runs_is_read_from_the_match_and_not_from_a_name),
    "cutlass: caches keyed by sizes alone (defect of TVM)": (
        test_what_was_compiled_or_measured_is_kept_by_more_than_its_sizes
    ),
}


def test_a_scripts_own_pattern_is_named_and_runs_elsewhere():
    register_patterns([("cutlass.own", is_op("nn.relu")(is_op("matmul")(wildcard(), wildcard())))])
    try:
        module = module_of(lambda b, x, w: b.op("nn.relu", b.op("matmul", x, w)), ((4, 16), F16), ((16, 8), F16))
        exe = ky.compile(module, target=ky.Target("cuda", arch="sm_80"), backends=["cutlass"])
    finally:
        unregister_patterns("cutlass")
    (violation,) = exe.report.violations
    assert "this is none of them" in violation.message
    assert {node.backend for node in exe.report.nodes} == {"native-cuda"}
