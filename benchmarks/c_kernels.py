"""Measure what a step costs: kernels in C (`kernelyard_plugin.h`) beside the same kernels as Python functions.

`python benchmarks/c_kernels.py`: a model of 20 small layers in one region, processor time of whole calls, in turns.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import kernelyard as ky
from kernelyard.plugins.api import (
    Backend,
    Call,
    Function,
    FunctionBuilder,
    FusionPattern,
    IRModule,
    JSONSerializer,
    KernelNode,
    Region,
    Target,
    captured_operands,
    hookimpl,
    is_op,
    wildcard,
)
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.manifest import Manifest
from kernelyard.runtime.api import (
    BindContext,
    BoundCall,
    BoundTensor,
    CKernel,
    CKernelRuntime,
    JSONGraph,
    JSONNode,
    JSONRuntime,
    RuntimeModule,
    Step,
    get_include,
)
from kernelyard.runtime.jit.c_compiler import find_compiler

SIZE = 8
SOURCE = """
#include <kernelyard_plugin.h>
int32_t relu_of_sum(void* state, DLTensor* const* args, int32_t num_args, const ky_context* context) {
  const float *x = args[0]->data, *y = args[1]->data;
  float* out = args[2]->data;
  for (int64_t i = 0; i < args[2]->shape[0]; i++) out[i] = x[i] + y[i] > 0 ? x[i] + y[i] : 0;
  return 0;
}
"""


def relu_of_sum(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """Compute what the function in C does."""
    np.add(x, y, out=out)
    np.maximum(out, 0, out=out)


class CRuntime(CKernelRuntime):
    """Kernels in C."""

    kind = "bench_c"
    library: ctypes.CDLL

    def kernel(
        self, node: JSONNode, operands: Mapping[str, BoundTensor], outputs: Sequence[BoundTensor], context: BindContext
    ) -> CKernel:
        return CKernel(getattr(self.library, node.op))


class PythonRuntime(JSONRuntime):
    """The same kernels as Python functions."""

    kind = "bench_python"

    def build(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        arrays = {entry: args[len(graph.inputs) + i].as_array() for i, entry in enumerate(graph.outputs)}
        steps: list[Step] = []
        for number, node in enumerate(graph.nodes):
            if node.kind == "input":
                arrays[number, 0] = args[node.index].as_array()
            elif node.kind == "constant":
                arrays[number, 0] = self.constants()[node.digest]
            else:
                output = arrays.setdefault((number, 0), np.empty(SIZE, np.float32))
                steps.append(partial(relu_of_sum, *(arrays[entry] for _, entry in node.inputs), output))
        return BoundCall(steps)


class _Serializer(JSONSerializer):
    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        return KernelNode("relu_of_sum", [*captured_operands(composite).items()])


class _Backend(Backend):
    merge_composites = True

    def __init__(self, runtime: type[JSONRuntime]) -> None:
        self.name, self._runtime = runtime.kind, runtime

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        return [
            FusionPattern(
                f"{self.name}.relu", is_op("nn.relu")(is_op("add")(wildcard().capture("x"), wildcard().capture("y")))
            )
        ]

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        serializer = _Serializer()
        return self._runtime(serializer.serialize_all(regions), serializer.constants)


def compiled(runtime: type[JSONRuntime], layers: int) -> ky.Executable:
    """Compile the model with all of it on a runtime's backend."""
    plugin = types.ModuleType(runtime.kind)
    backend = _Backend(runtime)
    setattr(plugin, "kernelyard_backend", hookimpl(lambda: backend))  # noqa: B010  a module has no such attribute
    get_manager().register(plugin, Manifest(runtime.kind, ">=2.0,<3", ("backend",), targets=("cpu",)))
    b = FunctionBuilder()
    x = b.input("x", (SIZE,))
    for number in range(layers):
        x = b.op("nn.relu", b.op("add", x, np.roll(np.linspace(-1, 1, SIZE, dtype=np.float32), number)))
    exe = ky.compile(IRModule({"main": b.function(x)}), backends=[runtime.kind])
    assert exe.report.summary.startswith(runtime.kind), exe.report.summary
    return exe


def microseconds(call: Callable[[], object], calls: int = 2000) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls * 1e6


def main() -> None:
    """Print the microseconds of a call and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(SOURCE)
        command = [*find_compiler().command, "-O2", "-shared", "-fPIC", f"-I{get_include()}"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        CRuntime.library = ctypes.CDLL(str(library))
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    with_c, with_python = compiled(CRuntime, options.layers), compiled(PythonRuntime, options.layers)
    np.testing.assert_array_equal(np.asarray(with_c(x)), np.asarray(with_python(x)))
    turns = [[microseconds(partial(exe, x)) for exe in (with_c, with_python)] for _ in range(options.turns)]
    c, python = (statistics.median(column) for column in zip(*turns, strict=True))
    print(f"{options.layers} layers: {c:.2f} µs with kernels in C, {python:.2f} µs with Python, ratio {python / c:.1f}")


if __name__ == "__main__":
    main()
