"""The runtime half: runs the graphs that codegen wrote. It imports nothing of the compiler."""

from functools import partial

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.api import BoundCall, JSONRuntime


def linear(output, activation, data, weight, bias=0.0):
    total = data @ weight + bias
    output[...] = np.maximum(total, 0) if activation == "relu" else total


KERNELS = {"linear": linear}


class AcmeRuntime(JSONRuntime):
    kind = "acme"

    def build(self, graph, args, values, context):
        """Return the steps that run a graph over fixed memory; the functions of a C library would be `NativeCall`
        steps.
        """
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
                steps.append(partial(KERNELS[node.op], output, **node.attrs, **operands))
        return BoundCall(steps)


load = AcmeRuntime.load_from_bytes
