"""Chains of convolutions and pools that pass their tensors on channels-last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.ir import Call, FunctionBuilder, IRModule, verify
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.layout.convert_layout import ConvertLayout, to_first, to_last
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

N = dims.symbol("n")
CONVERT = Sequential([ConvertLayout(), DeadCodeElimination()], "convert")
SHAPE = (2, 4, 6, 6)


def conv(b, x, out=4, rank=2):
    weight = np.random.default_rng(out).standard_normal((out, x.tensor_type.shape[1], *[3] * rank), dtype=np.float32)
    return b.op(f"nn.conv{rank}d", x, weight, strides=(1,) * rank, padding=(1,) * 2 * rank)


def channels_last(op, *more):
    """The channels-last form of a spatial operator, as a pattern."""
    first = is_op("permute_dims")(wildcard()).has_attr(axes=to_first(4))
    return is_op("permute_dims")(is_op(op)(first, *more)).has_attr(axes=to_last(4))


NHWC = [
    FusionPattern("acme.conv2d_nhwc", channels_last("nn.conv2d", wildcard())),
    FusionPattern("acme.max_pool2d_nhwc", channels_last("nn.max_pool2d")),
]


def left_outside(function):
    """What a channels-last library would leave of a converted function."""
    module = get_pipeline("clean")(FuseOpsByPattern(NHWC)(IRModule({"main": function})))
    return [binding.value.op_name for binding in verify(module)["main"].bindings if isinstance(binding.value, Call)]


def permutations(ops):
    return ops.count("permute_dims")


def test_a_chain_is_converted_once_in_and_once_out(check):
    b = FunctionBuilder()
    y = b.op("nn.relu", conv(b, b.input("x", SHAPE)))
    y = b.op("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), dilation=(1, 1))
    after = check(CONVERT, b.function(b.op("sigmoid", conv(b, y))))
    outside = left_outside(after)
    assert [op for op in outside if not op.startswith("fused")] == [
        "permute_dims",
        "nn.relu",
        "sigmoid",
        "permute_dims",
    ]
    assert sum(op.startswith("fused") for op in outside) == 3


def test_tokens_that_a_model_transposes_are_no_channels_last_signals(check):
    """Patches as tokens: nothing is moved over the exchange of their axes, and no sum behind it is transposed."""
    b = FunctionBuilder()
    patches = b.op("reshape", conv(b, b.input("x", SHAPE)), shape=(2, 4, 36))
    tokens = b.op("add", b.op("permute_dims", patches, axes=(0, 2, 1)), b.input("positions", (2, 36, 4)))
    after = check(CONVERT, b.function(b.op("add", tokens, b.op("nn.gelu", tokens))))
    sums = [b.value for b in after.bindings if isinstance(b.value, Call) and b.value.op_name == "add"]
    assert [value.tensor_type.shape for value in sums] == [(2, 36, 4)] * 2


@pytest.mark.parametrize("bias", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1, 6), (6,), ()], ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_operands_that_broadcast_are_transposed_too(check, bias, is_constant):
    b = FunctionBuilder()
    y = conv(b, b.input("x", SHAPE))
    operand = np.random.default_rng(0).standard_normal(bias).astype(np.float32) if is_constant else b.input("b", bias)
    outside = left_outside(check(CONVERT, b.function(conv(b, b.op("add", y, operand)))))
    assert permutations(outside) == 2, "of vectors, permutations are reshapes"


def test_residual(check):
    b = FunctionBuilder()
    x = conv(b, b.input("x", SHAPE))
    outside = left_outside(check(CONVERT, b.function(b.op("add", x, conv(b, b.op("nn.relu", x))))))
    assert permutations(outside) == 2


def test_concat_norm_reduction_pad_and_softmax(check):
    b = FunctionBuilder()
    x = conv(b, b.input("x", SHAPE))
    y = b.op("concat", x, b.op("tanh", x), axis=1)
    vectors = [np.linspace(0.5, 1.5, 8, dtype=np.float32)] * 4
    y = b.op("nn.batch_norm", y, *vectors)
    y = b.op("multiply", y, b.op("mean", y, axes=(2, 3), keepdims=True))
    y = b.op("pad", y, pads=(0, 0, 1, 0, 0, 0, 0, 2), value=0.5)
    y = b.op("nn.softmax", y, axis=1)
    outside = left_outside(check(CONVERT, b.function(conv(b, y))))
    assert permutations(outside) == 2


def test_what_cannot_be_moved_over_reads_channels_first(check):
    b = FunctionBuilder()
    y = conv(b, b.input("x", SHAPE))
    after = check(CONVERT, b.function(b.op("reshape", y, shape=(2, 144)), b.op("mean", y, axes=(2, 3))))
    assert permutations(left_outside(after)) == 2


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_rank(check, rank):
    b = FunctionBuilder()
    y = b.op("nn.relu", conv(b, b.input("x", (2, 4, *[5] * rank)), rank=rank))
    check(CONVERT, b.function(conv(b, y, rank=rank)))


def test_symbolic_sizes(check):
    b = FunctionBuilder()
    check(CONVERT, b.function(b.op("nn.relu", conv(b, conv(b, b.input("x", (N, 4, N, 6)))))))


def test_only_the_ops_asked_for(check):
    b = FunctionBuilder()
    y = b.op(
        "nn.max_pool2d",
        conv(b, b.input("x", SHAPE)),
        pool_size=(2, 2),
        strides=(1, 1),
        padding=(0,) * 4,
        dilation=(1, 1),
    )
    after = check(Sequential([ConvertLayout(["nn.conv2d"]), DeadCodeElimination()], "convert"), b.function(y))
    assert check.ops(after) == [
        "permute_dims",
        "permute_dims",
        "nn.conv2d",
        "permute_dims",
        "permute_dims",
        "nn.max_pool2d",
    ]


def test_pools_may_follow_what_is_channels_last_already(check):
    b = FunctionBuilder()
    pool = {"pool_size": (2, 2), "strides": (1, 1), "padding": (0,) * 4, "dilation": (1, 1)}
    first = b.op("nn.max_pool2d", b.input("x", SHAPE), **pool)
    convert = ConvertLayout(["nn.conv2d"], following=["nn.max_pool2d"])
    after = check(convert, b.function(b.op("nn.max_pool2d", conv(b, first), **pool)))
    assert check.ops(after)[0] == "nn.max_pool2d"
    assert permutations(left_outside(after)) == 2


def test_only_the_dtypes_asked_for():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(conv(b, b.input("x", SHAPE)))})
    assert ConvertLayout(dtypes=["float16"])(module) is module
    assert ConvertLayout(dtypes=["float32"])(module) is not module


def test_canonical_forms_take_back_what_nobody_took():
    b = FunctionBuilder()
    function = b.function(conv(b, b.op("nn.relu", conv(b, b.input("x", SHAPE)))))
    again = get_pipeline("clean")(CONVERT(IRModule({"main": function})))
    ops = [binding.value.op_name for binding in again["main"].bindings]
    assert ops.count("nn.conv2d") == 2
    assert ops.count("permute_dims") == 2, "around the relu, which does not know of layouts"


def test_a_model_that_is_channels_last_already_needs_no_permutations_of_ours():
    b = FunctionBuilder()
    x = b.input("x", (2, 6, 6, 4))

    def channels_last_conv(value):
        return b.op("permute_dims", conv(b, b.op("permute_dims", value, axes=to_first(4))), axes=to_last(4))

    again = CONVERT(IRModule({"main": b.function(channels_last_conv(b.op("nn.relu", channels_last_conv(x))))}))
    ops = [binding.value.op_name for binding in again["main"].bindings if isinstance(binding.value, Call)]
    one = ["permute_dims", "nn.conv2d", "permute_dims"]
    assert ops == [*one, "nn.relu", *one]


def test_nothing_spatial_is_no_change():
    b = FunctionBuilder()
    module = IRModule(
        {"main": b.function(b.op("nn.relu", b.op("permute_dims", b.input("x", SHAPE), axes=(0, 2, 3, 1))))}
    )
    assert ConvertLayout()(module) is module


@settings(max_examples=30, deadline=None)
@given(modules())
def test_meaning_stays(program):
    assert_same_meaning(program.module, verify(ConvertLayout()(program.module)), program.inputs)
