"""Products that read an operand transposed in place."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, parse_module, to_text, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.fusion.fuse_transpose_matmul import FuseTransposeMatmul
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

N = dims.symbol("n")


def product(left, right, left_axes=None, right_axes=None):
    b = FunctionBuilder()
    x, y = b.input("x", left), b.input("y", right)
    x = b.op("permute_dims", x, axes=left_axes) if left_axes else x
    y = b.op("permute_dims", y, axes=right_axes) if right_axes else y
    return IRModule({"main": b.function(b.op("matmul", x, y))})


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("left", "right", "left_axes", "right_axes", "name"),
    [
        ((2, 3), (4, 3), None, (1, 0), "nt_matmul"),
        ((3, 2), (3, 4), (1, 0), None, "tn_matmul"),
        ((3, 2), (4, 3), (1, 0), (1, 0), "tt_matmul"),
        ((5, 2, 3), (4, 3), None, (1, 0), "nt_matmul"),
        ((5, 2, 3), (5, 4, 3), None, (0, 2, 1), "nt_matmul"),
        ((3,), (4, 3), None, (1, 0), "nt_matmul"),
    ],
)
def test_a_transposed_operand_is_read_in_place(left, right, left_axes, right_axes, name):
    module = verify(product(left, right, left_axes, right_axes))
    after = verify(DeadCodeElimination()(FuseTransposeMatmul()(module)))
    assert_same_meaning(module, after, [numbers(*left), numbers(*right)])
    (binding,) = after["main"].bindings
    assert binding.value.args[0].name == name
    function = after[name]
    assert isinstance(function, PrimFunc)
    assert not function.locals, "no transposed copy is made"
    again = parse_module(to_text(after))
    assert to_text(again) == to_text(after)


def test_symbolic_sizes():
    module = verify(product((N, 3), (4, 3), None, (1, 0)))
    after = verify(FuseTransposeMatmul()(module))
    assert_same_meaning(module, after, [numbers(5, 3), numbers(4, 3)])


@pytest.mark.parametrize("axes", [(2, 1, 0), (1, 0, 2), (0, 1, 2)])
def test_other_permutations_stay(axes):
    """Guards against a defect of TVM: a full reversal of three axes was taken for a transposition."""
    module = product((4, 2, 4), (4, 4, 4), None, axes)
    assert FuseTransposeMatmul()(module) is module


@pytest.mark.parametrize(
    ("shape", "reshaped"), [((6, 4, 3), (2, 3, 3, 4)), ((1, 2, 4, 3), (2, 3, 4)), ((2, N, 4, 3), (2 * N, 3, 4))]
)
def test_leading_axes_may_be_reshaped_after_the_transposition(shape, reshaped):
    b = FunctionBuilder()
    x, y = b.input("x", (*reshaped[:-2], 5, 3)), b.input("y", shape)
    swapped = b.op("permute_dims", y, axes=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    module = IRModule({"main": b.function(b.op("matmul", x, b.op("reshape", swapped, shape=reshaped)))})
    after = verify(DeadCodeElimination()(FuseTransposeMatmul()(verify(module))))
    sizes = [[dims.evaluate(dim, {"n": 2}) for dim in each.type.shape] for each in (x, y)]
    assert_same_meaning(module, after, [numbers(*each) for each in sizes])
    assert [binding.value.op_name for binding in after["main"].bindings] == ["reshape", "call_tir"]
    assert "nt_matmul" in after.functions


def test_a_reshape_of_the_last_two_axes_stays():
    b = FunctionBuilder()
    x, y = b.input("x", (2, 6)), b.input("y", (4, 3, 2))
    swapped = b.op("permute_dims", y, axes=(0, 2, 1))
    module = IRModule({"main": b.function(b.op("matmul", x, b.op("reshape", swapped, shape=(6, 4))))})
    assert FuseTransposeMatmul()(module) is module


def test_a_transposed_copy_that_is_needed_elsewhere_stays():
    b = FunctionBuilder()
    x, w = b.input("x", (2, 3)), b.input("w", (4, 3))
    t = b.op("permute_dims", w, axes=(1, 0))
    module = IRModule({"main": b.function(b.op("matmul", x, t), t)})
    after = verify(DeadCodeElimination()(FuseTransposeMatmul()(module)))
    assert_same_meaning(module, after, [numbers(2, 3), numbers(4, 3)])
    assert [binding.value.op_name for binding in after["main"].bindings] == ["permute_dims", "call_tir"]


def test_equal_products_share_a_function():
    b = FunctionBuilder()
    x, v, w = b.input("x", (2, 3)), b.input("v", (4, 3)), b.input("w", (4, 3))
    products = [b.op("matmul", x, b.op("permute_dims", y, axes=(1, 0))) for y in (v, w)]
    after = verify(FuseTransposeMatmul()(IRModule({"main": b.function(*products)})))
    assert list(after.functions) == ["main", "nt_matmul"]


@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_reads_heads_first_operands_in_place(has_bias):
    b = FunctionBuilder()
    shapes = [(2, 4, 5, 8), (2, 4, N, 8), (2, N, 4, 8)] + [(2, 1, 1, N)] * has_bias
    query, key, value, *bias = (b.input(f"x{n}", shape) for n, shape in enumerate(shapes))
    query, key = (b.op("permute_dims", each, axes=(0, 2, 1, 3)) for each in (query, key))
    root = b.op("nn.attention_bias" if has_bias else "nn.attention", query, key, value, *bias)
    module = verify(IRModule({"main": b.function(root)}))
    after = verify(DeadCodeElimination()(FuseTransposeMatmul()(module)))
    name = "ttnn_attention_bias" if has_bias else "ttn_attention"
    assert [binding.value.args[0].name for binding in after["main"].bindings] == [name]
    plain = LegalizeOps()(module)
    (expected,) = (each for key, each in plain.functions.items() if "attention" in key)
    assert [block.name for block in after[name].blocks] == [block.name for block in expected.blocks]
    sizes = [[dims.evaluate(dim, {"n": 7}) for dim in shape] for shape in shapes]
    assert_same_meaning(module, after, [numbers(*each) for each in sizes])


@pytest.mark.parametrize("axes", [(0, 1, 3, 2), (1, 0, 2, 3), (0, 2, 3, 1)])
def test_attention_reads_copies_of_other_permutations(axes):
    b = FunctionBuilder()
    key, *others = (b.input(name, (4, 4, 4, 4)) for name in "kqv")
    permuted = b.op("permute_dims", key, axes=axes)
    module = IRModule({"main": b.function(b.op("nn.attention", others[0], permuted, others[1]))})
    assert FuseTransposeMatmul()(module) is module
