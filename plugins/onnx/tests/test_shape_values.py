"""Sizes that models compute with ordinary operators, and the arithmetic behind."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernelyard import dims
from kernelyard.dims import evaluate, symbol
from kernelyard.errors import UnsupportedOperatorError
from kernelyard.ir import Call
from kernelyard_onnx.bounds import at_least, is_cut_of, maximum, minimum, settle
from kernelyard_onnx.rational import Rational, UndecidedError

N, H, W = symbol("n"), symbol("h"), symbol("w")


def node(op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs or ["y"], **attrs)


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ops_of(main) -> list[str]:
    return [binding.value.op_name for binding in main.bindings if isinstance(binding.value, Call)]


# --- networks that compute their sizes --------------------------------------------------------------------------------
def test_flatten_as_exporters_write_it(make, agree) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"]),
    ]
    weights = {"zero": np.array(0), "axes": i64(0), "rest": i64(-1)}
    model = make(nodes, {"x": f(2, 3, 4)}, weights=weights, shapes={"x": ["n", 3, "w"]})
    main = agree(model, {"x": f(2, 3, 4)})
    assert ops_of(main) == ["reshape"]
    assert main.result_type.shape == (N, W * 3)


def test_upsampling_to_twice_the_size_through_floats(make, agree) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "two", "four", "zero"], ["hw"]),
        node("Cast", ["hw"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "factor"], ["scaled"]),
        node("Floor", ["scaled"], ["floored"]),
        node("Cast", ["floored"], ["new"], to=TensorProto.INT64),
        node("Slice", ["s", "zero", "two", "zero"], ["nc"]),
        node("Concat", ["nc", "new"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], mode="nearest", coordinate_transformation_mode="asymmetric"),
    ]
    weights = {"zero": i64(0), "two": i64(2), "four": i64(4), "factor": np.array([2, 1.5], np.float32)}
    model = make(nodes, {"x": f(1, 3, 5, 7)}, weights=weights, shapes={"x": [1, 3, "h", "w"]})
    main = agree(model, {"x": f(1, 3, 5, 7)})
    assert main.result_type.shape == (1, 3, H * 2, dims.floordiv(W * 3, 2))


def test_scales_that_are_quotients_of_sizes(make, agree) -> None:
    nodes = [
        node("Shape", ["big"], ["b"]),
        node("Shape", ["x"], ["s"]),
        node("Cast", ["b"], ["bf"], to=TensorProto.FLOAT),
        node("Cast", ["s"], ["sf"], to=TensorProto.FLOAT),
        node("Div", ["bf", "sf"], ["scales"]),
        node("Resize", ["x", "", "scales"], mode="linear"),
    ]
    shapes = {"x": ["n", 3, "h", "w"], "big": ["n", 3, "H", "W"]}
    feeds = {"x": f(1, 3, 4, 5), "big": f(1, 3, 8, 15)}
    main = agree(make(nodes, feeds, shapes=shapes), feeds)
    assert main.result_type.shape == (N, 3, symbol("H"), symbol("W"))


def test_expand_where_the_target_is_chosen(make, agree) -> None:
    """How PyTorch writes x.expand(-1, 4, -1): -1 is replaced by 1 with Equal and Where."""
    nodes = [
        node("Equal", ["want", "minus"], ["open"]),
        node("Where", ["open", "ones", "want"], ["target"]),
        node("Expand", ["x", "target"]),
    ]
    weights = {"want": i64(-1, 4, -1), "minus": i64(-1), "ones": i64(1, 1, 1)}
    agree(make(nodes, {"x": f(2, 1, 3)}, weights=weights, shapes={"x": ["n", 1, "w"]}), {"x": f(2, 1, 3)})


def test_ranges_and_constants_of_a_size(make, agree) -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero", "n", "one"], ["r"]),
        node("ConstantOfShape", ["s"], ["c"], value=helper.make_tensor("v", TensorProto.INT64, [1], [7])),
        node("Add", ["r", "c"], ["y"]),
        node("Size", ["x"], ["z"]),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    model = make(nodes, {"x": f(2, 5)}, ["y", "z"], weights=weights, shapes={"x": ["n", "w"]})
    main = agree(model, {"x": f(2, 5)})
    assert "arange" in ops_of(main)


@pytest.mark.parametrize(("components", "onesided"), [(None, 0), (None, 1), (1, 0), (1, 1), (2, 0)])
def test_frames_of_a_signal_of_any_length(components: int | None, onesided: int, make, agree) -> None:
    """onnxruntime and exporters leave out the axis of components, which the standard has."""
    nodes = [node("STFT", ["x", "step", "window"], onesided=onesided)]
    shape = (2, 19) if components is None else (2, 19, components)
    weights = {"step": np.array(4), "window": np.hanning(8).astype(np.float32)}
    symbolic = ["n", "w"] if components is None else ["n", "w", components]
    main = agree(make(nodes, {"x": f(*shape)}, weights=weights, shapes={"x": symbolic}), {"x": f(*shape)})
    assert main.result_type.shape == (N, (W - 8) // 4 + 1, 5 if onesided else 8, 2)


def test_sizes_as_data_become_one_tensor_of_sizes(make, agree) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Mul", ["s", "two"], ["m"]),
        node("ReduceProd", ["m"], ["p"], keepdims=0),
        node("Cast", ["m"], ["c"], to=TensorProto.INT32),
        node("Identity", ["c"]),
    ]
    model = make(nodes, {"x": f(2, 5)}, ["y", "m", "p"], weights={"two": i64(2)}, shapes={"x": ["n", "w"]})
    main = agree(model, {"x": f(2, 5)})
    assert set(ops_of(main)) == {"shape_tensor", "astype", "reshape"}


def test_slices_with_computed_bounds(make, agree) -> None:
    """x[:, : w // 2 + 1] and x[:, -(w // 2 + 1) :] for any w."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        node("Div", ["s", "two"], ["half"]),
        node("Add", ["half", "one"], ["more"]),
        node("Neg", ["more"], ["minus"]),
        node("Slice", ["x", "zero", "more", "one"], ["a"]),
        node("Slice", ["x", "minus", "end", "one"], ["b"]),
        node("Add", ["a", "b"]),
    ]
    weights = {"two": i64(2), "zero": i64(0), "one": i64(1), "end": i64(2**63 - 1)}
    model = make(nodes, {"x": f(2, 7)}, weights=weights, shapes={"x": ["n", "w"]})
    agree(model, {"x": f(2, 7)})


@pytest.mark.parametrize("size", [1, 2, 5])
def test_backwards_over_what_may_be_empty(size, make, agree) -> None:
    """x[1:][::-1]."""
    nodes = [node("Slice", ["x", "one", "end"], ["rest"]), node("Slice", ["rest", "minus", "before", "zero", "minus"])]
    weights = {"one": i64(1), "end": i64(2**62), "minus": i64(-1), "before": i64(-(2**62)), "zero": i64(0)}
    agree(make(nodes, {"x": f(size)}, weights=weights, shapes={"x": ["n"]}), {"x": f(size)})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_a_bound_counts_from_the_end_for_the_sizes_that_make_it_negative(size, make, agree) -> None:
    """x[:, w - 4 :], x[:, : w - 3] and x[:, w - 2 :: -1]."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        *(node("Sub", ["s", number], [f"less_{number}"]) for number in ("two", "three", "four")),
        node("Slice", ["x", "less_four", "end", "one"], ["a"]),
        node("Slice", ["x", "zero", "less_three", "one"], ["b"]),
        node("Slice", ["x", "less_two", "before", "one", "minus"], ["c"]),
    ]
    weights = {"two": i64(2), "three": i64(3), "four": i64(4), "one": i64(1), "zero": i64(0), "minus": i64(-1)}
    weights |= {"end": i64(2**63 - 1), "before": i64(-(2**63) + 1)}
    model = make(nodes, {"x": f(2, 7)}, ["a", "b", "c"], weights=weights, shapes={"x": ["n", "w"]})
    assert "tensor_to_shape" not in ops_of(agree(model, {"x": f(2, size)}))


@pytest.mark.parametrize("size", [1, 3, 7, 12, 13])
def test_remainders_of_sizes(size, make, agree) -> None:
    """x[:, : w - (w - 7) % 4] in rows of four: whole chunks of a signal."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        node("Sub", ["s", "seven"], ["less"]),
        node("Mod", ["less", "four"], ["rest"]),
        node("Sub", ["s", "rest"], ["whole"]),
        node("Slice", ["x", "zero", "whole", "one"]),
    ]
    weights = {"zero": i64(0), "one": i64(1), "four": i64(4), "seven": i64(7)}
    main = agree(make(nodes, {"x": f(2, 7)}, weights=weights, shapes={"x": ["n", "w"]}), {"x": f(2, size)})
    assert ops_of(main) == ["strided_slice"]


@pytest.mark.parametrize("size", [2, 3, 9])
def test_slices_that_may_reach_beyond_the_end(size, make, agree) -> None:
    weights = {"s": i64(1), "e": i64(5), "a": i64(1)}
    model = make([node("Slice", ["x", "s", "e", "a"])], {"x": f(2, size)}, weights=weights, shapes={"x": [2, "w"]})
    agree(model, {"x": f(2, size)})


def test_a_rank_that_comes_from_data_is_refused(make, import_main) -> None:
    nodes = [node("Reshape", ["x", "s"], name="bad")]
    with pytest.raises(UnsupportedOperatorError, match="not fixed"):
        import_main(make(nodes, {"x": f(4), "s": i64(2, 2)}, shapes={"s": ["rank"]}))


# --- control flow and functions ---------------------------------------------------------------------------------------
def branches(name: str, then: list[onnx.NodeProto], other: list[onnx.NodeProto]) -> dict[str, onnx.GraphProto]:
    out = [onnx.ValueInfoProto(name=name)]
    return {
        "then_branch": helper.make_graph(then, "then", [], out),
        "else_branch": helper.make_graph(other, "else", [], out),
    }


@pytest.mark.parametrize("rank", [2, 3])
def test_a_branch_that_depends_on_the_rank(rank, make, agree) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Shape", ["s"], ["r1"]),
        node("Squeeze", ["r1"], ["r"]),
        node("Equal", ["r", "two"], ["c"]),
        node("If", ["c"], **branches("b", [node("Relu", ["x"], ["b"])], [node("Exp", ["x"], ["b"])])),
    ]
    x = f(*range(2, 2 + rank))
    main = agree(make(nodes, {"x": x}, weights={"two": np.array(2)}), {"x": x})
    assert ops_of(main) == ["nn.relu" if rank == 2 else "exp"]


def test_problems_inside_a_branch_name_the_inner_node(make, import_main) -> None:
    inner = branches("b", [node("ImageDecoder", ["x"], ["b"], name="inner")], [node("Exp", ["x"], ["b"])])
    model = make([node("If", ["c"], name="outer", **inner)], {"x": f(2)}, weights={"c": np.array(True)})
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_main(model)
    assert "node 'inner' (ImageDecoder)" in str(caught.value.where)
    assert "outer" not in str(caught.value.where)


def test_a_loop_is_unrolled(make, agree) -> None:
    def info(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            node("Add", ["v", "x"], ["v2"]),
            node("Identity", ["go"], ["go2"]),
            node("Cast", ["i"], ["fi"], to=TensorProto.FLOAT),
            node("Mul", ["v2", "fi"], ["scan"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, [2])],
        [info("go2", TensorProto.BOOL, []), info("v2", TensorProto.FLOAT, [2]), info("scan", TensorProto.FLOAT, [2])],
    )
    model = make(
        [node("Loop", ["turns", "", "start"], ["last", "all"], body=body)],
        {"x": f(2), "start": f(2)},
        ["last", "all"],
        weights={"turns": np.array(3)},
    )
    main = agree(model, {"x": f(2), "start": f(2)})
    assert main.result_type.fields[1].shape == (3, 2)


def test_sequences_are_resolved(make, agree) -> None:
    nodes = [
        node("SplitToSequence", ["x", "two"], ["seq"], axis=1),
        node("SequenceAt", ["seq", "last"], ["a"]),
        node("SequenceInsert", ["seq", "a", "zero"], ["more"]),
        node("SequenceErase", ["more", "last"], ["less"]),
        node("SequenceLength", ["less"], ["n"]),
        node("ConcatFromSequence", ["less"], axis=0),
    ]
    weights = {"two": np.array(2), "last": np.array(-1), "zero": np.array(0)}
    agree(make(nodes, {"x": f(3, 6)}, ["y", "n"], weights=weights), {"x": f(3, 6)})


def test_functions_of_the_model(make, agree) -> None:
    inner = helper.make_function(
        "local", "Scale", ["a"], ["b"],
        [
            onnx.NodeProto(op_type="Constant", output=["c"], attribute=[
                onnx.AttributeProto(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="by")
            ]),
            node("Mul", ["a", "c"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("by", 3.0)],
    )  # fmt: skip
    outer = helper.make_function(
        "local", "Twice", ["a"], ["c"],
        [node("Scale", ["a"], ["b"], domain="local"), node("Scale", ["b"], ["c"], domain="local", by=0.5)],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )  # fmt: skip
    model = make([node("Twice", ["x"], domain="local")], {"x": f(2, 3)}, functions=[inner, outer])
    model.opset_import.append(helper.make_opsetid("local", 1))
    main = agree(model, {"x": f(2, 3)})
    assert [binding.value.args[1].data.item() for binding in main.bindings] == [3.0, 0.5]


def test_functions_that_call_themselves_are_refused(make, import_main) -> None:
    function = helper.make_function(
        "local", "Again", ["a"], ["b"], [node("Again", ["a"], ["b"], domain="local")], [helper.make_opsetid("local", 1)]
    )
    model = make([node("Again", ["x"], domain="local")], {"x": f(2)}, functions=[function])
    with pytest.raises(UnsupportedOperatorError, match="levels deep"):
        import_main(model)


# --- arithmetic -------------------------------------------------------------------------------------------------------
SIZES = st.integers(1, 40)
COEFFICIENTS = st.integers(-4, 4)
DIMS = st.builds(lambda a, b, c: N * a + H * b + c, COEFFICIENTS, COEFFICIENTS, COEFFICIENTS)
POSITIVE = st.builds(lambda a, b, c: N * a + H * b + c, st.integers(0, 4), st.integers(0, 4), st.integers(1, 5))
RATIONALS = st.builds(Rational, DIMS, POSITIVE)


def value_of(number: Rational, sizes: dict[str, int]) -> Fraction:
    return Fraction(evaluate(number.numerator, sizes), evaluate(number.denominator, sizes))


@given(RATIONALS, RATIONALS, SIZES, SIZES)
def test_rationals_compute_as_fractions_do(a: Rational, b: Rational, n: int, h: int) -> None:
    sizes = {"n": n, "h": h}
    x, y = value_of(a, sizes), value_of(b, sizes)
    assert value_of(a + b, sizes) == x + y
    assert value_of(a - b, sizes) == x - y
    assert value_of(a * b, sizes) == x * y
    assert value_of(a.floor(), sizes) == math.floor(x)
    assert value_of(a.ceil(), sizes) == math.ceil(x)


@given(RATIONALS, POSITIVE, SIZES, SIZES)
def test_quotients(a: Rational, b, n: int, h: int) -> None:
    sizes = {"n": n, "h": h}
    assert value_of(a / Rational(b), sizes) == value_of(a, sizes) / evaluate(b, sizes)
    assert value_of(a / Rational(b * -1), sizes) == value_of(a, sizes) / -evaluate(b, sizes)


@given(DIMS, DIMS, SIZES, SIZES)
def test_proofs_and_extrema_hold(a, b, n: int, h: int) -> None:
    sizes = {"n": n, "h": h}
    x, y = evaluate(a, sizes), evaluate(b, sizes)
    assert not at_least(a, b) or x >= y
    assert evaluate(maximum(a, b), sizes) == max(x, y)
    assert evaluate(minimum(a, b), sizes) == min(x, y)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_enter_as_they_print(value: float) -> None:
    number = Rational.of(np.float32(value))
    assert np.float32(number.numerator / number.denominator) == np.float32(value)


def test_a_tenth_is_a_tenth() -> None:
    assert (Rational.of(np.float32(0.7)) * Rational(10)).floor().dim() == 7
    assert (Rational(N) * Rational.of(np.float32(0.1)) * Rational(10)).dim() == N


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_decided(value: float) -> None:
    with pytest.raises(UndecidedError):
        Rational.of(np.float32(value))


def test_signs() -> None:
    assert Rational(N + 1).sign() == 1
    assert Rational(0).sign() == 0
    assert Rational(N * -2).sign() == -1
    with pytest.raises(UndecidedError):
        Rational(N - 2).sign()


@given(SIZES, SIZES)
def test_settled_sizes_are_those_of_the_broadcast(n: int, h: int) -> None:
    sizes = {"n": n, "h": h}
    pairs = [(N * 2, dims.floordiv(H, 3)), (N, dims.minimum(N, 7)), (N + 1, H + 1), (N, H), (dims.minimum(4, N), N)]
    for left, right in pairs:
        x, y = evaluate(left, sizes), evaluate(right, sizes)
        if x == y or 1 in (x, y):  # the broadcast is possible
            assert evaluate(settle(dims.broadcast(left, right)), sizes) == (y if x == 1 else x)


def test_cuts() -> None:
    assert is_cut_of(dims.minimum(N, 512), N)
    assert not is_cut_of(dims.minimum(N, 1), N)
    assert not is_cut_of(dims.minimum(N, 512), H)
