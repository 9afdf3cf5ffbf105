"""The runtime half: runs the graphs that codegen wrote with OpenBLAS. It imports nothing of the compiler."""

from ctypes import CDLL, c_double, c_float, c_void_p
from functools import cache, partial
from math import prod
from threading import Lock

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.api import BoundCall, JSONRuntime, SharedLibrary

LIBRARY = SharedLibrary(
    "libscipy_openblas.so", distributions=("scipy-openblas32",), hint="pip install scipy-openblas32"
)
ROW_MAJOR, NO_TRANSPOSE = 101, 111
SCALAR = {"float32": ("s", c_float), "float64": ("d", c_double)}
LOCK = Lock()  # OpenBLAS has one number of threads for the whole process


@cache
def library():
    return CDLL(LIBRARY.locate())


def product(data, weight, output):
    """Return a function that adds data @ weight to the output; the arguments of the C function are made here, once."""
    letter, scalar = SCALAR[str(output.dtype)]
    inner, columns = weight.shape[-2:]
    batch = prod(weight.shape[:-2])
    rows = prod(output.shape[:-1]) if batch == 1 else output.shape[-2]
    a, b, c = (c_void_p(array.ctypes.data) for array in (data, weight, output))
    sizes = (ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, rows, columns, inner, scalar(1))
    if not data.size or not weight.size:
        return lambda: None
    if batch == 1:
        function = getattr(library(), f"scipy_cblas_{letter}gemm")
        return partial(function, *sizes, a, inner, b, columns, scalar(1), c, columns)
    function = getattr(library(), f"scipy_cblas_{letter}gemm_batch_strided")
    stride = rows * inner if data.size == batch * rows * inner else 0  # one left matrix may serve every batch
    weights = (b, columns, inner * columns)
    return partial(function, *sizes, a, inner, stride, *weights, scalar(1), c, columns, rows * columns, batch)


def gemm(threads, output, data, weight, bias=0.0, *, relu):
    multiply = product(data, weight, output)

    def step():
        output[...] = bias
        with LOCK:
            library().scipy_openblas_set_num_threads(threads)
            multiply()
        if relu:
            np.maximum(output, 0, out=output)

    return step


KERNELS = {"gemm": gemm}


class OpenBLASRuntime(JSONRuntime):
    kind = "openblas"

    def build(self, graph, args, values, context):
        """Return the steps that run a graph over fixed memory. C functions could be `NativeCall`s."""
        arrays = {entry: args[len(graph.inputs) + i].as_array() for i, entry in enumerate(graph.outputs)}
        steps = []
        for number, node in enumerate(graph.nodes):
            if node.kind == "input":
                arrays[number, 0] = args[node.index].as_array()
            elif node.kind == "constant":
                arrays[number, 0] = self.constants()[node.digest]
            else:
                (spec,) = node.outputs
                output = arrays.setdefault((number, 0), np.empty(spec.evaluate(values), dtypes.to_numpy(spec.dtype)))
                operands = {role: arrays[entry] for role, entry in node.inputs}
                steps.append(KERNELS[node.op](context.threads, output, **operands, **node.attrs))
        return BoundCall(steps)


load = OpenBLASRuntime.load_from_bytes
