"""What cuBLASLt is not given, and why; what TVM's check of cuBLAS patterns accepts, and its runtime cannot do.

Each program is right wherever it runs; most of these tests say first that the library does not run it, or not all of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder
from kernelyard.patterns import Accept, Decline, FusionPattern
from kernelyard.target import Target
from kernelyard.testing import assert_declined
from kernelyard.testing.offload_bench import module_of, values
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.checks import Checks
from kernelyard_cublas.patterns import fusion_patterns

from .conftest import compiled, region_of
from .test_tvm_scenarios import E4M3, transposed

A, B, N = symbol("a"), symbol("b"), symbol("n")
F32 = "float32"


def product(b, x, w):
    return b.op("matmul", x, w)


def plus(b, x, w, y):
    return b.op("add", b.op("matmul", x, w), y)


def f32(*shapes):
    return [(shape, F32) for shape in shapes]


# --- the defects of TVM -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bias", [(), (1,), (1, 1)])
def test_a_bias_of_one_number(bias, products):
    """Its epilogue would read as many numbers as there are columns."""
    products.partly(["matmul"], "bias", plus, *f32((4, 8), (8, 6), bias), at="matmul_bias")


def test_a_number_is_no_bias(products):
    def build(b, x, w):
        return b.op("add", b.op("matmul", x, w), np.float32(1.5))

    products.partly(["matmul"], "bias", build, *f32((4, 8), (8, 6)), at="matmul_bias")


@pytest.mark.parametrize("bias", [(7,), (N,), (3, 1, 1)])
def test_a_bias_that_is_wider_than_the_product(bias, products):
    products.partly(["matmul"], "bias", plus, *f32((4, 8), (8, 1), bias), at="matmul_bias", n=5)


def test_batches_of_equal_number_and_other_shape(products):
    products.declined("batch", product, *f32((2, 1, 4, 8), (1, 2, 8, 6)))
    products.declined("batch", product, *f32((2, 1, 4, 8), (2, 8, 6)))


@pytest.mark.parametrize("right", [(1, 8, 6), (1, 1, 8, 6), (8, 6)])
def test_one_right_operand_for_many_left_ones(right, products):
    """All rows of all batches are rows of one product."""
    exe = products.taken("matmul", product, *f32((5, 4, 8), right))
    assert "cublas" in exe.report.summary


def test_one_left_operand_for_many_right_ones(products):
    products.taken("matmul", product, *f32((4, 8), (5, 8, 6)))
    products.taken(
        "matmul_transposed", lambda b, x, w: b.op("matmul", x, transposed(b, w)), *f32((1, 4, 8), (A, 6, 8)), a=2
    )


def test_symbolic_batches_are_compared(products):
    products.declined("batch", product, *f32((A, 4, 8), (B, 8, 6)), a=3, b=3)
    products.taken("matmul", product, *f32((A, 4, 8), (A, 8, 6)), a=3)
    products.taken("matmul", product, *f32((4, 8), (A, 8, 6)), a=3)
    products.taken("matmul", product, *f32((A + B, B, 4, 8), (A + B, B, 8, 6)), a=3, b=2)


@pytest.mark.parametrize(("left", "right"), [((8,), (8, 6)), ((4, 8), (8,)), ((8,), (8,)), ((5, 4, 8), (8,))])
def test_vectors_are_no_matrices(left, right, products):
    products.declined("rank", product, *f32(left, right))


def test_a_permutation_that_does_not_swap_the_last_two_axes_is_not_the_librarys(products):
    def build(b, x, w):
        return b.op("matmul", x, b.op("permute_dims", w, axes=(2, 1, 0)))

    exe = compiled(module_of(build, *f32((5, 4, 8), (6, 8, 5))))
    assert region_of(exe).ops == ("matmul",)
    assert region_of(exe).pattern == "cublas.matmul"
    products.right(exe, module_of(build, *f32((5, 4, 8), (6, 8, 5))))


def test_gelu_by_erf_is_not_its_approximation(products):
    def build(b, x, w):
        return b.op("nn.gelu", b.op("matmul", x, w))

    products.partly(["matmul"], "approximation", build, *f32((4, 8), (8, 6)), at="matmul_gelu")
    exact = products.taken("matmul_gelu", lambda b, x, w: b.op("nn.gelu_tanh", product(b, x, w)), *f32((4, 8), (8, 6)))
    assert region_of(exact).ops == ("matmul", "nn.gelu_tanh")


def test_a_product_of_integers_keeps_its_scale(products):
    """It is made in float32 then: what is summed up as int32 cannot be multiplied by a number."""

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        return b.op("dequantize", b.op("matmul", x, w), np.float32(0.125), np.int32(0))

    exe = products.taken("matmul_dequantize", build, ((20, 8), "int8"), ((8, 16), "int8"))
    assert "alpha=0.125" in exe.inspect()


def test_what_runs_is_read_from_the_match_and_not_from_a_name(products):
    """A pattern called after another activation than its own."""
    named = {pattern.name: pattern for pattern in fusion_patterns(Checks(Target("cuda")))}
    relu = named["cublas.matmul_relu"]

    class Renamed(CublasBackend):
        def patterns(self, target):
            return [FusionPattern("cublas.matmul_gelu_bias_x", relu.pattern, relu.check, relu.attrs_getter)]

    from kernelyard.placement.partition import partition
    from kernelyard.placement.settings import PlacementSettings
    from kernelyard.transform.partition.run_codegen import RunCodegen

    module = module_of(lambda b, x, w: b.op("nn.relu", product(b, x, w)), *f32((4, 8), (8, 6)))
    backend = Renamed()
    generated = RunCodegen({"cublas": backend.codegen})(partition(module, [backend], PlacementSettings(Target("cuda"))))
    (runtime,) = generated.attrs["external_modules"]
    assert "activation=relu" in runtime.inspect()
    assert "bias" not in runtime.inspect()


# --- types ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("left", "right"), [("float16", "float32"), ("int8", "float16"), ("bfloat16", "float16")])
def test_operands_of_two_types(left, right, products):
    """Each is cast by itself; the product of what is float32 then is the library's."""

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype=F32) if each.tensor_type.dtype != F32 else each for each in (x, w))
        return b.op("matmul", x, w)

    products.partly(["matmul"], "dtype", build, ((4, 8), left), ((8, 12), right))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "float8_e5m2"])
def test_types_that_the_library_does_not_multiply(dtype, products):
    products.declined("dtype", product, ((4, 16), dtype), ((16, 16), dtype))


def test_operands_are_read_through_casts_that_widen(products):
    def build(b, x, w, bias):
        x, w = (b.op("astype", each, dtype=F32) for each in (x, w))
        return b.op("nn.relu", b.op("add", b.op("matmul", x, w), bias))

    for dtype in ("float16", "bfloat16"):
        exe = products.taken("matmul_bias_relu", build, ((N, 8), dtype), ((8, 6), dtype), ((6,), F32), n=3)
        assert region_of(exe).ops.count("astype") == 2


def test_a_cast_that_others_read_too_is_left_to_them(products):
    """The product is of float32 then."""

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype=F32) for each in (x, w))
        return b.op("matmul", x, w), b.op("exp", x)

    module = module_of(build, ((4, 8), "float16"), ((8, 6), "float16"))
    exe = compiled(module)
    assert "astype" not in region_of(exe).ops
    products.right(exe, module)


def test_float64(products):
    products.taken("matmul_residual", plus, ((4, 8), "float64"), ((8, 6), "float64"), ((4, 6), "float64"))
    products.partly(["matmul"], "bias", plus, ((4, 8), "float64"), ((8, 6), "float64"), ((6,), "float64"))

    def relu(b, x, w):
        return b.op("nn.relu", product(b, x, w))

    products.partly(["matmul"], "activation", relu, ((4, 8), "float64"), ((8, 6), "float64"))


def test_float8_needs_a_gpu_that_has_it(products):
    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="float16") for each in (x, w))
        return b.op("matmul", x, transposed(b, w))

    inputs = ((16, 32), E4M3), ((16, 32), E4M3)
    for arch in ("sm_80", "sm_80,sm_90"):
        exe = compiled(module_of(build, *inputs), arch)
        assert_declined(exe, "cublas", "arch", "cublas.matmul_transposed")
        assert "astype" not in region_of(exe).ops
    for arch in ("sm_89", "sm_90", "sm_100", None):
        assert region_of(compiled(module_of(build, *inputs), arch)).ops.count("astype") == 2


def test_a_bias_of_float8(products):
    """The library would read one of bfloat16 where the result is float32: operands are cast before the product then."""

    def build(result):
        def inner(b, x, w, bias):
            x, w = (b.op("astype", each, dtype=result) for each in (x, w))
            return b.op("nn.relu", b.op("add", b.op("matmul", x, transposed(b, w)), bias))

        return inner

    operands = ((16, 32), E4M3), ((16, 32), E4M3)
    products.taken("matmul_transposed_bias_relu", build("float16"), *operands, ((16,), "float16"))
    exe = products.partly(["matmul_transposed_bias_relu"], "bias", build(F32), *operands, ((16,), F32))
    assert "astype" not in region_of(exe).ops


def test_scales_are_numbers_on_the_device_for_float8_alone(products):
    def build(b, x, w, scale_a, scale_b):
        return b.op("multiply", b.op("matmul", x, w), b.op("multiply", scale_a, scale_b))

    inputs = f32((4, 8), (8, 6), (1,), (1,))
    products.partly(["matmul"], "dtype", build, *inputs, at="matmul_multiply")


# --- sizes ------------------------------------------------------------------------------------------------------------
def test_every_size_may_be_unknown(products):
    products.taken("matmul_bias", plus, *f32((A, N), (N, B), (B,)), a=3, b=5, n=7)
    products.taken("matmul", product, *f32((A, B, 4, N + 1), (A, B, N + 1, 6)), a=2, b=3, n=4)


def test_a_summed_axis_that_may_be_empty(products):
    products.declined("dynamic-shape", product, *f32((4, N - 1), (N - 1, 6)), n=3)
    products.declined("dynamic-shape", product, *f32((4, 0), (0, 6)))


@pytest.mark.parametrize(("rows", "columns"), [(N - 1, 6), (4, N - 1)])
def test_nothing_is_run_for_an_empty_product(rows, columns, products):
    module = module_of(product, *f32((rows, 8), (8, columns)))
    exe = compiled(module)
    assert region_of(exe).pattern == "cublas.matmul"
    before = products.api.calls["matmul"]
    products.right(exe, module, n=1)  # 0 rows, or columns, and then 3
    assert products.api.calls["matmul"] == before + 1


def test_integers_of_unknown_sizes(products):
    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        return b.op("matmul", x, w)

    products.taken("matmul", build, ((N, 32, 8), "int8"), ((N, 8, 16), "int8"), n=3)
    products.taken("matmul", build, ((N, 8), "int8"), ((8, 16), "int8"), n=3)
    products.declined("alignment", build, ((32, N), "int8"), ((N, 16), "int8"), n=4)
    products.declined("alignment", build, ((32, 8), "int8"), ((8, N), "int8"), n=5)


INT8_SIZES = {"rows": 20, "inner": 16, "columns": 24}


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, None),
        ({"rows": 17}, None),
        ({"rows": 16}, "rows"),
        ({"inner": 15}, "alignment"),
        ({"inner": 17}, "alignment"),
        ({"inner": 12}, "alignment"),
        ({"columns": 23}, "alignment"),
        ({"columns": 25}, "alignment"),
        ({"columns": 20}, "alignment"),
    ],
    ids=str,
)
def test_sizes_of_integers(changed, code, is_transposed, products):
    rows, inner, columns = {**INT8_SIZES, **changed}.values()

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        return b.op("matmul", x, transposed(b, w) if is_transposed else w)

    operands = ((rows, inner), "int8"), ((columns, inner) if is_transposed else (inner, columns), "int8")
    if code is None:
        products.taken("matmul_transposed" if is_transposed else "matmul", build, *operands)
    else:
        products.declined(code, build, *operands)


@pytest.mark.parametrize(("rows", "is_taken"), [(20, True), (19, False), (21, False)])
def test_integers_whose_left_operand_is_stored_transposed(rows, is_taken, products):
    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        return b.op("matmul", transposed(b, x), w)

    exe = compiled(module_of(build, ((8, rows), "int8"), ((8, 16), "int8")))
    reasons = {reason.code for node in exe.report.nodes for reason in node.reasons if reason.backend == "cublas"}
    assert ("alignment" in reasons) == (not is_taken), str(exe.report)


def test_a_left_operand_that_is_stored_transposed(products):
    def build(b, x, w):
        return b.op("matmul", transposed(b, x), w)

    products.taken("matmul", build, *f32((8, 4), (8, 6)))
    products.taken("matmul", build, *f32((5, 8, 4), (5, 8, 6)))
    products.taken("matmul", build, *f32((A, 8, 4), (8, 6)), a=3)  # one right operand, but no rows of one matrix

    def both(b, x, w):
        return b.op("matmul", transposed(b, x), transposed(b, w))

    products.taken("matmul_transposed", both, ((A, 8, 4), "float16"), ((A, 6, 8), "float16"), a=3)


# --- residual ---------------------------------------------------------------------------------------------------------
def stack(b, x, w, bias, y):
    return b.op("nn.relu", b.op("add", b.op("add", b.op("matmul", x, w), bias), y))


def test_bias_residual_and_activation_are_one_call(products):
    products.taken("matmul_bias_residual_relu", stack, *f32((N, 8), (8, 6), (6,), (N, 6)), n=4)
    products.taken("matmul_bias_residual_relu", stack, *f32((2, N, 8), (8, 6), (6,), (2, N, 6)), n=4)


@pytest.mark.parametrize("residual", [(4, 6), (1, 4, 6), (1, 1, 4, 6)])
def test_one_residual_for_every_batch(residual, products):
    """A mask of attention: it is read anew for each head."""
    products.taken("matmul_residual", plus, *f32((3, 5, 4, 8), (3, 5, 8, 6), residual))
    products.taken("matmul_residual", plus, *f32((3, 5, 4, 8), (8, 6), residual))


def test_a_residual_that_repeats_otherwise(products):
    for residual in ((5, 4, 6), (3, 1, 4, 6), (4, 1), (3, 5, 1, 6)):
        products.partly(["matmul"], "residual", plus, *f32((3, 5, 4, 8), (3, 5, 8, 6), residual))


def test_a_residual_that_widens_the_product(products):
    products.partly(["matmul"], "residual", plus, *f32((4, 8), (8, 6), (3, 4, 6)))


def test_a_residual_after_the_activation_is_outside(products):
    def build(b, x, w, y):
        return b.op("add", b.op("nn.relu", b.op("matmul", x, w)), y)

    module = module_of(build, *f32((4, 8), (8, 6), (4, 6)))
    exe = compiled(module)
    assert region_of(exe).pattern == "cublas.matmul_relu"
    products.right(exe, module)


def test_a_residual_that_comes_of_the_product_itself(products):
    """x + exp(x) needs the product twice."""

    def build(b, x, w):
        y = b.op("matmul", x, w)
        return b.op("add", y, b.op("exp", y))

    module = module_of(build, *f32((4, 8), (8, 6)))
    exe = compiled(module)
    assert region_of(exe).ops == ("matmul",)
    products.right(exe, module)


def test_a_product_added_to_itself(products):
    def build(b, x, w):
        y = b.op("matmul", x, w)
        return b.op("add", y, y)

    module = module_of(build, *f32((4, 8), (8, 6)))
    exe = compiled(module)
    assert region_of(exe).ops == ("matmul",)
    assert_declined(exe, "cublas", "operand", "cublas.matmul_residual")
    products.right(exe, module)


def test_one_cast_for_both_sides(products):
    """x.T @ x of what is stored narrower."""

    def build(b, x):
        wide = b.op("astype", x, dtype=F32)
        return b.op("matmul", transposed(b, wide), wide)

    exe = products.taken("matmul", build, ((4, 8), "float16"))
    assert region_of(exe).ops.count("astype") == 1


# --- numbers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["multiply", "divide"])
def test_a_product_times_a_number(op, products):
    def build(b, x, w, bias):
        return b.op("add", b.op(op, b.op("matmul", x, transposed(b, w)), np.float32(8)), bias)

    exe = products.taken("matmul_transposed_bias", build, *f32((A, 4, 8), (A, 6, 8), (6,)), a=2)
    assert f"alpha={8.0 if op == 'multiply' else 0.125}" in exe.inspect()


@pytest.mark.parametrize(("op", "number"), [("multiply", np.inf), ("multiply", np.nan), ("divide", 0.0)])
def test_a_product_times_what_is_not_finite(op, number, products):
    def build(b, x, w):
        return b.op(op, b.op("matmul", x, w), np.float32(number))

    exe = compiled(module_of(build, *f32((4, 8), (8, 6))))
    assert region_of(exe).ops == ("matmul",)


def test_a_product_times_many_numbers(products):
    scale = values((6,), F32)

    def build(b, x, w):
        return b.op("multiply", b.op("matmul", x, w), scale)

    products.partly(["matmul"], "scale", build, *f32((4, 8), (8, 6)))


def test_a_number_by_a_product(products):
    """8 / x is no multiple of x."""

    def build(b, x, w):
        return b.op("divide", np.float32(8), b.op("matmul", x, w))

    module = module_of(build, *f32((4, 8), (8, 6)))
    assert region_of(compiled(module)).ops == ("matmul",)


# --- constants --------------------------------------------------------------------------------------------------------
def test_weights_of_int8_are_saved_as_int8_along_the_summed_axis(products):
    """They were cast, and folded."""
    weight = values((8, 16), "int8")

    def build(b, x):
        return b.op("matmul", b.op("astype", x, dtype="int32"), b.op("astype", b.op("abs", weight), dtype="int32"))

    exe = products.taken("matmul", build, ((20, 8), "int8"))
    (saved,) = (array for module in exe.modules for array in module.constants().values())
    assert saved.dtype == np.int8
    np.testing.assert_array_equal(saved, np.abs(weight).T)
    assert "transpose_rhs=True" in exe.inspect()


def test_weights_that_do_not_fit_stay_wide(products):
    weight = values((8, 12), "int32") * 100

    def build(b, x):
        return b.op("matmul", b.op("astype", x, dtype="int32"), weight)

    products.declined("dtype", build, ((4, 8), "int8"))


def test_weights_of_float8_are_transposed(products):
    weight = values((32, 16), E4M3)

    def build(b, x):
        return b.op("matmul", b.op("astype", x, dtype="float16"), b.op("astype", weight, dtype="float16"))

    exe = products.taken("matmul", build, ((N, 32), E4M3), n=5)
    (saved,) = (array for module in exe.modules for array in module.constants().values())
    assert (saved.shape, saved.dtype.name) == ((16, 32), E4M3)


def test_weights_of_float32_stay_as_they_are(products):
    weight = values((8, 6), F32)
    exe = products.taken("matmul", lambda b, x: b.op("matmul", x, weight), ((N, 8), F32), n=3)
    (saved,) = (array for module in exe.modules for array in module.constants().values())
    assert saved is weight or np.array_equal(saved, weight)


# --- the rule of one operator -----------------------------------------------------------------------------------------
def test_the_rule_of_an_operator_says_what_the_patterns_say():
    rule = Checks(Target("cuda")).call
    b = FunctionBuilder()
    cases = {
        "": ((4, 8), (8, 6), F32),
        "rank": ((4, 8), (8,), F32),
        "dtype": ((4, 8), (8, 6), "int32"),
        "batch": ((2, 1, 4, 8), (2, 8, 6), F32),
    }
    for number, (left, right, dtype) in enumerate(cases.values()):
        b.op("matmul", b.input(f"x{number}", left, dtype), b.input(f"w{number}", right, dtype))
    calls = [binding.value for binding in b.function(b.input("y", (1,))).bindings]
    for code, call in zip(cases, calls, strict=False):
        answer = rule(call)
        assert isinstance(answer, Accept if not code else Decline)
        assert code in ("", getattr(answer, "code", ""))


SCENARIOS = {
    "cublas: a bias of one number (defect of TVM)": test_a_bias_of_one_number,
    "cublas: a bias wider than the product (defect of TVM)": test_a_bias_that_is_wider_than_the_product,
    "cublas: batches of equal number, other shape (defect of TVM)": test_batches_of_equal_number_and_other_shape,
    "cublas: one right operand of rank 3 (defect of TVM)": test_one_right_operand_for_many_left_ones,
    "cublas: bare symbolic batches (defect of TVM)": test_symbolic_batches_are_compared,
    "cublas: vectors (defect of TVM)": test_vectors_are_no_matrices,
    "cublas: any permutation taken for a transposition (defect of TVM)": (
        test_a_permutation_that_does_not_swap_the_last_two_axes_is_not_the_librarys
    ),
    "cublas: gelu taken for its approximation (defect of TVM)": test_gelu_by_erf_is_not_its_approximation,
    "cublas: the scale of an int32 product ignored (defect of TVM)": test_a_product_of_integers_keeps_its_scale,
    "cublas: behaviour read from a name (defect of TVM)": test_what_runs_is_read_from_the_match_and_not_from_a_name,
}
