"""DnnlC: a region's plan as C text.

The plan is the one that the runtime makes (`kernelyard_dnnl.plan`), for the sizes that the region has: the same
primitives with the same post-ops over the same memory. Layouts that oneDNN chose are asked for again where the code
runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from kernelyard.plugins.api import Constant, CSourceCodegen, static_shape
from kernelyard.runtime.api import JSONGraph, MemoryPlanner, SharedLibrary
from kernelyard_dnnl import _native
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.c_source.region import RegionWriter
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.plan import make_plan
from kernelyard_dnnl.primitive import create_reorder
from kernelyard_dnnl.values import Buffer, Value

_C_TYPES: Mapping[Any, str] = {
    ctypes.c_void_p: "void*",
    ctypes.c_int: "int",
    ctypes.c_int64: "int64_t",
    ctypes.c_float: "float",
    ctypes.c_size_t: "size_t",
    ctypes.c_uint: "unsigned",
    ctypes.POINTER(ctypes.c_void_p): "void**",
    ctypes.POINTER(ctypes.c_int64): "const int64_t*",
    ctypes.POINTER(ctypes.c_float): "const float*",
}


@cache
def _preamble() -> str:
    """Return the prototypes of oneDNN's C functions, and what all regions share."""
    results = {name: (ctypes.c_int, types) for name, types in _native.SIGNATURES.items()} | _native.QUERIES
    lines = [
        f"{_C_TYPES[result]} {name}({', '.join(_C_TYPES[type_] for type_ in types)});"
        for name, (result, types) in results.items()
    ]
    return "\n".join(lines) + "\n" + files("kernelyard_dnnl.c_source").joinpath("support.c").read_text("utf-8")


class DnnlC(CSourceCodegen):
    """Writes regions of known sizes as C that calls oneDNN."""

    libraries = (
        SharedLibrary(_native.LIBRARY_NAME, _native.DISTRIBUTIONS, _native.LIBRARY_VARIABLE, _native.INSTALL_HINT),
    )

    def __init__(self) -> None:
        self.preamble = _preamble()

    def function(self, graph: JSONGraph, name: str, constants: dict[str, np.ndarray]) -> tuple[str, tuple[str, ...]]:
        """See `CSourceCodegen.function`. Raises: CodegenError, StatusError."""
        for spec in (*graph.inputs, *(spec for node in graph.nodes for spec in node.outputs)):
            static_shape(spec, graph.symbol)
        packing = DeferredPacking()
        lowering = Lowering(graph, {}, constants, packing, load_library().threads, native_kernels=False)
        plan = make_plan(lowering, MemoryPlanner())
        writer = RegionWriter(plan, packing.origins)
        text = writer.write(name)
        return text, tuple(_digest(buffer, constants) for buffer in writer.constants)


def _digest(buffer: Buffer, constants: dict[str, np.ndarray]) -> str:
    """Return the digest of a constant; one that the lowering made joins `constants`."""
    if buffer.key in constants:
        return buffer.key
    assert buffer.constant is not None
    made = Constant(buffer.constant)
    constants[made.digest] = made.data
    return made.digest


class DeferredPacking(PackedConstants):
    """Packs nothing now: remembers what is to be packed where the code runs.

    origins: by packed buffer, the constant as it is, and the layout asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[Buffer, tuple[Value, MemoryDescriptor]] = {}

    def make(self, value: Value, descriptor: MemoryDescriptor, key: str) -> Value:
        """See `PackedConstants.make`."""
        create_reorder(value.descriptor, descriptor, threads=1)  # what cannot be packed fails here and now
        buffer = Buffer(descriptor.nbytes, constant=np.empty(0, np.uint8), key=key)
        self.origins[buffer] = (value, descriptor)
        return Value(buffer, descriptor)
