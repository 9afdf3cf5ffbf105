"""JSONSerializer: regions become graphs that the JSON runtime reads and runs."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.errors import CodegenError
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, IRModule
from kernelyard.patterns import FusionPattern, is_const, is_op, wildcard
from kernelyard.patterns.composite import captured_operands
from kernelyard.placement.partition import partition
from kernelyard.runtime.modules.json_runtime import JSONGraph
from kernelyard.transform.partition.region import Region
from kernelyard.transform.partition.run_codegen import RunCodegen

W = np.arange(16, dtype=np.float32).reshape(4, 4)
MATMUL = FusionPattern(
    "acme.matmul",
    is_op("matmul")(wildcard().capture("a"), is_const().capture("b")).optional(
        lambda p: is_op("add")(p, is_const().capture("bias"))
    ),
    attrs_getter=lambda match: {"has_bias": "bias" in match},
)
SPLIT = FusionPattern("acme.split", is_op("split")(wildcard().capture("x")))
RELU = FusionPattern("acme.relu", is_op("nn.relu")(wildcard().capture("x")))


class Serializer(JSONSerializer):
    kernels: ClassVar[dict[str, str]] = {"acme.matmul": "gemm", "acme.split": "split", "acme.relu": "relu"}

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        attrs = {"has_bias": composite.attrs["has_bias"]} if "has_bias" in composite.attrs else {}
        operands = captured_operands(composite)
        return KernelNode(self.kernels[composite.attrs["Composite"]], list(operands.items()), attrs)


def regions_of(module: IRModule) -> list[Region]:
    found: list[Region] = []
    backend = InterpretedBackend("acme", patterns=[MATMUL, SPLIT, RELU])

    def codegen(regions: list[Region], options: Any) -> Any:
        found.extend(regions)
        return backend.codegen(regions, options)

    RunCodegen({"acme": codegen})(partition(module, [backend]))
    return found


def network() -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 4))
    y = b.op("add", b.op("matmul", x, W), np.ones(4, np.float32))
    y = b.op("matmul", b.op("nn.relu", y), W.copy())
    parts = b.op("split", y, axis=1, sections=(1, 3))
    return IRModule({"main": b.function(b.get(parts, 1), y)})


def test_graph_of_a_region() -> None:
    (region,) = regions_of(network())
    serializer = Serializer()
    graph = serializer.serialize(region)
    kernels = [node for node in graph.nodes if node.kind == "kernel"]
    assert [(node.op, [role for role, _ in node.inputs], dict(node.attrs)) for node in kernels] == [
        ("gemm", ["a", "b", "bias"], {"has_bias": True}),
        ("relu", ["x"], {}),
        ("gemm", ["a", "b"], {"has_bias": False}),
        ("split", ["x"], {}),
    ]
    assert kernels[0].input("b") == kernels[2].input("b")  # equal constants are one node
    assert [str(graph.spec(entry)) for entry in graph.outputs] == ["(n, 4) float32", "(n, 3) float32"]
    assert len(kernels[3].outputs) == 2
    assert (
        set(serializer.constants)
        == set(graph.digests())
        == {Constant(W).digest, Constant(np.ones(4, np.float32)).digest}
    )
    assert JSONGraph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


def test_serializing_twice_gives_the_same() -> None:
    texts = {json.dumps([g.to_json() for g in Serializer().serialize_all(regions_of(network()))]) for _ in range(2)}
    assert len(texts) == 1


class WrongOperand(Serializer):
    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        return KernelNode("gemm", [("a", composite.bindings[0].var)])


class WrongAttribute(Serializer):
    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        return KernelNode("gemm", [], {"weights": {"of": [np.ones(2)]}})


@pytest.mark.parametrize(
    ("serializer", "message"), [(WrongOperand, "neither a parameter"), (WrongAttribute, "not plain data")]
)
def test_what_cannot_be_written_is_refused(serializer: type[JSONSerializer], message: str) -> None:
    (region,) = regions_of(network())
    with pytest.raises(CodegenError, match=message):
        serializer().serialize(region)


def test_symbolic_attributes_become_text() -> None:
    class Sized(Serializer):
        def visit_composite(self, composite: Function, call: Call) -> KernelNode:
            node = super().visit_composite(composite, call)
            return KernelNode(node.op, node.inputs, {"shape": call.args[0].tensor_type.shape, "none": None})

    (region,) = regions_of(network())
    graph = Sized().serialize(region)
    assert next(node for node in graph.nodes if node.kind == "kernel").attrs == {"shape": ["n", 4], "none": None}


class Packing(Serializer):
    """Weights are kept transposed, in half the bits."""

    def visit_constant(self, constant: Constant, role: str, kernel: KernelNode) -> Constant:
        packed = role == "b" and kernel.op == "gemm"
        return Constant(np.ascontiguousarray(constant.data.T.astype(np.float16))) if packed else constant


def test_constants_may_be_rewritten_for_the_runtime() -> None:
    """The constant updater. What the kernel reads is what is kept, and nothing else."""
    (region,) = regions_of(network())
    serializer = Packing()
    graph = serializer.serialize(region)
    kept = {(str(array.dtype), array.tobytes()) for array in serializer.constants.values()}
    assert kept == {("float16", W.T.astype(np.float16).tobytes()), ("float32", np.ones(4, np.float32).tobytes())}
    specs = {str(node.outputs[0]) for node in graph.nodes if node.kind == "constant"}
    assert specs == {"(4, 4) float16", "(4,) float32"}
    assert set(graph.digests()) == set(serializer.constants)
    gemms = [node for node in graph.nodes if node.op == "gemm"]
    assert gemms[0].input("b") == gemms[1].input("b"), "equal constants are one, before and after"


def test_constants_become_constants() -> None:
    class Wrong(Serializer):
        def visit_constant(self, constant: Constant, role: str, kernel: KernelNode) -> Any:
            return constant.data

    (region,) = regions_of(network())
    with pytest.raises(CodegenError, match="no constant for the operand 'b' of 'gemm'"):
        Wrong().serialize(region)


SCENARIOS = {
    "constant_updater": test_constants_may_be_rewritten_for_the_runtime,
}
