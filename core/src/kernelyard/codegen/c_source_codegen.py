"""CSourceCodegen: regions become C text that calls a library.

A backend says what a kernel's call looks like in C; intermediates, constants and the interface of
`kernelyard.runtime.abi.native_unit` are written here. A backend that has more to do before its calls (handles, packed
weights) overrides `function`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard import dims
from kernelyard.codegen.json_serializer import JSONSerializer
from kernelyard.dims.c_text import C_FUNCTIONS, to_c
from kernelyard.errors import CodegenError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.native_unit import Header, NativeFunction, NativeUnit, SharedLibrary, c_name
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.modules.c_source import CSourceModule
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode, NodeEntry
from kernelyard.transform.partition.region import Region

_INCLUDES = ("#include <stdint.h>", "#include <stdlib.h>", "#include <string.h>")
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

# What of a call depends on sizes is computed once, where it is bound: places of intermediates in the workspace.
_FUNCTION = """\
typedef struct {{ void** constants; int64_t sizes[{num_sizes} + 1], offsets[{num_offsets} + 1]; }} {name}_call;
int32_t {name}_prepare(const void* const* constants, int32_t threads, void** shared) {{
  (void)threads;
  *shared = malloc({count} * sizeof(void*) + 1);
  if (!*shared) return 1;
  memcpy(*shared, constants, {count} * sizeof(void*));
  return 0;
}}
int32_t {name}_bind(void* shared, const int64_t* sizes, int32_t threads, void** call, int64_t* workspace_nbytes) {{
  int64_t end = 0;
  {name}_call* made = ({name}_call*)malloc(sizeof({name}_call));
  (void)threads; (void)sizes;
  if (!made) return 1;
  made->constants = (void**)shared;
  memcpy(made->sizes, sizes, {num_sizes} * sizeof(int64_t));
{places}
  *call = made;
  *workspace_nbytes = end;
  return 0;
}}
int32_t {name}_run(void** args, void* call, int32_t threads, void* workspace) {{
  void** constants = (({name}_call*)call)->constants;
  const int64_t *sizes = (({name}_call*)call)->sizes, *offsets = (({name}_call*)call)->offsets;
  (void)args; (void)constants; (void)sizes; (void)offsets; (void)threads; (void)workspace;
{body}
  return 0;
}}
void {name}_unbind(void* call) {{ free(call); }}
void {name}_release(void* shared) {{ free(shared); }}
"""


@dataclass(frozen=True)
class CTensor:
    """A tensor in generated C.

    name: of a variable that points to its elements. shape: numbers, and names of `int64_t` variables for sizes that are
    known when the code runs.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def size(self) -> str:
        """The number of elements as a C expression.

        Example:
            >>> CTensor("x", ("x_0", 3, 2), "float32").size, CTensor("x", (4, 2), "float32").size
            ('x_0 * 6', '8')
        """
        known = math.prod(dim for dim in self.shape if isinstance(dim, int))
        names = [dim for dim in self.shape if isinstance(dim, str)]
        return " * ".join([*names, *([str(known)] if known != 1 or not names else [])])


class CSourceCodegen:
    """Turns regions into one CSourceModule; a backend says what each kernel is in C.

    libraries: what the code is linked with. preamble: what stands before the functions, such as `#include`s. headers:
    what it includes beside the system's. language: "c" or "c++". options: of the compiler, such as "-O2", "-std=c++14",
    "-DNAME=1", without paths. symbolic_sizes: `statement` can do with shapes that are not numbers; without it, regions
    with such shapes are an error.

    Example:
        >>> class AcmeC(CSourceCodegen):
        ...     preamble = "void acme_relu(const float* x, float* y, int64_t n);"
        ...     def statement(self, node, operands, outputs):
        ...         (y,) = outputs
        ...         return f"acme_relu({operands['x'].name}, {y.name}, {y.shape[0]});"
    """

    libraries: tuple[SharedLibrary, ...] = ()
    preamble: str = ""
    headers: tuple[Header, ...] = ()
    language: str = "c"
    options: tuple[str, ...] = ()
    symbolic_sizes: bool = False

    def statement(self, node: JSONNode, operands: Mapping[str, CTensor], outputs: Sequence[CTensor]) -> str:
        """Return C statements that compute a kernel; `return` with a status other than 0 says that it failed.

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
        texts = [*_INCLUDES, C_FUNCTIONS if self.symbolic_sizes else "", self.preamble]
        functions: list[NativeFunction] = []
        if self.language == "c++":
            texts.append('extern "C" {')
        for graph in graphs:
            name = c_name(graph.symbol)
            text, digests = self.function(graph, name, known)
            texts.append(text)
            sizes = _symbols(graph) if self.symbolic_sizes else ()
            functions.append(NativeFunction(graph.symbol, name, graph.signature(), digests, sizes))
        if self.language == "c++":
            texts.append("}")
        unit = NativeUnit(
            "\n".join(texts),
            tuple(functions),
            self.libraries,
            language=self.language,
            headers=self.headers,
            options=self.options,
        )
        return CSourceModule(unit, known)

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
        self._symbols = _symbols(graph) if codegen.symbolic_sizes else ()
        self._sizes = {name: f"sizes[{number}]" for number, name in enumerate(self._symbols)}
        self._places: list[str] = []
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
            name=name,
            count=len(self._digests),
            num_sizes=len(self._symbols),
            num_offsets=len(self._places),
            places="\n".join(self._places),
            body="\n".join(self._lines),
        )
        return text, self._digests

    def _declare(self, entry: NodeEntry, node: JSONNode, spec: TensorSpec) -> CTensor:
        if not self._codegen.symbolic_sizes:
            static_shape(spec, self._graph.symbol)
        name = f"t{entry[0]}_{entry[1]}"
        shape: list[int | str] = []
        for axis, dim in enumerate(spec.shape):
            shape.append(dim if isinstance(dim, int) else f"{name}_{axis}")
            if not isinstance(dim, int):
                self._lines.append(f"  const int64_t {shape[-1]} = {to_c(dim, self._sizes)}; (void){shape[-1]};")
        tensor = CTensor(name, tuple(shape), spec.dtype)
        type_ = C_TYPES[spec.dtype]
        self._lines.append(f"  {type_}* {name} = ({type_}*){self._place(entry, node, spec)}; (void){name};")
        self._tensors[entry] = tensor
        return tensor

    def _place(self, entry: NodeEntry, node: JSONNode, spec: TensorSpec) -> str:
        if node.kind == "input":
            return f"args[{node.index}]"
        if node.kind == "constant":
            return f"constants[{self._digests.index(node.digest)}]"
        if entry in self._graph.outputs:
            return f"args[{len(self._graph.inputs) + self._graph.outputs.index(entry)}]"
        number = len(self._places)
        self._places.append(f"  made->offsets[{number}] = end; end += {self._round_up_nbytes(spec)};")
        return f"((char*)workspace + offsets[{number}])"

    def _round_up_nbytes(self, spec: TensorSpec) -> str:
        """Return the bytes of a tensor, rounded up, as C."""
        if all(isinstance(dim, int) for dim in spec.shape):
            return str(memory.align(static_shape(spec, self._graph.symbol)[1]))
        nbytes = to_c(dims.product((*spec.shape, memory.nbytes_of((), spec.dtype))), self._sizes)
        return f"({nbytes} + {memory.ALIGNMENT - 1}) / {memory.ALIGNMENT} * {memory.ALIGNMENT}"

    def _copy_results(self) -> None:
        """Emit copies for results that are also inputs, constants or other results."""
        for number, entry in enumerate(self._graph.outputs):
            is_made = self._graph.nodes[entry[0]].kind == "kernel" and self._graph.outputs.index(entry) == number
            if not is_made:
                tensor = self._tensors[entry]
                nbytes = f"{tensor.size} * {memory.nbytes_of((), tensor.dtype)}"
                self._lines.append(f"  memcpy(args[{len(self._graph.inputs) + number}], {tensor.name}, {nbytes});")


def _symbols(graph: JSONGraph) -> tuple[str, ...]:
    """Return the names of the symbols in the graph's sizes, in order."""
    found = (dims.symbols_of(dim) for node in graph.nodes for spec in node.outputs for dim in spec.shape)
    return tuple(sorted(frozenset().union(*found)))


def static_shape(spec: TensorSpec, where: str) -> tuple[tuple[int, ...], int]:
    """Return a shape whose sizes are all known, and the bytes that it takes.

    Raises: CodegenError.
    """
    shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
    if len(shape) != len(spec.shape):
        raise CodegenError("C is generated for known sizes only", where=where, found=repr(spec), expected="no symbols")
    return shape, memory.nbytes_of(shape, spec.dtype)
