"""A small runtime half as a vendor would write it: kernels in NumPy, called natively through a callback."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BoundCall, BoundTensor, NativeCall, array_at
from kernelyard.runtime.modules.json_runtime import JSONRuntime

KERNELS = {
    "add": lambda attrs, a, b: a + b,
    "scale": lambda attrs, a: a * np.asarray(attrs["factor"], a.dtype),
    "matmul": lambda attrs, a, b: a @ b,
    "fail": None,
}
PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


class AcmeRuntime(JSONRuntime):
    """Every kernel is one native call whose function is a Python callback; arguments can be moved."""

    kind = "acme"
    binds = 0

    def build(self, graph, args, values, context):
        AcmeRuntime.binds += 1
        keep = []
        tensors = {}
        for number, node in enumerate(graph.nodes):
            for output, spec in enumerate(node.outputs):
                tensors[number, output] = self._place(node, spec, values, keep)
        places = {(n, 0): node.index for n, node in enumerate(graph.nodes) if node.kind == "input"}
        places |= {entry: len(graph.inputs) + i for i, entry in enumerate(graph.outputs)}
        movable = dict(enumerate(args))

        def tensor(entry):
            return movable[places[entry]] if entry in places else tensors[entry]

        steps = []
        for number, node in enumerate(graph.nodes):
            if node.kind != "kernel":
                continue

            def run(a, b, n, d, node=node, number=number):
                if KERNELS[node.op] is None:
                    return 7
                operands = [array_at(*tensor(entry)) for _, entry in node.inputs]
                array_at(*tensor((number, 0)))[...] = KERNELS[node.op](node.attrs, *operands)
                return 0

            callback = PROTOTYPE(run)
            keep.append(callback)
            steps.append(NativeCall(ctypes.cast(callback, ctypes.c_void_p).value))
        return BoundCall(steps, keep, {i: partial(_move, movable, i) for i in movable})

    def _place(self, node, spec, values, keep):
        shape = spec.evaluate(values)
        if node.kind == "constant":
            array = memory.aligned_copy(self.constants()[node.digest])
        else:
            array = memory.aligned_empty(shape, spec.dtype)
        keep.append(array)
        return BoundTensor(memory.address_of(array), shape, spec.dtype)


def _move(tensors, index, address):
    tensors[index] = tensors[index]._replace(address=address)


def load(data, constants):
    return AcmeRuntime.load_from_bytes(data, constants)
