"""Kernels in C behind `kernelyard_plugin.h`: steps of any arguments without Python between them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, ExecutionError, ToolchainError
from kernelyard.plugins.api import Backend, FunctionBuilder, FusionPattern, IRModule, JSONSerializer, KernelNode, is_op
from kernelyard.runtime.api import (
    BindContext,
    BoundTensor,
    CKernel,
    CKernelRuntime,
    DeviceDriver,
    JSONGraph,
    JSONNode,
    TensorSpec,
    address_of,
    aligned_bytes,
    get_include,
    thread_pool,
)
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.jit.c_compiler import find_compiler
from kernelyard.testing import assert_offloaded

SOURCE = Path(__file__).with_name("c_kernels.c")
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")


def compiler(language="c"):
    try:
        return find_compiler(language).command
    except ToolchainError as error:
        pytest.skip(f"no {language} compiler on this machine: {error.message}")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "libkernels.so"
    options = ["-std=c99", *WARNINGS, "-O2", "-shared", "-fPIC", f"-I{get_include()}"]
    subprocess.run([*compiler(), *options, str(SOURCE), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


class ScaleState(ctypes.Structure):
    _fields_ = (
        ("slope", ctypes.c_float),
        ("parts", ctypes.c_int32),
        ("grain", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
    )


class Runtime(CKernelRuntime):
    kind = "cee"
    library: ctypes.CDLL

    def kernel(self, node, operands, outputs, context):
        function = self.library[node.op]
        if node.op == "scale":
            return CKernel(typed(function), ScaleState(node.attrs["slope"], 0, node.attrs["grain"]))
        return CKernel(function, workspace_nbytes=4 * outputs[0].shape[-1] if node.op == "fold" else 0)


def node_of(operator):
    x, *others = operator.args
    if operator.op_name == "nn.leaky_relu":  # stands for any operator with numbers
        return KernelNode("scale", [("x", x)], {"slope": operator.attrs["alpha"], "grain": 4})
    kernel = {"add": "add", "nn.relu": "refuse", "nn.silu": "fold"}[operator.op_name]
    return KernelNode(kernel, [("x", x), *(("y", other) for other in others)])


class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return node_of(composite.bindings[0].value)


class CeeBackend(Backend):
    name = "cee"
    merge_composites = True

    def patterns(self, target):
        ops = ("nn.leaky_relu", "nn.silu", "add", "nn.relu")
        return [FusionPattern(f"cee.{op}", is_op(op)(varargs=True)) for op in ops]

    def codegen(self, regions, options):
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)


@pytest.fixture
def offload(library, install):
    Runtime.library = library
    install(CeeBackend())

    def compiled(build, *shape, dtype="float32"):
        b = FunctionBuilder()
        function = b.function(build(b, b.input("x", shape, dtype)))
        exe = ky.compile(IRModule({"main": function}), backends=["cee"])
        assert exe.report.summary.startswith("cee ")
        assert len(exe.modules) == 1
        return exe

    return compiled


def layers(b, x, count=3):
    for number in range(count):
        x = b.op("add", b.op("nn.leaky_relu", x, alpha=0.5), np.full(4, number + 1, np.float32))
    return x


def reference(x, count=3):
    for number in range(count):
        x = x * np.float32(0.5) + np.float32(number + 1)
    return x


def typed(function):
    """Return a function that declares the state that it reads."""
    function.argtypes = [ctypes.POINTER(ScaleState), ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
    return function


class OtherState(ctypes.Structure):
    _fields_ = (("slope", ctypes.c_float),)


WRONG = {
    "no kernel": (lambda function: None, "kernel() returned NoneType for refuse, not a CKernel"),
    "no function": (lambda function: CKernel(None), "the function for refuse is None"),
    "a name": (lambda function: CKernel("refuse"), "the function for refuse is 'refuse'"),
    "a text as state": (lambda function: CKernel(function, "slope"), "the state for refuse is 'slope'"),
    "no state": (lambda function: CKernel(typed(function)), "the state for refuse is missing"),
    "another state": (lambda function: CKernel(typed(function), OtherState()), "the state for refuse is of OtherState"),
    "less than no memory": (lambda function: CKernel(function, None, -4), "the workspace for refuse is -4"),
}


@pytest.mark.parametrize("row", WRONG)
def test_what_would_crash_is_not_called(offload, monkeypatch, row):
    kernel, found = WRONG[row]
    monkeypatch.setattr(Runtime, "kernel", lambda self, node, *args: kernel(self.library[node.op]))
    exe = offload(lambda b, x: b.op("nn.relu", x), 2, 4)
    with pytest.raises(ExecutionError, match="cannot prepare cee_0") as caught:
        exe(np.ones((2, 4), np.float32))
    assert found in str(caught.value.found)


FLOATS = ("float32", "float32")
REFUSED = {
    "another dtype": (FLOATS, "float64", "float64, float64"),
    "another result": (("float32", "int32"), "float32", "float32, float32"),
    "another number of operands": (("float32", *FLOATS), "float32", "float32, float32"),
}


@pytest.mark.parametrize("row", REFUSED)
def test_arguments_of_other_dtypes_than_a_kernel_declares_are_refused(offload, monkeypatch, row):
    declared, given, found = REFUSED[row]
    monkeypatch.setattr(Runtime, "kernel", lambda self, node, *args: CKernel(self.library[node.op], dtypes=declared))
    exe = offload(lambda b, x: b.op("nn.silu", x), 3, 5, dtype=given)
    with pytest.raises(ExecutionError, match="the C function for fold does not take these") as caught:
        exe(np.ones((3, 5), given))
    assert (caught.value.found, caught.value.expected) == (found, ", ".join(declared))
    assert "cee_0, run by cee" in str(caught.value.where)
    assert "check should decline" in str(caught.value.hint)


def test_declared_dtypes_are_taken(offload, monkeypatch):
    of_node = Runtime.kernel
    monkeypatch.setattr(Runtime, "kernel", lambda self, *args: of_node(self, *args)._replace(dtypes=FLOATS))
    exe = offload(lambda b, x: b.op("nn.silu", x), 3, 5)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(exe(x).numpy(), x + x[:, ::-1])


@pytest.mark.parametrize("shape", [(2, 4), (symbol("n"), 4)], ids=str)
def test_a_region_runs_without_python_steps(offload, shape):
    exe = offload(layers, *shape)
    assert_offloaded(exe, "cee", "cee.add", count=3)
    for rows in (2, 2, 5) if shape[0] != 2 else (2, 2):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(exe(x).numpy(), reference(x))
    x = BoundTensor(0, (2, 4), "float32")
    runtime = exe.modules[0]
    bound = runtime.bind(runtime.symbols()[0], [x, x], {"n": 2} if shape[0] != 2 else {}, BindContext(1, lambda n: 0))
    assert not any(callable(step) for step in bound.steps)
    assert set(bound.slots) == set(bound.rebind) == {0, 1}


def test_large_tensors_are_not_copied_and_many_threads_agree(offload):
    exe = offload(lambda b, x: layers(b, x, 2), 40_000, 4)
    for threads in (1, 2, 3):
        exe.threads = threads
        for seed in range(3):  # other memory each time
            x = np.random.default_rng(seed).random((40_000, 4), np.float32)
            np.testing.assert_array_equal(exe(x).numpy(), reference(x, 2))


def test_workspace(offload):
    exe = offload(lambda b, x: b.op("add", b.op("nn.silu", x), np.float32([[1]])), 3, 5)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(exe(x).numpy(), x + x[:, ::-1] + 1)


def test_a_status_is_an_error_that_names_the_plugin(offload):
    exe = offload(lambda b, x: b.op("nn.relu", x), 3, 5)
    with pytest.raises(ExecutionError, match="a native step failed") as caught:
        exe(np.zeros((3, 5), np.float32))
    assert caught.value.found == "status 42"
    assert "cee" in str(caught.value.where)


SPEC = TensorSpec((2, 4), "float32", "x")


def scale_module(library, *outputs):
    """A module with one graph: its input times 3."""
    Runtime.library = library
    kernel = JSONNode("kernel", (SPEC,), "scale", (("x", (0, 0)),), {"slope": 3.0, "grain": 4})
    graph = JSONGraph("f", (SPEC,), (JSONNode("input", (SPEC,), index=0), kernel), outputs or ((1, 0),))
    return Runtime([graph], {})


def state_of(bound):
    return next(each.state for each in bound.keep if isinstance(each, CKernel) and each.state)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_parallel_loop_uses_the_process_pool(library, threads):
    x, y = (np.arange(8, dtype=np.float32).reshape(2, 4) for _ in range(2))
    args = [BoundTensor(address_of(array), array.shape, "float32") for array in (x, y)]
    bound = scale_module(library).bind("f", args, {}, BindContext(threads, lambda n: 0))
    CallTable(bound.steps).run()
    np.testing.assert_array_equal(y, x * 3)
    assert state_of(bound).parts == (min(threads, 2) if thread_pool() else 1)  # of at least four numbers each


class HostDriver(DeviceDriver):
    """A device whose memory the host can read, with a stream."""

    kind, dlpack_type, dlpack_stream = "host", 12, 7

    def __init__(self):
        self.held = {}

    def allocate(self, nbytes):
        memory = aligned_bytes(nbytes)
        self.held[address_of(memory)] = memory
        return address_of(memory)

    def free(self, address, is_shared=False):
        del self.held[address]

    def upload(self, address, array):
        ctypes.memmove(address, address_of(array), array.nbytes)

    def download(self, address, array):
        ctypes.memmove(address_of(array), address, array.nbytes)

    def copy(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)

    def synchronize(self):
        pass


def test_a_device_gives_its_stream_and_holds_constants(library):
    Runtime.library = library
    weights = np.float32([1, 2, 3, 4])
    spec = TensorSpec((4,), "float32", "w")
    nodes = (
        JSONNode("input", (SPEC,), index=0),
        JSONNode("constant", (spec,), digest="w"),
        JSONNode("kernel", (SPEC,), "add", (("x", (0, 0)), ("y", (1, 0)))),
        JSONNode("kernel", (SPEC,), "scale", (("x", (2, 0)),), {"slope": 3.0, "grain": 4}),
    )
    driver = HostDriver()
    x, y = np.ones((2, 4), np.float32), np.empty((2, 4), np.float32)
    args = [BoundTensor(address_of(array), array.shape, "float32") for array in (x, y)]
    module = Runtime([JSONGraph("f", (SPEC,), nodes, ((3, 0),))], {"w": weights})
    bound = module.bind("f", args, {}, BindContext(1, lambda n: 0, driver, num_outputs=1))
    CallTable(bound.steps).run()
    np.testing.assert_array_equal(y, (x + weights) * 3)
    assert len(driver.held) == 2  # the constant, and what lies between the kernels
    assert state_of(bound).stream == 7
    del bound
    assert not driver.held


@pytest.mark.parametrize("outputs", [((0, 0),), ((1, 0), (1, 0))], ids=["an input", "twice"])
def test_a_graph_whose_results_are_not_kernels_is_refused(library, outputs):
    args = [BoundTensor(0, (2, 4), "float32")] * (1 + len(outputs))
    with pytest.raises(ArtifactCorruptedError, match="f"):
        scale_module(library, *outputs).bind("f", args, {}, BindContext(1, lambda n: 0))


def test_the_header_is_cpp_and_goes_with_that_of_exported_libraries(tmp_path):
    source = tmp_path / "use.cpp"
    source.write_text(
        "#include <kernelyard_plugin.h>\n#include <kernelyard.h>\nky_status ok = KY_OK;\n"
        'extern "C" int32_t f(void*, DLTensor* const*, int32_t, const ky_context*) { return 0; }\nky_kernel kernel = f;\n'
    )
    command = [*compiler("c++"), "-std=c++17", *WARNINGS, f"-I{get_include()}"]
    subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "use.o")], check=True)
