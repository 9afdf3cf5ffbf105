"""The runtime half: one OpenVINO model for each graph and set of sizes. It imports nothing of the compiler."""

import io
import json
from functools import cache, partial
from typing import Any

from kernelyard import dtypes
from kernelyard.dims import evaluate
from kernelyard.runtime.api import LRU, BoundCall, JSONRuntime, Part, array_at, read_dim

SIZES = ("begin", "end", "pads", "sections", "shape", "sizes")  # attributes that may be symbolic
NOT_RUN = ("unknown", "undef")  # how OpenVINO's kernels of what it fuses into others, or leaves in place, begin


@cache
def core():
    from openvino import Core

    return Core()


def attributes(node, values):
    """Return a kernel's attributes with its sizes as numbers; symbolic ones are text in the graph."""

    def number(size, where):
        return size if isinstance(size, int) else evaluate(read_dim(size, where), values)

    return {name: [number(n, name) for n in value] if name in SIZES else value for name, value in node.attrs.items()}


def model_of(graph, values, constants):
    import openvino
    from openvino import opset15 as ops

    from kernelyard_openvino.operators import KERNELS

    parameters = [ops.parameter(spec.evaluate(values), dtypes.to_numpy(spec.dtype)) for spec in graph.inputs]
    results = {}
    for number, node in enumerate(graph.nodes):
        if node.kind == "input":
            results[number, 0] = parameters[node.index]
        elif node.kind == "constant":
            results[number, 0] = ops.constant(constants[node.digest])
        else:
            operands = [results[entry] for _, entry in node.inputs]
            outputs = KERNELS[node.op](*operands, **attributes(node, values)).outputs()
            results |= {(number, i): outputs[i] for i in range(len(node.outputs))}
    model: Any = openvino.Model  # there are two of this name, of which its types name either
    return model([results[entry] for entry in graph.outputs], parameters)


def list_parts(request):
    """Return what OpenVINO runs in each call, with the seconds of each part in the last one.

    Its status does not tell: what takes less than a microsecond is NOT_RUN, so that calls would differ in their parts.
    """
    ran = [each for each in request.get_profiling_info() if not each.exec_type.startswith(NOT_RUN)]
    return [(Part(each.node_type, each.exec_type), each.real_time.total_seconds()) for each in ran]


class OpenVINORuntime(JSONRuntime):
    kind = "openvino"

    def __init__(self, graphs, constants, keeps_blobs=False):
        super().__init__(graphs, constants)
        self._compiled = LRU(16)
        self._keeps_blobs = keeps_blobs
        self._blobs = {}

    def compile_graph(self, graph, values, threads, counts=False):
        """Return the compiled model, which bindings of the same sizes share."""
        config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        config["PERF_COUNT"] = counts
        key = json.dumps([graph.symbol, dict(values), threads, counts])

        def make():
            if key in self._blobs:
                return core().import_model(io.BytesIO(self._blobs[key]), "CPU", config)
            return core().compile_model(model_of(graph, values, self.constants()), "CPU", config)

        return self._compiled.get_or_make(key, make)

    def blobs(self):
        """Return the compiled models of all sizes that were prepared or run, if the user wants them kept."""
        keys = [key for key in self._compiled if self._keeps_blobs and not json.loads(key)[-1]]  # none that counts
        made = {key: self._compiled.get_or_make(key, dict) for key in keys}
        return {**self._blobs, **{key: model.export_model().getvalue() for key, model in made.items()}}

    def compatibility(self):
        import openvino

        device = core().get_property("CPU", "FULL_DEVICE_NAME")
        abilities = core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return f"openvino {openvino.get_version()}, {device}, {' '.join(abilities)}"

    def restore(self, blobs):
        self._blobs, self._keeps_blobs = {name: bytes(blob) for name, blob in blobs.items()}, True

    def prepare(self, symbol, values, threads):
        graph = self.graph(symbol)
        if values or all(spec.is_static for spec in graph.signature().tensors):  # else the sizes come with the inputs
            self.compile_graph(graph, values, threads)

    def build(self, graph, args, values, context):
        from openvino import Tensor

        request = self.compile_graph(graph, values, context.threads, context.is_profiled).create_infer_request()

        def bind(set_tensor, place, arg, address):
            set_tensor(place, Tensor(array_at(address, arg.shape, arg.dtype), shared_memory=True))

        places = [(request.set_input_tensor, i) for i in range(len(graph.inputs))]
        places += [(request.set_output_tensor, i) for i in range(len(graph.outputs))]
        rebind = {n: partial(bind, *place, arg) for n, (place, arg) in enumerate(zip(places, args, strict=True))}
        for number, arg in enumerate(args):
            rebind[number](arg.address)
        counters = partial(list_parts, request) if context.is_profiled else None
        return BoundCall([partial(request.infer, share_outputs=True)], rebind=rebind, counters=counters)


load = OpenVINORuntime.load_from_bytes
