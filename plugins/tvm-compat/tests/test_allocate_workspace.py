"""Workspaces of library functions."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, TensorType, parse_module, to_text, verify
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.merge_composite_functions import MergeCompositeFunctions
from kernelyard.transform.partition.run_codegen import RunCodegen
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard_tvm_compat.allocate_workspace import AllocateWorkspace

Q, K, V = np.random.default_rng(0).standard_normal((3, 2, 4, 8), dtype=np.float32)
SCORES = is_op("nn.softmax")(is_op("matmul")(wildcard(), is_op("permute_dims")(wildcard())))
ATTENTION = FusionPattern(
    "acme.attention", is_op("matmul")(SCORES, wildcard()), attrs_getter=lambda match: {"WorkspaceSize": 65536}
)
RELU = FusionPattern("acme.relu", is_op("nn.relu")(wildcard()), attrs_getter=lambda match: {"WorkspaceSize": 128})
TANH = FusionPattern("acme.tanh", is_op("tanh")(wildcard()))


def attention(b, q, k, v):
    scores = b.op("nn.softmax", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1))), axis=2)
    return b.op("matmul", scores, v)


def single_attention(tail="nn.relu"):
    b = FunctionBuilder()
    q, k, v = (b.input(name, Q.shape) for name in "qkv")
    return verify(IRModule({"main": b.function(b.op(tail, attention(b, q, k, v)))}))


def test_single_attention():
    """F.7 (test_transform_allocate_workspace): one allocation at the start of the caller, passed down to the composite."""
    module = single_attention("sin")
    fused = MergeCompositeFunctions()(FuseOpsByPattern([ATTENTION])(module))
    after = verify(AllocateWorkspace()(fused))
    first = after["main"].bindings[0]
    assert first.var.name == "workspace_main"
    assert first.var.type == TensorType((65536,), "uint8")
    for function in after.graph_functions().values():
        if function is not after["main"]:
            assert function.params[-1].name == "workspace"
            assert "WorkspaceSize" not in function.attrs
    assert_same_meaning(module, after, [Q, K, V])
    assert to_text(parse_module(to_text(after))) == to_text(after)


@pytest.mark.parametrize("annotate", [True, False])
def test_the_largest_is_allocated_once_and_shared(annotate):
    module = single_attention()
    fused = FuseOpsByPattern([ATTENTION, RELU, TANH], annotate_codegen=annotate)(module)
    after = verify(AllocateWorkspace()(fused))
    assert_same_meaning(module, after, [Q, K, V])
    calls = [binding.value for binding in after["main"].bindings if isinstance(binding.value, Call)]
    assert [call.op_name for call in calls].count("alloc_tensor") == 1
    assert all(call.args[-1] is after["main"].bindings[0].var for call in calls[1:])
    assert DeadCodeElimination()(after)["main"] is after["main"], "an allocation is not removed, nor merged"


def test_functions_that_ask_for_none_stay():
    module = FuseOpsByPattern([TANH])(single_attention("tanh"))
    assert AllocateWorkspace()(module) is module


def test_every_entry_function_has_its_own():
    b, other = FunctionBuilder(), FunctionBuilder()
    module = IRModule(
        {
            "main": b.function(b.op("nn.relu", b.input("x", (4,)))),
            "other": other.function(other.op("nn.relu", other.input("x", (4,)))),
            "third": FunctionBuilder().function(Constant(np.ones(2, np.float32))),
        }
    )
    after = verify(AllocateWorkspace()(FuseOpsByPattern([RELU])(module)))
    assert [after[name].bindings[0].var.name for name in ("main", "other")] == ["workspace_main", "workspace_other"]
    assert not after["third"].bindings


def test_a_library_function_is_given_its_workspace():
    backend = InterpretedBackend("acme", patterns=[ATTENTION])
    module = single_attention("sin")
    fused = AllocateWorkspace()(MergeCompositeFunctions()(FuseOpsByPattern([ATTENTION])(module)))
    compiled = verify(RunCodegen({"acme": backend.codegen}, strict=True)(fused))
    assert_same_meaning(module, compiled, [Q, K, V])
    (call,) = [b.value for b in compiled["main"].bindings if getattr(b.value, "op_name", "") == "call_dps_packed"]
    assert call.args[-1].type.dtype == "uint8"


@pytest.mark.parametrize("size", [-1, 1.5, True, "64"])
def test_sizes_are_natural_numbers(size):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (4,))))})
    pattern = FusionPattern("acme.relu", RELU.pattern, attrs_getter=lambda match: {"WorkspaceSize": size})
    with pytest.raises(PassError, match="number of bytes"):
        AllocateWorkspace()(FuseOpsByPattern([pattern])(module))


def test_entry_functions_cannot_ask():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("tanh", b.input("x", (4,))), attrs={"WorkspaceSize": 8})})
    with pytest.raises(PassError, match="entry function"):
        AllocateWorkspace()(module)


SCENARIOS = {
    "AllocateWorkspace: single_attention": test_single_attention,
}
