"""What the Relay-era test_cudnn.py says of softmax: which calls are marked, and which are not, why.

The library is a stand-in of NumPy, since the plugin leaves softmax to generated kernels: the same rules and graphs, and
kernels that read them. Marks first, then regions, as in Relay. Convolutions run on the plugin itself, in its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import Call, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Accept, Answer, Decline
from kernelyard.patterns.op_rules import register_op_rule, unregister_op_rules
from kernelyard.placement.recorder import Recorder
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.partition_graph import PartitionGraph

from .numpy_library import Library

# --- cudnn: rules -----------------------------------------------------------------------------------------------------
FLOATS = ("float16", "float32", "float64")


def rule_of_softmax(call: Call) -> Answer:
    dtype = call.tensor_type.dtype
    return Accept() if dtype in FLOATS else Decline("dtype", f"softmax of {dtype}")


def rule_of_log_softmax(call: Call) -> Answer:
    type_ = call.tensor_type
    if type_.dtype in FLOATS and (type_.rank != 2 or call.attrs["axis"] != 1):
        return Decline("attribute", f"log_softmax over axis {call.attrs['axis']} of rank {type_.rank}; rows alone")
    return rule_of_softmax(call)


# --- the flow ---------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _libraries(install: Any) -> Iterator[None]:
    rules = {"nn.softmax": rule_of_softmax, "nn.log_softmax": rule_of_log_softmax}
    for op, rule in rules.items():
        register_op_rule(op, "rows", rule)
    install(Library("rows"))
    yield
    unregister_op_rules("rows")


def partitioned(module: IRModule, library: str) -> tuple[IRModule, Recorder]:
    """partition_for_cudnn."""
    recorder = Recorder()
    for step in (AnnotateTarget(library, recorder), PartitionGraph()):
        module = verify(step(module))
    return module, recorder


def feeds_of(module: IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(42)
    types = [param.tensor_type for param in module["main"].params]  # pyright: ignore[reportAttributeAccessIssue]
    return [
        rng.integers(0, 32, t.shape).astype(np.int8) if t.dtype == "int8" else rng.random(t.shape).astype(t.dtype)
        for t in types
    ]


def check(library: str, b: FunctionBuilder, result: Var) -> None:
    """Everything is in one region of the library, and gives what the reference gives."""
    module = verify(IRModule({"main": b.function(result)}))
    after, _ = partitioned(module, library)
    assert [f.attrs["Codegen"] for f in after.graph_functions().values() if "Codegen" in f.attrs] == [library]
    exe = ky.compile(after, backends=[library], strict=True)
    assert {node.backend for node in exe.report.nodes} == {library}, str(exe.report)
    feeds = feeds_of(module)
    assert_allclose(exe(*feeds), evaluate(module, feeds)[0])


def declined(library: str, b: FunctionBuilder, result: Var, rest_is_taken: bool = False) -> list[tuple[str, str]]:
    """Codes and messages of a program that the library does not run as a whole, which is right all the same.

    rest_is_taken: it runs a part of it, as that stands without what was declined.
    """
    module = verify(IRModule({"main": b.function(result)}))
    after, recorder = partitioned(module, library)
    exe = ky.compile(after, backends=[library], strict=True)
    taken = [node.backend == library for node in exe.report.nodes]
    assert any(taken) == rest_is_taken
    assert not all(taken)
    feeds = feeds_of(module)
    assert_allclose(exe(*feeds), evaluate(module, feeds)[0])
    return [(each.code, each.message) for each in recorder.list_declined_matches()]


# --- test_cudnn.py ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((200,), 0), ((13, 27), 0), ((44, 12, 67), 1), ((1, 16, 16, 8), 2), ((2, 4, 6, 8, 10), 3)],
    ids=str,
)
def test_relay_cudnn_softmax(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    b = FunctionBuilder()
    check("rows", b, b.op("nn.softmax", b.input("x", shape, dtype), axis=axis))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(32, 16), (13, 27)], ids=str)
def test_relay_cudnn_log_softmax(shape: tuple[int, ...], dtype: str) -> None:
    b = FunctionBuilder()
    check("rows", b, b.op("nn.log_softmax", b.input("x", shape, dtype), axis=1))


@pytest.mark.parametrize(("shape", "axis"), [((13, 27), 0), ((2, 3, 4), 2)], ids=str)
def test_log_softmax_of_rows_alone(shape: tuple[int, ...], axis: int) -> None:
    b = FunctionBuilder()
    reasons = declined("rows", b, b.op("nn.log_softmax", b.input("x", shape), axis=axis))
    assert reasons == [("attribute", f"log_softmax over axis {axis} of rank {len(shape)}; rows alone")]


SCENARIOS = {
    "test_cudnn: relay_cudnn_softmax": test_relay_cudnn_softmax,
    "test_cudnn: relay_cudnn_log_softmax": test_relay_cudnn_log_softmax,
}
