"""What the tests share: a builder of JSON graphs that also runs them, and checks of what is offloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, dtypes
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, Var
from kernelyard.runtime.abi.memory import Workspace, address_of, aligned_empty
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.modules.json_runtime import JSONGraph
from kernelyard.testing import assert_allclose, assert_declined, evaluate
from kernelyard.transform.simplify import fold_constants
from kernelyard_dnnl.processor import has_wide_integers
from kernelyard_dnnl.runtime import DnnlRuntime

# Code of our own for quantized data, which is for processors with these instructions alone.
needs_wide_integers = pytest.mark.skipif(not has_wide_integers(), reason="no AVX-512 with VNNI")

Entry = list[int]
Build: TypeAlias = Callable[..., Var]
Input: TypeAlias = "Sequence[Any] | TensorType"


class GraphBuilder:
    """Writes a JSON graph node by node; tensors are named by their entries."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.constants: dict[str, np.ndarray] = {}

    def input(self, shape: Sequence[int | str], dtype: str = "float32") -> Entry:
        self.inputs.append({"name": f"x{len(self.inputs)}", "shape": list(shape), "dtype": dtype})
        return self._add({"kind": "input", "index": len(self.inputs) - 1})

    def constant(self, array: np.ndarray) -> Entry:
        dtype = dtypes.from_numpy(array.dtype)
        digest = hashlib.sha256(f"{array.shape}{dtype}".encode() + array.tobytes()).hexdigest()
        self.constants[digest] = array
        return self._add({"kind": "constant", "digest": digest, "shape": list(array.shape), "dtype": dtype})

    def kernel(
        self, op: str, shape: Sequence[int | str], operands: Mapping[str, Entry], dtype: str = "float32", **attrs: Any
    ) -> Entry:
        inputs = [{"role": role, "value": entry} for role, entry in operands.items()]
        outputs = [{"shape": list(shape), "dtype": dtype}]
        return self._add({"kind": "kernel", "op": op, "inputs": inputs, "attrs": attrs, "outputs": outputs})

    def _add(self, node: dict[str, Any]) -> Entry:
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0]

    def graph(self, *outputs: Entry, symbol: str = "dnnl_0") -> JSONGraph:
        return JSONGraph.from_json(
            {"schema": 1, "symbol": symbol, "inputs": self.inputs, "nodes": self.nodes, "outputs": list(outputs)}
        )

    def run(
        self, outputs: Sequence[Entry], *feeds: np.ndarray, threads: int = 1, **symbols: int
    ) -> tuple[list[np.ndarray], list[tuple[str, str]]]:
        """The outputs, and what ran: (node, implementation) in order."""
        runtime = DnnlRuntime([self.graph(*outputs)], self.constants)
        results = run_module(runtime, "dnnl_0", feeds, symbols, threads)
        return results, runtime.plan("dnnl_0", symbols, threads).implementations


def run_module(
    module: Any, symbol: str, feeds: Sequence[np.ndarray], symbols: Mapping[str, int], threads: int = 1
) -> list[np.ndarray]:
    """Binds a function to fresh memory and runs it twice: the second run must not see what the first left behind."""
    signature = module.signature(symbol)
    arrays = [aligned_empty(spec.evaluate(symbols), spec.dtype) for spec in signature.tensors]
    for array in arrays:
        array.reshape(-1).view(np.uint8).fill(0xFF)  # NaN where floats are not written
    workspace = Workspace()
    args = [BoundTensor(address_of(a), a.shape, s.dtype) for a, s in zip(arrays, signature.tensors, strict=True)]
    call = module.bind(symbol, args, symbols, BindContext(threads, workspace))
    table = CallTable(call.steps)
    for _ in range(2):
        for array, feed in zip(arrays, feeds, strict=False):
            array[...] = feed
        table.run()
    return arrays[len(feeds) :]


class Offloading:
    """Compiles small programs for dnnl, and checks what was taken and the numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def module(self, build: Build, *inputs: Input) -> IRModule:
        """A module whose `main` is `build(builder, *parameters)`; an input is a shape (float32) or a type."""
        b = FunctionBuilder()
        types = [each if isinstance(each, TensorType) else TensorType(tuple(each), "float32") for each in inputs]
        return IRModule({"main": b.function(build(b, *(b.parameter(t, f"x{i}") for i, t in enumerate(types))))})

    def feeds(self, module: IRModule, positive: bool = False, **sizes: int) -> list[np.ndarray]:
        """Random inputs, every symbolic dim as in `sizes`; `positive`: between 0.5 and 1.5."""
        arrays = []
        for param in module["main"].params:
            shape = [dim if isinstance(dim, int) else dims.evaluate(dim, sizes) for dim in param.tensor_type.shape]
            arrays.append(self._feed(shape, dtypes.to_numpy(param.tensor_type.dtype), positive))
        return arrays

    def _feed(self, shape: Sequence[int], dtype: Any, positive: bool) -> np.ndarray:
        if dtype in (np.int8, np.uint8):
            limits = np.iinfo(dtype)
            return self._rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        array = self._rng.uniform(0.5, 1.5, shape) if positive else self._rng.standard_normal(shape)
        return array.astype(dtype)

    def taken(self, pattern: str, ops: str, build: Build, *inputs: Input, positive: bool = False) -> ky.Executable:
        """The program is one composite of `pattern` with these ops, and gives what the reference gives."""
        module = self.module(build, *inputs)
        exe = ky.compile(module, backends=["dnnl"])
        found = [(region.pattern, " ".join(region.ops)) for region in exe.report.regions]
        assert found == [(pattern, ops)], f"{found}\n{exe.report}"
        assert {row.backend for row in exe.report.placed} <= {"dnnl", "view"}, str(exe.report)
        self.right(module, exe, positive=positive)
        return exe

    def declined(self, code: str, pattern: str, build: Build, *inputs: Input, positive: bool = False) -> ky.Executable:
        """The program's match of `pattern` is declined with that code; it still gives what the reference gives."""
        module = self.module(build, *inputs)
        exe = ky.compile(module, backends=["dnnl"])
        assert_declined(exe, "dnnl", code, pattern)
        self.right(module, exe, positive=positive)
        return exe

    def implementations(self, exe: ky.Executable, **sizes: int) -> list[tuple[str, str]]:
        """What runs in the one region of a program: (node, implementation) in order."""
        (runtime,) = [each for each in exe.modules if isinstance(each, DnnlRuntime)]
        (symbol,) = runtime.symbols()
        return runtime.plan(symbol, sizes, 1).implementations

    def right(self, module: IRModule, exe: ky.Executable, positive: bool = False, **sizes: int) -> None:
        """The program gives what the reference gives; quantized results are at most one quantum apart."""
        self.gives(module, exe, self.feeds(module, positive, **sizes))

    def gives(self, module: IRModule, exe: ky.Executable, feeds: Sequence[np.ndarray]) -> None:
        """The same for these inputs."""
        (expected,) = evaluate(module, feeds)
        actual = exe(*feeds).numpy()
        if expected.dtype not in (np.int8, np.uint8):
            assert_allclose(actual, expected)
            return
        assert actual.dtype == expected.dtype
        apart = np.abs(actual.astype(int) - expected)
        assert apart.max() <= 1
        assert np.mean(apart > 0) <= 1e-3 or np.count_nonzero(apart) == 1


@pytest.fixture
def offloading(rng: np.random.Generator) -> Offloading:
    """Checks of what is offloaded."""
    return Offloading(rng)


@pytest.fixture
def small_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights stay quantized until they are placed, as large ones do."""
    monkeypatch.setattr(fold_constants, "MAX_GROWTH", 0)


@pytest.fixture
def builder() -> GraphBuilder:
    """An empty graph."""
    return GraphBuilder()


@pytest.fixture(scope="session")
def new_builder() -> Callable[[], GraphBuilder]:
    """Makes empty graphs, for tests that need many."""
    return GraphBuilder


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)
