"""The C-source scenarios of the Relay-era test_external_codegen.py: a compiler of its own, the user's, gets C text.

The flow is Relay's: single-op rules mark calls, marked neighbours become regions, and each region is a C function that
the compiler builds when it is first run. Every program is also saved and loaded; one is exported as a shared library.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import Model

import kernelyard as ky
from kernelyard.codegen.c_source_codegen import C_TYPES, CSourceCodegen
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.errors import CodegenError, ToolchainError
from kernelyard.ir import Call, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Accept, Decline
from kernelyard.patterns.op_rules import register_op_rule, unregister_op_rules
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.jit.c_compiler import COMPILERS
from kernelyard.testing import assert_offloaded
from kernelyard.transform import BindParams
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_compiler_regions import MergeCompilerRegions
from kernelyard_tvm_compat.partition_graph import PartitionGraph

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is installed here")

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
DTYPES = ("float32", "int32")


class Serializer(JSONSerializer):
    def visit_call(self, call: Call) -> KernelNode:
        return KernelNode(call.op_name, list(zip("ab", call.args, strict=True)))


class Loops(CSourceCodegen):
    """One loop for each operator."""

    def __init__(self, header: str) -> None:
        self.preamble = header

    def statement(self, node: Any, operands: Mapping[str, Any], outputs: Any) -> str:
        (y,) = outputs
        a, b, sign = operands["a"], operands["b"], SIGNS[node.op]
        count = int(np.prod(y.shape))
        step = "0" if b.shape in ((), (1,)) else "i"
        return f"for (int64_t i = 0; i < {count}; i++) {y.name}[i] = ({C_TYPES[y.dtype]})({a.name}[i] {sign} {b.name}[{step}]);"


class CCompiler(Backend):
    """Takes sums, differences and products; `header` stands before the functions."""

    name = "ccompiler"

    def patterns(self, target: Any) -> list[Any]:
        return []

    def codegen(self, regions: Any, options: Mapping[str, Any]) -> Any:
        return Loops(options.get("header", "")).generate(regions, Serializer())


def rule(call: Call) -> Accept | Decline:
    first, second = (arg.tensor_type for arg in call.args)
    if call.tensor_type.dtype not in DTYPES:
        return Decline("dtype", f"{call.tensor_type.dtype}; loops are written for {', '.join(DTYPES)}")
    if first.shape != call.tensor_type.shape or second.shape not in (first.shape, (), (1,)):
        return Decline("operand", "operands of one shape, or a number on the right")
    return Accept()


@pytest.fixture(autouse=True)
def _ccompiler(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    install(CCompiler(), options=("header",))
    for op in SIGNS:
        register_op_rule(op, "ccompiler", rule)
    yield
    unregister_op_rules("ccompiler")


def compiled(module: IRModule, **options: Any) -> ky.Executable:
    for step in (AnnotateTarget("ccompiler"), MergeCompilerRegions(), PartitionGraph()):
        module = verify(step(module))
    return ky.compile(module, backends=["ccompiler"], options={"ccompiler": options}, strict=True)


def saved_and_loaded(exe: ky.Executable) -> ky.Executable:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.kyar"
        exe.save(path)
        return ky.load(path)


def check(b: FunctionBuilder, result: Var, expected: Any, *feeds: np.ndarray, regions: int = 1) -> ky.Executable:
    """All calls but those of other operators are in C, in so many functions; saved and loaded, they give the same."""
    exe = compiled(IRModule({"main": b.function(result)}))
    (module,) = (each for each in exe.modules if each.kind == "c_source")
    assert len(module.symbols()) == regions
    nodes = exe.report.nodes
    assert {node.op for node in nodes if node.backend == "ccompiler"} == {n.op for n in nodes if n.op in SIGNS}
    assert_offloaded(exe, "ccompiler", at_least=1)
    for each in (exe, saved_and_loaded(exe)):
        np.testing.assert_allclose(each(*feeds).numpy(), expected, rtol=1e-6)
    return exe


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * 9).astype(dtype)


def test_multi_node_subgraph() -> None:
    """Two chains of three, each a region, beside operators of the rest."""
    b = FunctionBuilder()
    x = b.input("x", (10, 10))
    w = [b.input(f"w{i}", (10, 10)) for i in range(6)]
    first, second = (b.op("multiply", b.op("subtract", b.op("add", x, w[i]), w[i + 1]), w[i + 2]) for i in (0, 3))
    other = b.op("floor", x)
    data = [numbers(10, 10, seed=i) for i in range(7)]
    a, v = data[0], data[1:]
    expected = np.concatenate([(a + v[0] - v[1]) * v[2], (a + v[3] - v[4]) * v[5], np.floor(a)])
    exe = check(b, b.op("concat", first, second, other, axis=0), expected, *data)
    assert {node.op for node in exe.report.nodes if node.backend != "ccompiler"} == {"concat", "floor"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_extern_gcc_single_op(dtype: str) -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (8, 8), dtype), b.input("y", (8, 8), dtype)
    one, two = numbers(8, 8, dtype=dtype), numbers(8, 8, seed=1, dtype=dtype)
    check(b, b.op("add", x, y), one + two, one, two)


def test_extern_gcc() -> None:
    """Functions that feed each other: y * y - (x + x), in one region and in three."""
    x, y = numbers(2, 2), numbers(2, 2, seed=1)
    for separate in (False, True):
        b = FunctionBuilder()
        p, q = b.input("x", (2, 2)), b.input("y", (2, 2))
        square, double = b.op("multiply", q, q), b.op("add", p, p)
        if separate:
            square, double = b.op("abs", square), b.op("abs", double)
        result = b.op("subtract", square, double)
        check(b, result, y * y - (x + x), x, y, regions=3 if separate else 1)


def test_extern_gcc_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with the compiled functions in it: C programs call it, and Python loads it where no compiler is."""
    b = FunctionBuilder()
    x, y = b.input("x", (2, 2)), b.input("y", (2, 2))
    result = b.op("subtract", b.op("multiply", y, y), b.op("add", x, x))
    exe = compiled(IRModule({"main": b.function(result)}))
    exe.export_library(tmp_path / "program.so")
    one, two = numbers(2, 2), numbers(2, 2, seed=1)
    np.testing.assert_array_equal(Model(tmp_path / "program.so").run([one, two])[0], two * two - (one + one))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    np.testing.assert_array_equal(ky.load(tmp_path / "program.so")(one, two).numpy(), two * two - (one + one))


def test_extern_gcc_with_target_instance() -> None:
    """What the options say gets into the text: a comment changes nothing, and what is no C is the compiler's error."""
    b = FunctionBuilder()
    x, y = b.input("x", (8, 8), "int32"), b.input("y", (8, 8), "int32")
    module = IRModule({"main": b.function(b.op("add", x, y))})
    one, two = numbers(8, 8, dtype="int32"), numbers(8, 8, seed=1, dtype="int32")
    good = compiled(module, header="// Good")
    assert "// Good" in good.modules[0].inspect()
    np.testing.assert_array_equal(good(one, two).numpy(), one + two)
    with pytest.raises(ToolchainError, match="failed") as info:
        compiled(module, header="Bogus")(one, two)
    assert "Bogus" in str(info.value.found)


def test_extern_gcc_consts() -> None:
    """A constant of a region is kept beside the text, by content."""
    b = FunctionBuilder()
    x, constant = b.input("x", (8, 8)), numbers(8, 8, seed=1)
    data = numbers(8, 8)
    exe = check(b, b.op("add", x, constant), data + constant, data)
    (kept,) = exe.modules[0].constants().values()
    np.testing.assert_array_equal(kept, constant)


def test_load_params_with_constants_in_ext_codegen() -> None:
    """A parameter that is bound before the partition is the region's: the program has one input left."""
    b = FunctionBuilder()
    x, y = b.input("x", (1, 10)), b.input("y", (1,))
    module = BindParams("main", {"y": np.ones(1, np.float32)})(IRModule({"main": b.function(b.op("add", x, y))}))
    exe = saved_and_loaded(compiled(module))
    data = numbers(1, 10)
    np.testing.assert_array_equal(exe(data).numpy(), data + 1)


def test_what_there_is_no_c_for_is_refused_by_the_rule_and_by_the_codegen() -> None:
    b = FunctionBuilder()
    x = b.input("x", (4,), "float64")
    module = IRModule({"main": b.function(b.op("add", x, x))})
    assert AnnotateTarget("ccompiler")(module) is module
    with pytest.raises(CodegenError, match="operator by itself"):
        JSONSerializer().visit_call(next(iter(module.graph_functions()["main"].bindings)).value)  # pyright: ignore[reportArgumentType]


SCENARIOS = {
    "external_codegen: multi_node_subgraph": test_multi_node_subgraph,
    "external_codegen: extern_gcc_single_op": test_extern_gcc_single_op,
    "external_codegen: extern_gcc_single_op_int": test_extern_gcc_single_op,
    "external_codegen: extern_gcc": test_extern_gcc,
    "external_codegen: extern_gcc, exported": test_extern_gcc_exported,
    "external_codegen: extern_gcc_with_target_instance": test_extern_gcc_with_target_instance,
    "external_codegen: extern_gcc_consts": test_extern_gcc_consts,
    "external_codegen: load_params_with_constants_in_ext_codegen, in C": test_load_params_with_constants_in_ext_codegen,
}
