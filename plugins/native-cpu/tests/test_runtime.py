"""Object code: the same bytes every time, loaded in another process, refused where it cannot run, never trusted."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.cli.main import main as command_line
from kernelyard.errors import ArtifactError, BackendUnavailableError, ExecutionError, TargetError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.abi.spec import read_json, write_json
from kernelyard.runtime.installed.processor import cpu_facts
from kernelyard.runtime.jit import linking
from kernelyard.target import Target
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import unary
from kernelyard_native_cpu import _native, machine, runtime
from kernelyard_native_cpu.generator import NativeCpuGenerator


@pytest.fixture
def function():
    b = PrimFuncBuilder()
    n = dims.symbol("n")
    x = b.input("x", TensorType((n, 10), "float32"))
    total = b.reduce("sum", (n,), (10,), lambda s, r: x[s[0], r[0]])
    return b.finish((b.compute((n, 10), lambda i, j: unary("exp", x[i, j]) / total[i]),))


def test_equal_functions_give_equal_bytes(function, compile_function):
    saved = compile_function(function).save_to_bytes()
    assert compile_function(function).save_to_bytes() == saved
    assert runtime.load(saved, {}).save_to_bytes() == saved


def test_the_code_runs_in_a_process_that_imports_no_compiler(function, compile_function, tmp_path):
    module = compile_function(function)
    x = np.random.default_rng(0).random((3, 10), np.float32)
    (tmp_path / "code").write_bytes(module.save_to_bytes())
    np.save(tmp_path / "x.npy", x)
    program = f"""
import sys, numpy as np
from kernelyard_native_cpu.runtime import load
folder = {str(tmp_path)!r}
module = load(open(folder + "/code", "rb").read(), {{}})
x = np.load(folder + "/x.npy")
y = np.empty_like(x)
module.get_function("kernel")(x, y)
np.save(folder + "/y.npy", y)
names = ("kernelyard.tir", "kernelyard.ir", "kernelyard.plugins", "kernelyard_native_cpu.codegen.kernel",
         "kernelyard_native_cpu.schedule", "pluggy")
assert not [name for name in names if name in sys.modules], [name for name in names if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    wanted = np.exp(x) / x.sum(1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sine_and_cosine_of_an_angle_are_linked_without_llvm(compile_function, call_kernel, monkeypatch, dtype):
    def link_by_llvm(*_):
        pytest.fail("the object has a symbol that is not among the library's functions")

    monkeypatch.setattr(linking, "_link_by_llvm", link_by_llvm)
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((7,), dtype))
    module = compile_function(b.finish((b.compute((7,), lambda i: unary("cos", x[i]) + unary("sin", x[i])),)))
    values = np.linspace(-1e5, 1e5, 7, dtype=dtype)
    (found,) = call_kernel(module, "kernel", [values])
    np.testing.assert_allclose(found, np.cos(values) + np.sin(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["floor", "exp", "memcpy", "GOMP_parallel"])
def test_a_kernel_may_be_called_as_a_c_function_is(name, function):
    module = NativeCpuGenerator().generate({name: function}, Target("cpu"), {})
    x, y = np.ones((2, 10), np.float32), np.empty((2, 10), np.float32)
    module.get_function(name)(x, y)
    np.testing.assert_allclose(y, np.full((2, 10), np.e / 10), rtol=1e-5)


def test_any_array_can_be_called_with(function, compile_function):
    call = compile_function(function).get_function("kernel")
    x = np.asfortranarray(np.random.default_rng(0).random((5, 20), np.float32))[:, ::2]
    y = np.empty((5, 10), np.float32)
    call(x, y)
    np.testing.assert_allclose(y, np.exp(x) / x.sum(1, keepdims=True), rtol=1e-5)


def test_unknown_kernel(function, compile_function):
    with pytest.raises(ExecutionError, match="no function 'other'"):
        compile_function(function).get_function("other")


def test_a_cpu_without_the_features_is_refused(function, compile_function, monkeypatch):
    saved = compile_function(function, mcpu="x86-64-v3").save_to_bytes()
    monkeypatch.setattr(runtime, "check_host_runs", machine.check_host_runs)
    monkeypatch.setattr(machine, "host_features", lambda: frozenset(machine.features_of_level("x86-64-v2")))
    with pytest.raises(BackendUnavailableError, match="lacks") as caught:
        runtime.load(saved, {})
    assert "avx2" in str(caught.value)
    assert "mcpu" in str(caught.value)


def test_another_architecture_is_refused(function, compile_function, monkeypatch):
    saved = compile_function(function).save_to_bytes()
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    with pytest.raises(BackendUnavailableError, match="another architecture"):
        runtime.load(saved, {})


def test_unknown_cpu():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("tanh", b.input("x", (3,))))})
    with pytest.raises(TargetError, match="no CPU called 'pentium'"):
        ky.compile(module, target=Target("cpu", mcpu="pentium"), backends=[])


def test_a_machine_is_named_by_its_level():
    assert str(machine.resolve_machine("x86-64-v3")) == "x86-64-v3"
    extended = machine.Machine("x86_64", (*machine.features_of_level("x86-64-v3"), "avxvnni"))
    assert str(extended) == "x86-64-v3 with avxvnni"
    assert str(machine.Machine("aarch64", ())) == "aarch64"


# Loads an artifact on a CPU that has only the features of the x86-64 level given, and prints what comes of it.
LOADER = """
import sys
from kernelyard.errors import KernelyardError
from kernelyard.runtime import load
from kernelyard_native_cpu import _native, machine
if sys.argv[2]:
    machine.host_features = lambda: frozenset(machine.features_of_level(sys.argv[2]))
_native.compile_object = None  # nothing is compiled in this process
try:
    exe = load(sys.argv[1])
    print(exe([0.0, 1.0, 2.0]).numpy().tolist() if len(sys.argv) > 3 else "loaded")
except KernelyardError as error:
    print(error)
"""


def test_an_artifact_for_older_cpus_is_loaded_by_another_process_or_refused(tmp_path):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("floor", b.op("add", b.input("x", (3,)), 0.75)))})
    path = str(tmp_path / "shipped.kyar")
    ky.compile(module, target=Target("cpu", mcpu="x86-64-v3"), backends=[], strict=True).save(path)

    def output(*arguments: str) -> str:
        command = [sys.executable, "-c", LOADER, path, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    refused = output("x86-64-v2")
    assert refused.startswith("[KY302] these kernels were compiled for a CPU with features that this one lacks")
    assert "found: no avx, avx2, bmi, bmi2, f16c, fma, lzcnt, movbe" in refused
    assert "expected: x86-64-v3" in refused
    assert output("x86-64-v3") == output("x86-64-v4") == "loaded\n"
    if set(machine.features_of_level("x86-64-v3")) <= machine.host_features():
        assert output("", "run") == "[0.0, 1.0, 2.0]\n"
    shown = CliRunner().invoke(command_line, ["inspect", path]).output
    assert ", needs x86-64-v3\n" in shown


@pytest.mark.parametrize("level", machine.LEVELS)
def test_levels(level):
    features = machine.resolve_machine(level).features
    assert ("avx2" in features) == (level in ("x86-64-v3", "x86-64-v4"))
    assert machine.resolve_machine(level).vector_bits == {"x86-64-v3": 256, "x86-64-v4": 512}.get(level, 128)


def test_host_has_only_features_that_matter():
    assert set(machine.host_machine().features) <= machine.host_features()
    assert "clzero" not in machine.host_machine().features


def test_linux_and_llvm_say_the_same_of_this_cpu():
    told = cpu_facts().get("flags", "").split()
    if not told:
        pytest.skip("not Linux on x86-64")
    llvm = pytest.importorskip("llvmlite.binding").get_host_cpu_features()
    known = {*machine.features_of_level(machine.LEVELS[-1]), *machine._HOST_EXTRAS}
    assert machine.host_features() == {name for name in known if llvm.get(name)}


def header_of(saved: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(saved[8:16], "little")
    return read_json(saved[16 : 16 + length], "test"), saved[16 + length :]


def with_header(header: dict, code: bytes) -> bytes:
    text = write_json(header)
    return b"KYNATIVE" + len(text).to_bytes(8, "little") + text + code


def test_malformed_code_is_an_error(function, compile_function):
    saved = compile_function(function).save_to_bytes()
    header, code = header_of(saved)
    bad = [
        b"",
        b"KYNATIVE",
        saved[:40],
        saved[:-1],
        saved + b"\0",
        b"X" + saved[1:],
        with_header({**header, "schema": 99}, code),
        with_header({**header, "kernels": 3}, code),
        with_header({**header, "objects": [-1]}, code),
        with_header({**header, "kernels": [{**header["kernels"][0], "numbers": ["n +"]}]}, code),
        with_header({**header, "kernels": [{**header["kernels"][0], "locals": [{"bytes": 1, "per_thread": 2}]}]}, code),
    ]
    for data in bad:
        with pytest.raises(ArtifactError):
            runtime.load(data, {})


def test_inspect_names_kernels_and_machine(function, compile_function):
    text = compile_function(function, mcpu="x86-64-v3").inspect()
    assert "kernel(x: (n, 10) float32) -> out0: (n, 10) float32" in text
    assert "needs x86-64-v3" in text


def test_without_a_thread_pool_kernels_run_alone(function, compile_function, monkeypatch, call_kernel):
    monkeypatch.setattr(_native, "openmp", lambda: None)
    x = np.ones((100000, 10), np.float32)
    found = call_kernel(compile_function(function), "kernel", [x], {"n": 100000}, threads=4)[0]
    np.testing.assert_allclose(found, np.exp(x) / 10, rtol=1e-6)


def test_many_threads_may_bind_first(function, compile_function, call_kernel):
    module = compile_function(function)
    x = np.random.default_rng(0).random((7, 10), np.float32)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: call_kernel(module, "kernel", [x], {"n": 7})[0], range(16)))
    for one in found:
        np.testing.assert_allclose(one, np.exp(x) / x.sum(1, keepdims=True), rtol=1e-5)
