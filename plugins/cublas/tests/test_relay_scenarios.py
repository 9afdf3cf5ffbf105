"""The scenarios of the Relay-era test_cublas.py, by name: rules of single operators and patterns used together, as there.

Composites first, then marks, then regions. Products run on the emulator, by NumPy in cuBLASLt's place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns.op_rules import register_op_rule, unregister_op_rules
from kernelyard.placement.recorder import Recorder
from kernelyard.target import Target
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.checks import Checks
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_composite import MergeComposite
from kernelyard_tvm_compat.partition_graph import PartitionGraph

from .conftest import region_of, runtime_of

PAIRS = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("int8", "int32"),
    ("float64", "float64"),
    ("int8", "float32"),
)
SIZES = [(64, 128, 32, False, False), (17, 32, 16, True, False), (24, 17, 12, False, True), (96, 4, 17, True, True)]


@pytest.fixture(autouse=True)
def _rule() -> Iterator[None]:
    register_op_rule("matmul", "cublas", Checks(Target("cuda")).call)
    yield
    unregister_op_rules("cublas")


def partitioned(module: IRModule) -> tuple[IRModule, Recorder]:
    """partition_for_cublas, as Relay has it."""
    recorder = Recorder()
    patterns = CublasBackend().patterns(Target("cuda"))
    for step in (MergeComposite(patterns, recorder), AnnotateTarget("cublas", recorder), PartitionGraph()):
        module = verify(step(module))
    return module, recorder


def run(products, b: FunctionBuilder, result: Var) -> tuple[ky.Executable, list[tuple[str, str]]]:
    """A program that is right, and the codes and messages of what was declined."""
    module = verify(IRModule({"main": b.function(result)}))
    after, recorder = partitioned(module)
    exe = ky.compile(after, target="cuda", backends=["cublas"], strict=True)
    feeds = feeds_of(module)
    assert_allclose(
        ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](*feeds), evaluate(module, feeds)[0]
    )
    return exe, [(each.code, each.message) for each in recorder.list_declined_matches()]


def product(a: tuple[int, ...], b: tuple[int, ...], pair: tuple[str, str], turn_a: bool, turn_b: bool):
    """A product of stored operands: wider than these where the result is."""
    builder = FunctionBuilder()
    stored, wanted = pair
    operands = []
    for name, shape, transposed in (("A", a, turn_a), ("B", b, turn_b)):
        x = builder.input(name, shape, stored)
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        x = builder.op("permute_dims", x, axes=axes) if transposed else x
        operands.append(x if stored == wanted else builder.op("astype", x, dtype=wanted))
    return builder, builder.op("matmul", *operands)


def is_int8_product(a: tuple[int, ...], b: tuple[int, ...], turn_a: bool, turn_b: bool) -> bool:
    """Whether the library takes these sizes, read as they are stored or, where something else transposes, as they are
    then: enough rows, and multiples of 8; of 4 for the rows of the left operand as they are stored."""
    (rows, inner) = (a[-1], a[-2]) if turn_a else (a[-2], a[-1])
    columns = b[-2] if turn_b else b[-1]
    return rows > 16 and inner % 8 == 0 and columns % 8 == 0


def check_pair(products, a, b, pair: tuple[str, str], turn_a: bool, turn_b: bool) -> None:
    """All of it is one call of the library, but for int8 with sizes that it may have no algorithm for."""
    exe, reasons = run(products, *product(a, b, pair, turn_a, turn_b))
    backends = {node.backend for node in exe.report.nodes}
    if pair[0] != "int8" or (is_int8_product(a, b, turn_a, turn_b) and a[-1] % 4 == 0):
        assert backends == {"cublas"}, str(exe.report)
        assert len(runtime_of(exe).symbols()) == 1
        return
    assert any(code == "alignment" and "a multiple of" in message for code, message in reasons)
    # Casts and transpositions are operators here: what they give, made elsewhere, may be what the library takes.
    is_taken = pair[1] == "float32" or is_int8_product(a, b, turn_a, turn_b)
    assert ("cublas" in backends) == is_taken, str(exe.report)
    assert backends != {"cublas"}


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize(("n", "m", "k", "turn_a", "turn_b"), SIZES)
def test_relay_cublas_matmul(n, m, k, turn_a, turn_b, pair, products):
    check_pair(products, (k, n) if turn_a else (n, k), (m, k) if turn_b else (k, m), pair, turn_a, turn_b)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize(("n", "m", "k"), [size[:3] for size in SIZES])
def test_relay_cublas_dense(n, m, k, pair, products):
    """The weights are (units, inputs): read transposed."""
    check_pair(products, (n, k), (m, k), pair, False, True)


@pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
@pytest.mark.parametrize(("size", "batches"), list(zip(SIZES, [(16, 16), (16, 1), (17, 17), (53, 1)], strict=True)))
def test_relay_cublas_batch_matmul(size, batches, pair, products):
    n, m, k, turn_a, turn_b = size
    a, b = (k, n) if turn_a else (n, k), (m, k) if turn_b else (k, m)
    check_pair(products, (batches[0], *a), (batches[1], *b), pair, turn_a, turn_b)


def test_products_that_cublas_has_no_types_for(products):
    """The rule of the operator and the check of the pattern say the same."""
    b = FunctionBuilder()
    exe, reasons = run(products, b, b.op("matmul", b.input("x", (4, 4), "uint8"), b.input("y", (4, 4), "uint8")))
    assert set(reasons) == {("dtype", "uint8 @ uint8 -> uint8 is not a matmul of cuBLASLt")}
    assert "cublas" not in {node.backend for node in exe.report.nodes}
    _, reasons = run(products, *product((4, 4), (4, 4), ("float32", "float64"), False, False))
    assert ("dtype", "float32 @ float32 -> float64 is not a matmul of cuBLASLt") in reasons


def test_an_operator_by_itself_in_a_region(products):
    """What a rule marks stands in its region in no composite."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (3, 4)), b.input("y", (4, 5))))})
    marked = verify(PartitionGraph()(AnnotateTarget("cublas")(module)))
    exe = ky.compile(marked, target="cuda", backends=["cublas"], strict=True)
    assert region_of(exe).ops == ("matmul",)
    products.right(exe, module)


SCENARIOS = {
    "test_cublas: relay_cublas_matmul": test_relay_cublas_matmul,
    "test_cublas: relay_cublas_dense": test_relay_cublas_dense,
    "test_cublas: relay_cublas_batch_matmul": test_relay_cublas_batch_matmul,
}
