"""CSourceCodegen: regions become C text that calls a library.

A backend says what a kernel's call looks like in C; intermediates, constants and the interface of
`kernelyard.runtime.abi.native_unit` are written here. A backend that has more to do before its calls (handles, packed
weights) overrides `function`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.errors import CodegenError
from kernelyard.placement.json_serializer import JSONSerializer
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.native_unit import NativeFunction, NativeUnit, SharedLibrary, c_name
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.modules.c_source import CSourceModule
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode, NodeEntry
from kernelyard.transform.run_codegen import Region

C_TYPES: Mapping[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint64": "uint64_t",
    "uint32": "uint32_t",
    "uint16": "uint16_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
}

_FUNCTION = """\
int32_t {name}_prepare(const void* const* constants, int32_t threads, void** shared) {{
  (void)threads;
  *shared = malloc({count} * sizeof(void*) + 1);
  if (!*shared) return 1;
  memcpy(*shared, constants, {count} * sizeof(void*));
  return 0;
}}
int32_t {name}_bind(void* shared, const int64_t* sizes, int32_t threads, void** call, int64_t* workspace_nbytes) {{
  (void)sizes; (void)threads;
  *call = shared;
  *workspace_nbytes = {workspace};
  return 0;
}}
int32_t {name}_run(void** args, void* call, int32_t threads, void* workspace) {{
  void** constants = call;
  (void)args; (void)constants; (void)threads; (void)workspace;
{body}
  return 0;
}}
void {name}_unbind(void* call) {{ (void)call; }}
void {name}_release(void* shared) {{ free(shared); }}
"""


@dataclass(frozen=True)
class CTensor:
    """A tensor in generated C. name: of a variable that points to its elements. shape: known sizes."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class CSourceCodegen:
    """Turns regions into one CSourceModule; a backend says what each kernel is in C.

    libraries: what the code is linked with. preamble: what stands before the functions, such as `#include`s.

    Example:
        >>> class AcmeC(CSourceCodegen):
        ...     preamble = "void acme_relu(const float* x, float* y, int64_t n);"
        ...     def statement(self, node, operands, outputs):
        ...         (y,) = outputs
        ...         return f"acme_relu({operands['x'].name}, {y.name}, {y.shape[0]});"
    """

    libraries: tuple[SharedLibrary, ...] = ()
    preamble: str = ""

    def statement(self, node: JSONNode, operands: Mapping[str, CTensor], outputs: Sequence[CTensor]) -> str:
        """C statements that compute a kernel; `return` with a status other than 0 says that it failed.

        Raises: CodegenError for a kernel that is not there in C.
        """
        raise CodegenError(f"{type(self).__name__} has no C for this kernel", found=node.op)

    def generate(self, regions: Sequence[Region], serializer: JSONSerializer) -> CSourceModule:
        """Return the regions as one module; `serializer` says what kernels their composites are.

        Raises: CodegenError.
        """
        return self.generate_graphs(serializer.serialize_all(regions), serializer.constants)

    def generate_graphs(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray]) -> CSourceModule:
        """Return the graphs as one module.

        Raises: CodegenError.
        """
        known = dict(constants)
        texts = ["#include <stdint.h>", "#include <stdlib.h>", "#include <string.h>", self.preamble]
        functions: list[NativeFunction] = []
        for graph in graphs:
            name = c_name(graph.symbol)
            text, digests = self.function(graph, name, known)
            texts.append(text)
            functions.append(NativeFunction(graph.symbol, name, graph.signature(), digests))
        return CSourceModule(NativeUnit("\n".join(texts), tuple(functions), self.libraries), known)

    def function(self, graph: JSONGraph, name: str, constants: dict[str, np.ndarray]) -> tuple[str, tuple[str, ...]]:
        """Return the five C functions of a graph, and the digests of the constants that `NAME_prepare` gets.

        An override may add constants of its own to `constants`, by digest.
        Raises: CodegenError.
        """
        return _GraphWriter(self, graph).write(name)


class _GraphWriter:
    def __init__(self, codegen: CSourceCodegen, graph: JSONGraph) -> None:
        self._codegen = codegen
        self._graph = graph
        self._digests = graph.digests()
        self._nbytes = 0
        self._lines: list[str] = []
        self._tensors: dict[NodeEntry, CTensor] = {}

    def write(self, name: str) -> tuple[str, tuple[str, ...]]:
        for number, node in enumerate(self._graph.nodes):
            outputs = [self._declare((number, output), node, spec) for output, spec in enumerate(node.outputs)]
            if node.kind == "kernel":
                operands = {role: self._tensors[entry] for role, entry in node.inputs}
                self._lines.append(f"  {{ {self._codegen.statement(node, operands, outputs)} }}")
        self._copy_results()
        text = _FUNCTION.format(
            name=name, count=len(self._digests), workspace=self._nbytes, body="\n".join(self._lines)
        )
        return text, self._digests

    def _declare(self, entry: NodeEntry, node: JSONNode, spec: TensorSpec) -> CTensor:
        shape, nbytes = static_shape(spec, self._graph.symbol)
        place = self._place(entry, node, nbytes)
        tensor = CTensor(f"t{entry[0]}_{entry[1]}", shape, spec.dtype)
        self._lines.append(f"  {C_TYPES[spec.dtype]}* {tensor.name} = (void*){place}; (void){tensor.name};")
        self._tensors[entry] = tensor
        return tensor

    def _place(self, entry: NodeEntry, node: JSONNode, nbytes: int) -> str:
        if node.kind == "input":
            return f"args[{node.index}]"
        if node.kind == "constant":
            return f"constants[{self._digests.index(node.digest)}]"
        if entry in self._graph.outputs:
            return f"args[{len(self._graph.inputs) + self._graph.outputs.index(entry)}]"
        offset, self._nbytes = self._nbytes, self._nbytes + memory.align(nbytes)
        return f"((char*)workspace + {offset})"

    def _copy_results(self) -> None:
        """Results that are also inputs, constants or other results are copied."""
        for number, entry in enumerate(self._graph.outputs):
            is_made = self._graph.nodes[entry[0]].kind == "kernel" and self._graph.outputs.index(entry) == number
            if not is_made:
                tensor = self._tensors[entry]
                nbytes = memory.nbytes_of(tensor.shape, tensor.dtype)
                self._lines.append(f"  memcpy(args[{len(self._graph.inputs) + number}], {tensor.name}, {nbytes});")


def static_shape(spec: TensorSpec, where: str) -> tuple[tuple[int, ...], int]:
    """Return a shape whose sizes are all known, and the bytes that it takes.

    Raises: CodegenError.
    """
    shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
    if len(shape) != len(spec.shape):
        raise CodegenError("C is generated for known sizes only", where=where, found=repr(spec), expected="no symbols")
    return shape, memory.nbytes_of(shape, spec.dtype)
