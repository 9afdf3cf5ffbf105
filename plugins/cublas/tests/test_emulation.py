"""What stands in for cuBLASLt has the library's semantics: column by column, as descriptors say, and nothing beyond them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dtypes
from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.abi.memory import address_of, aligned_copy, aligned_empty
from kernelyard.testing import assert_allclose
from kernelyard.testing.offload_bench import values
from kernelyard_cublas._enums import (
    ComputeType,
    DataType,
    Epilogue,
    LayoutAttribute,
    MatmulAttribute,
    Operation,
    PreferenceAttribute,
)
from kernelyard_cublas.descriptors import Descriptors
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.lt_api import Addresses, Layouts, LtError, MatmulCall
from kernelyard_cublas.problem import Attributes, problem_of
from kernelyard_cublas.type_table import PRODUCTS


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "gelu": gelu}


def call_of(api, problem, arrays, heuristic=None):
    """A call over arrays by role, and what keeps it alive."""
    at = {role: address_of(array) for role, array in arrays.items()}
    descriptors = Descriptors(api, problem, at)
    found = api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 4)
    chosen = heuristic or found[-1]
    workspace = aligned_empty((max(chosen.workspace, 1),), "uint8")
    unread = at["out"] if problem.c == problem.d else 0
    addresses = Addresses(at["rhs"], at["lhs"], at.get("residual", unread), at["out"])
    scratch = address_of(workspace)
    call = MatmulCall(
        descriptors.matmul,
        descriptors.layouts,
        addresses,
        problem.alpha,
        problem.beta,
        problem.scale_type,
        chosen,
        scratch,
    )
    return call, (descriptors, workspace)


def run(attributes, arrays):
    """The result of a product of row-major arrays, in the place of "out"."""
    api = EmulatedLt()
    kept = {role: aligned_copy(array) for role, array in arrays.items()}
    names = {role: dtypes.from_numpy(array.dtype) for role, array in kept.items()}
    problem = problem_of(attributes, {role: array.shape for role, array in kept.items()}, names)
    call, alive = call_of(api, problem, kept)
    api.prepare(call)(0)
    del alive
    return kept["out"]


def swapped(array):
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))


@st.composite
def cases(draw):
    """Operands of a product that is one call, with everything that may follow it."""
    rows, inner, columns = (draw(st.integers(1, 5)) for _ in range(3))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    left, right = draw(st.sampled_from([(batch, batch), (batch, ()), ((), batch), (batch, (1,) * len(batch))]))
    attributes = Attributes(
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(sorted(ACTIVATIONS))),
        draw(st.sampled_from([1.0, 0.5, -2.0])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    arrays = {
        "lhs": rng.standard_normal((*left, rows, inner)).astype(np.float32),
        "rhs": rng.standard_normal((*right, inner, columns)).astype(np.float32),
    }
    if draw(st.booleans()):
        arrays["bias"] = rng.standard_normal(columns).astype(np.float32)
    if draw(st.booleans()):
        own = draw(st.sampled_from([np.broadcast_shapes(left, right), ()]))
        arrays["residual"] = rng.standard_normal((*own, rows, columns)).astype(np.float32)
    return attributes, arrays


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_problem_is_the_product_that_it_was_made_of(case):
    attributes, arrays = case
    wanted = np.matmul(arrays["lhs"], arrays["rhs"]) * attributes.alpha
    wanted = wanted + arrays.get("residual", 0) + arrays.get("bias", 0)
    wanted = ACTIVATIONS[attributes.activation](wanted)
    stored = {**arrays, "out": np.full(wanted.shape, np.nan, np.float32)}
    if attributes.transpose_lhs:
        stored["lhs"] = swapped(arrays["lhs"])
    if attributes.transpose_rhs:
        stored["rhs"] = swapped(arrays["rhs"])
    np.testing.assert_allclose(run(attributes, stored), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("operands", "result"), PRODUCTS, ids=" to ".join)
def test_every_type_that_checks_accept_is_one_that_the_library_has(operands, result):
    """What checks read, and what stands in for the library, are two tables, written by themselves."""
    product, rng = PRODUCTS[operands, result], np.random.default_rng(0)
    transposed = Attributes(transpose_rhs=True)

    def array(shape, dtype):
        return (rng.integers(-3, 4, shape) * 0.5).astype(dtypes.to_numpy(dtype))

    arrays = {"lhs": array((2, 32), operands), "rhs": array((16, 32), operands), "out": array((2, 16), result)}
    wanted = arrays["lhs"].astype(np.float64) @ arrays["rhs"].astype(np.float64).T
    if product.bias:
        arrays["bias"] = array(16, product.bias)
        wanted = wanted + arrays["bias"].astype(np.float64)
    if product.residual:
        arrays["residual"] = array((2, 16), result)
        wanted = wanted + arrays["residual"].astype(np.float64)
    if product.scales:
        arrays |= {"scale_a": np.float32([0.5]), "scale_b": np.float32([0.25])}
        wanted = wanted - (arrays["lhs"].astype(np.float64) @ arrays["rhs"].astype(np.float64).T) * (1 - 0.125)
    found = run(Attributes(transpose_rhs=True, activation="relu") if product.activations else transposed, arrays)
    wanted = np.maximum(wanted, 0) if product.activations else wanted
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(found.dtype).astype(np.float64), rtol=1e-2)


def test_tf32_rounds_operands_and_float32_does_not():
    lhs, rhs = np.float32([[1 + 2**-12]]), np.float32([[1.0]])
    arrays = {"lhs": lhs, "rhs": rhs, "out": np.empty((1, 1), np.float32)}
    assert run(Attributes(), arrays) == lhs
    assert run(Attributes(compute="tf32"), arrays) == 1


def test_sums_are_made_in_the_compute_type():
    """Products of float16 do not overflow before they are summed up; products of int8 wrap in 32 bits."""
    big = np.full((1, 16), 250, np.float16)
    found = run(Attributes(alpha=2**-6), {"lhs": big, "rhs": big.T.copy(), "out": np.empty((1, 1), np.float16)})
    assert found == np.float16(250 * 250 * 16 / 64)
    low = np.full((1, 8), -128, np.int8)
    arrays = {"lhs": low, "rhs": np.full((8, 4), -128, np.int8), "out": np.empty((1, 4), np.int32)}
    assert (run(Attributes(), arrays) == 128 * 128 * 8).all()


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def api():
    return EmulatedLt()


def arrays_of(rows=4, inner=8, columns=6):
    shapes = {"lhs": (rows, inner), "rhs": (inner, columns), "bias": (columns,), "out": (rows, columns)}
    return {role: aligned_copy(np.ones(shape, np.float32)) for role, shape in shapes.items()}


def problem_for(arrays, attributes=None):
    names = {role: dtypes.from_numpy(array.dtype) for role, array in arrays.items()}
    return problem_of(attributes or Attributes(), {role: array.shape for role, array in arrays.items()}, names)


WRONG = {
    "a leading dimension": (lambda d: d.layouts.a, LayoutAttribute.ROWS, 5),
    "columns of D": (lambda d: d.layouts.d, LayoutAttribute.COLS, 3),
    "a batch of one matrix alone": (lambda d: d.layouts.b, LayoutAttribute.BATCH_COUNT, 2),
    "an order": (lambda d: d.layouts.c, LayoutAttribute.ORDER, 1),
    "an operation": (lambda d: d.matmul, MatmulAttribute.TRANSA, Operation.T),
    "an epilogue": (lambda d: d.matmul, MatmulAttribute.EPILOGUE, 12345),
    "the type of the bias": (lambda d: d.matmul, MatmulAttribute.BIAS_DATA_TYPE, DataType.R_16F),
    "the type of C": (lambda d: d.layouts.c, LayoutAttribute.TYPE, DataType.R_16F),
    "the compute type": (lambda d: d.matmul, MatmulAttribute.COMPUTE_TYPE, ComputeType.C_64F),
    "the scale type": (lambda d: d.matmul, MatmulAttribute.SCALE_TYPE, DataType.R_64F),
    "scales of what is no float8": (lambda d: d.matmul, MatmulAttribute.A_SCALE_POINTER, 64),
    "an alignment": (lambda d: d.preference, PreferenceAttribute.MIN_ALIGNMENT_A_BYTES, 2),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_descriptor_has_no_algorithm(what, api):
    arrays = arrays_of()
    descriptors = Descriptors(api, problem_for(arrays), {"bias": address_of(arrays["bias"])})
    before = api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 1)
    assert before
    which, attribute, value = WRONG[what]
    api.set(which(descriptors), attribute, value)
    assert not api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 1)


def test_wrong_calls_are_refused(api):
    arrays = arrays_of()
    problem = problem_for(arrays)
    good, alive = call_of(api, problem, arrays)
    api.prepare(good)(0)
    other, _ = call_of(api, problem_for(arrays_of(rows=5)), arrays_of(rows=5))
    lacking = call_of(api, problem, arrays, heuristic=good.heuristic)[0]
    bad = {
        "an algorithm of another problem": {**vars(good), "heuristic": other.heuristic},
        "no workspace": {**vars(good), "workspace": 0},
        "an address that is not aligned": {**vars(good), "addresses": good.addresses._replace(a=good.addresses.a + 4)},
        "no address": {**vars(good), "addresses": good.addresses._replace(d=0)},
        "a descriptor that was given back": vars(lacking),
    }
    for fields in bad.values():
        prepared = api.prepare(MatmulCall(**fields))
        with pytest.raises(LtError, match="INVALID_VALUE"):
            prepared(0)
    del alive


def test_c_lies_where_d_does_only_in_the_same_layout(api):
    """A result of float8 has a C of bfloat16, of which nothing is read: it is nowhere."""
    fp8 = "float8_e4m3fn"
    arrays = {"lhs": values((16, 32), fp8), "rhs": values((16, 32), fp8, 1), "out": values((16, 16), fp8)}
    shapes = {role: array.shape for role, array in arrays.items()}
    problem = problem_of(Attributes(transpose_rhs=True), shapes, dict.fromkeys(arrays, fp8))
    call, alive = call_of(api, problem, arrays)
    api.prepare(call)(0)
    x, w = (arrays[role].astype(np.float32) for role in ("lhs", "rhs"))
    assert_allclose(arrays["out"], (x @ w.T).astype(arrays["out"].dtype))
    for wrong in ({"addresses": call.addresses._replace(c=call.addresses.d)}, {"beta": 1.0}):
        with pytest.raises(LtError, match="INVALID_VALUE"):
            api.prepare(MatmulCall(**{**vars(call), **wrong}))(0)
    del alive


def test_layouts_are_checked(api):
    for rows, columns, leading in ((4, 4, 3), (0, 4, 4), (4, 0, 4)):
        with pytest.raises(LtError, match="INVALID_VALUE"):
            api.create_layout(DataType.R_32F, rows, columns, leading)
    layout = api.create_layout(DataType.R_32F, 4, 4, 4)
    with pytest.raises(LtError):
        api.set(layout, MatmulAttribute.EPILOGUE, Epilogue.RELU)
    with pytest.raises(LtError):
        api.set(layout, LayoutAttribute.BATCH_COUNT, 1 << 40)


def test_int8_and_float8_ask_for_alignment(api):
    for dtype, sizes, transposed in (("int8", (4, 6, 8), False), ("float8_e4m3fn", (16, 16, 8), False)):
        rows, inner, columns = sizes
        shapes = {"lhs": (rows, inner), "rhs": (inner, columns), "out": (rows, columns)}
        result = "int32" if dtype == "int8" else "float32"
        problem = problem_of(Attributes(transpose_rhs=transposed), shapes, {"lhs": dtype, "rhs": dtype, "out": result})
        descriptors = Descriptors(api, problem, {})
        assert not api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 1)


def test_descriptors_are_given_back(api):
    arrays = arrays_of()
    descriptors = Descriptors(api, problem_for(arrays), {"bias": 64})
    assert api.live == 6
    del descriptors
    assert api.live == 0


@pytest.mark.parametrize(
    "shapes",
    [
        {"lhs": (4, 8), "rhs": (7, 6), "out": (4, 6)},
        {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 5)},
        {"lhs": (2, 1, 4, 8), "rhs": (1, 2, 8, 6), "out": (2, 2, 4, 6)},
        {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6), "bias": (5,)},
        {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6), "residual": (4, 5)},
        {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6), "scale_a": (2,), "scale_b": (1,)},
    ],
)
def test_shapes_that_do_not_go_together_are_no_problem(shapes):
    types = dict.fromkeys(shapes, "float32")
    if "scale_a" in shapes:
        types |= {"lhs": "float8_e4m3fn", "rhs": "float8_e4m3fn"}
    with pytest.raises(ArtifactCorruptedError, match="size"):
        problem_of(Attributes(), shapes, types)


def test_vectors_are_no_problem():
    with pytest.raises(ArtifactCorruptedError, match="ranks"):
        problem_of(
            Attributes(), {"lhs": (8,), "rhs": (8, 6), "out": (6,)}, dict.fromkeys(("lhs", "rhs", "out"), "float32")
        )


@pytest.mark.parametrize(
    "types",
    [
        {"rhs": "float16"},
        {"out": "int8"},
        {"bias": "float16"},
        {"residual": "float16"},  # half as many bytes as would be read
        {"scale_a": "float32", "scale_b": "float32"},
        {"lhs": "float64", "rhs": "float64", "out": "float64", "residual": "float64"},
    ],
)
def test_types_that_do_not_go_together_are_no_problem(types):
    shapes = {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6), "bias": (6,), "residual": (4, 6)}
    problem_of(Attributes(), shapes, dict.fromkeys(shapes, "float32"))
    shapes |= {role: (1,) for role in types if role.startswith("scale")}
    with pytest.raises(ArtifactCorruptedError, match="type"):
        problem_of(Attributes(), shapes, {**dict.fromkeys(shapes, "float32"), **types})


def test_layouts_of_the_library_are_of_the_swapped_operands(api):
    """x (4, 8) @ w (8, 6): the library computes w.T (6, 8) @ x.T (8, 4), and reads both as they lie."""
    descriptors = Descriptors(api, problem_for(arrays_of()), {"bias": 64})
    sizes = [
        [api.get(layout, each) for each in (LayoutAttribute.ROWS, LayoutAttribute.COLS, LayoutAttribute.LD)]
        for layout in descriptors.layouts
    ]
    assert Layouts(*sizes) == Layouts([6, 8, 6], [8, 4, 8], [6, 4, 6], [6, 4, 6])
