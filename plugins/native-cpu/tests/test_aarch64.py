"""Programs for ARM CPUs, compiled on another machine, and run by an emulator of that CPU."""

from __future__ import annotations

import io
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, dtypes
from kernelyard.errors import BackendUnavailableError, LibraryWarning, TargetError, ToolchainError, TypeInferenceError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.export import get_include
from kernelyard.testing import OpCase, assert_allclose, assert_declined, evaluate, op_cases
from kernelyard.testing.op_cases import one_symbol_per_size
from kernelyard_native_cpu import machine
from kernelyard_native_cpu.runtime import NativeCpuModule

COMPILER, DISASSEMBLER = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump"
EMULATOR, SYSTEM = "qemu-aarch64", Path("/usr/aarch64-linux-gnu")
RUNNER = Path(__file__).with_name("call_library.c")
TARGET = ky.Target("cpu", arch="aarch64", mcpu="cortex-a72")
# Emulated CPUs by the bits of their vectors, and CPUs that programs are compiled for.
SVE256, SVE512 = (f"max,sve-default-vector-length={bits // 8}" for bits in (256, 512))
EMULATED = {"cortex-a72": "cortex-a72", "neoverse-v1": SVE256, "a64fx": SVE512}
N = dims.symbol("n")
AARCH64_ELF = 183  # EM_AARCH64

needs_emulator = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR) and SYSTEM.is_dir()),
    reason="apt install gcc-aarch64-linux-gnu qemu-user",
)
elsewhere = pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine is one")


def mlp(rows: dims.Dim = N) -> IRModule:
    b = FunctionBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (rows, 70))
    hidden = b.op("matmul", x, random.standard_normal((70, 33), np.float32))
    hidden = b.op("nn.gelu", b.op("add", hidden, random.standard_normal(33, np.float32)))
    return IRModule({"main": b.function(b.op("nn.softmax", hidden, axis=1))})


def convolution() -> IRModule:
    b = FunctionBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (1, 8, 13, 13))
    weight = random.standard_normal((16, 8, 3, 3), np.float32)
    result = b.op("nn.conv2d", x, weight, strides=(1, 1), padding=(1, 1, 1, 1))
    return IRModule({"main": b.function(b.op("nn.relu", result))})


class Emulated:
    """An exported library, whose functions run on the emulated machine; cpu: which one, with qemu's options."""

    def __init__(self, exe: ky.Executable, folder: Path, threads: int = 1, cpu: str = "max") -> None:
        self.exe, self.threads, self.cpu = exe, threads, cpu
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LibraryWarning)  # samples that need Python answer so
            exe.export_library(folder / "libmodel.so")
        self.program = folder / "program"
        command = [COMPILER, "-w", RUNNER, f"-I{get_include()}", f"-L{folder}", "-lmodel", f"-Wl,-rpath,{folder}"]
        subprocess.run([*command, "-o", self.program], check=True)

    def run(self, calls: Sequence[tuple[str, Sequence[np.ndarray]]]) -> list[list[np.ndarray] | int]:
        """The outputs of each call, or its status."""
        done = self.start(calls)
        assert done.returncode == 0, done.stderr.decode()
        said = io.BytesIO(done.stdout)
        return [self._outputs(name, said) for name, _ in calls]

    def start(self, calls: Sequence[tuple[str, Sequence[np.ndarray]]]) -> subprocess.CompletedProcess[bytes]:
        """Run the program to its end."""
        fed = io.BytesIO()
        for name, feeds in calls:
            fed.write(np.int64(len(name)).tobytes() + name.encode())
            for feed in feeds:
                fed.write(np.array(np.shape(feed), np.int64).tobytes() + np.ascontiguousarray(feed).tobytes())
        command = [EMULATOR, "-cpu", self.cpu, "-L", SYSTEM, self.program, str(self.threads)]
        return subprocess.run(command, input=fed.getvalue(), capture_output=True, check=False, timeout=500)

    def _outputs(self, name: str, said: io.BytesIO) -> list[np.ndarray] | int:
        status = int(np.frombuffer(said.read(8), np.int64)[0])
        return status or [self._read(said, len(o.shape), o.dtype) for o in self.exe.entries[name].outputs]

    def _read(self, said: io.BytesIO, rank: int, dtype: str) -> np.ndarray:
        shape = np.frombuffer(said.read(8 * rank), np.int64)
        element = dtypes.to_numpy(dtype)
        return np.frombuffer(said.read(int(np.prod(shape)) * element.itemsize), element).reshape(shape)


# --- compiled here ----------------------------------------------------------------------------------------------------
def test_code_is_arms_with_vectors_of_128_bits():
    exe = ky.compile(mlp(), target=TARGET, backends=[])
    (module,) = exe.modules
    assert isinstance(module, NativeCpuModule)
    assert module.machine == machine.Machine("aarch64", ())
    assert (module.machine.vector_bits, module.machine.vector_registers) == (128, 32)
    assert exe.report.target == "cpu arch=aarch64 mcpu=cortex-a72"
    assert [int.from_bytes(each[18:20], "little") for each in module._objects] == [AARCH64_ELF] * 2


@elsewhere
@pytest.mark.parametrize("arch", ["aarch64", "arm64"])
def test_without_a_cpu_the_code_is_for_the_least(arch):
    exe = ky.compile(mlp(), target=ky.Target("cpu", arch=arch), backends=[])
    assert exe.target == "cpu arch=aarch64"
    assert exe.modules[0].needs == "aarch64"


def test_a_cpu_with_more_is_named():
    exe = ky.compile(mlp(), target=ky.Target("cpu", arch="aarch64", mcpu="neoverse-n1"), backends=[])
    assert exe.modules[0].needs == "aarch64 with dotprod, fullfp16"


@pytest.mark.parametrize(("mcpu", "bits"), [("neoverse-n2", 128), ("neoverse-v1", 256), ("a64fx", 512)])
def test_sve_is_used_by_its_length(mcpu, bits):
    chosen = machine.resolve_machine(mcpu, "aarch64")
    assert chosen.vector_bits == bits
    assert (f"sve{bits}" in str(chosen)) == ("+sve" in chosen.feature_string) == (bits > 128)
    assert chosen.attributes == ((f"vscale_range({bits // 128},{bits // 128})",) if bits > 128 else ())


def test_vectors_of_another_length_are_refused_in_words(monkeypatch):
    chosen = machine.resolve_machine("neoverse-v1", "aarch64")
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(machine, "_sve_bits", lambda: 512)
    monkeypatch.setattr(machine, "host_features", lambda: frozenset((*chosen.features, "sve512")) - {"sve256"})
    with pytest.raises(BackendUnavailableError) as caught:
        machine.check_host_runs(chosen)
    assert caught.value.found == "no sve256; SVE's vectors have 512 bits here"
    assert 'arch="aarch64"' in str(caught.value.hint)


@elsewhere
def test_this_machine_refuses_it_in_words(tmp_path):
    exe = ky.compile(mlp(), target=TARGET, backends=[])
    exe.save(tmp_path / "m.kyar")
    for refused in (lambda: ky.load(tmp_path / "m.kyar"), lambda: exe(np.zeros((1, 70), np.float32))):
        with pytest.raises(BackendUnavailableError, match="another architecture") as caught:
            refused()
        assert caught.value.expected == "aarch64"
        assert caught.value.found == platform.machine()
        assert f'arch="{platform.machine()}"' in str(caught.value.hint)


@elsewhere
def test_a_library_of_this_machine_takes_no_part():
    report = ky.explain(mlp(), target=TARGET, backends=["dnnl"])
    assert {region.backend for region in report.regions} == set()
    assert_declined(report, "dnnl", "arch")


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (ky.Target("cpu", arch="riscv64"), "architecture 'riscv64'"),
        (ky.Target("cpu", arch="aarch64,x86-64"), "once for each"),
        (ky.Target("cpu", arch="aarch64", mcpu="x86-64-v3"), "x86-64-v3"),
        (ky.Target("cpu", arch="x86-64", mcpu="cortex-a72"), "cortex-a72"),
        (ky.Target("cpu", mcpu="cortex-a72"), "aarch64"),
    ],
    ids=str,
)
@elsewhere
def test_other_names_are_refused(target, match):
    with pytest.raises(TargetError, match=match):
        ky.explain(mlp(), target=target, backends=[])


@elsewhere
def test_without_a_compiler_for_it_the_export_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError, match="no aarch64 C compiler") as caught:
        ky.compile(mlp(), target=TARGET, backends=[]).export_library(tmp_path / "libm.so")
    assert "apt install" in str(caught.value.hint)


# --- run on the emulator ----------------------------------------------------------------------------------------------
@needs_emulator
@pytest.mark.parametrize(("mcpu", "threads"), [("cortex-a72", 1), *((mcpu, 3) for mcpu in EMULATED)])
@pytest.mark.parametrize(("module", "shapes"), [(mlp(), [(1, 70), (37, 70)]), (convolution(), [(1, 8, 13, 13)])])
def test_networks(tmp_path, module, shapes, mcpu, threads):
    exe = ky.compile(module, target=ky.Target("cpu", arch="aarch64", mcpu=mcpu), backends=[])
    feeds = [np.random.default_rng(1).standard_normal(shape, np.float32) for shape in shapes]
    results = Emulated(exe, tmp_path, threads, EMULATED[mcpu]).run([("main", [x]) for x in feeds])
    for x, result in zip(feeds, results, strict=True):
        assert isinstance(result, list)
        np.testing.assert_allclose(result[0], evaluate(module, [x])[0], rtol=2e-5, atol=2e-5)


@needs_emulator
@pytest.mark.parametrize("bits", [256, 512])
def test_products_of_bytes_are_exact_in_vectors_of_sve(tmp_path, monkeypatch, bits):
    monkeypatch.setitem(machine._ARM_FEATURES, "a CPU", ("i8mm", f"sve{bits}"))
    b, random = FunctionBuilder(), np.random.default_rng(2)
    x = b.op("dequantize", b.input("x", (N, 37), "uint8"), np.float32(0.25), np.uint8(120))
    weight = random.integers(-128, 128, (37, 45)).astype(np.int8)
    matrix = b.op("dequantize", weight, np.full(45, 0.5, np.float32), np.zeros(45, np.int8), axis=1)
    module = IRModule({"main": b.function(b.op("matmul", x, matrix))})
    exe = ky.compile(module, target=ky.Target("cpu", arch="aarch64", mcpu="a CPU"), backends=[])
    emulated = Emulated(exe, tmp_path, cpu=SVE256 if bits == 256 else SVE512)
    assert re.search(r"usdot\s+z\d+\.s", instructions(emulated))
    for rows in (1, 21):
        feeds = [random.integers(0, 256, (rows, 37)).astype(np.uint8)]
        np.testing.assert_array_equal(emulated.run([("main", feeds)])[0][0], evaluate(module, feeds)[0])


@needs_emulator
@pytest.mark.parametrize(("cpu", "is_right"), [(SVE256, True), (SVE512, False)])
def test_code_for_sve_is_for_its_length_alone(tmp_path, cpu, is_right):
    """Switch the check at load off: the same code then computes other numbers in longer vectors."""
    exe = ky.compile(mlp(8), target=ky.Target("cpu", arch="aarch64", mcpu="neoverse-v1"), backends=[])
    feeds = [np.random.default_rng(1).standard_normal((8, 70), np.float32)]
    if not is_right:
        refused = Emulated(exe, tmp_path, cpu=cpu).start([("main", feeds)])
        assert refused.returncode == 1
        assert b"CPU" in refused.stderr
    exe.modules[0].machine = machine.Machine("aarch64", ())  # so that nothing is checked
    emulated = Emulated(exe, tmp_path, cpu=cpu)
    assert re.search(r"fmla\s+z\d+\.s", instructions(emulated))
    (found,) = emulated.run([("main", feeds)])[0]
    assert np.allclose(found, evaluate(mlp(8), feeds)[0], rtol=2e-5, atol=2e-5) == is_right


@needs_emulator
@pytest.mark.parametrize("mcpu", ["neoverse-v1", "a64fx"])
def test_sorts_compress_lanes_of_sve(tmp_path, mcpu):
    """Whole rows of values alone (words of 32 and 64 bits), and places of a few of many, with keys of 32 and 64 bits."""
    functions = {}
    for dtype in ("float32", "int64"):
        for name, count, places in (("values", N, False), ("few", 5, True)):
            b = FunctionBuilder()
            both = b.op("topk", b.input("x", (N,), dtype), k=count, axis=0)
            functions[f"{name}_{dtype}"] = b.function(*(b.get(both, n) for n in range(1 + places)))
    exe = ky.compile(IRModule(functions), target=ky.Target("cpu", arch="aarch64", mcpu=mcpu), backends=[])
    emulated = Emulated(exe, tmp_path, cpu=EMULATED[mcpu])
    for width in "sd":
        assert re.search(rf"compact\s+z\d+\.{width}", instructions(emulated))
    random = np.random.default_rng(3)
    calls = [
        (name, [random.permutation(size).astype(name.split("_")[1])]) for name in functions for size in (5, 77, 3001)
    ]
    for (name, (x,)), found in zip(calls, emulated.run(calls), strict=True):
        count = 5 if name.startswith("few") else len(x)
        wanted = np.argsort(-x)[:count]
        np.testing.assert_array_equal(found[0], x[wanted])
        for places in found[1:]:
            np.testing.assert_array_equal(places, wanted)


def instructions(emulated: Emulated) -> str:
    """The disassembled library."""
    command = [DISASSEMBLER, "-d", emulated.program.with_name("libmodel.so")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbolic(case: OpCase) -> IRModule | None:
    try:
        return case.module(dim_of=one_symbol_per_size)
    except TypeInferenceError:
        return None


@needs_emulator
@pytest.mark.slow
@pytest.mark.aarch64
@pytest.mark.filterwarnings("ignore::kernelyard.errors.PerformanceWarning")
@pytest.mark.parametrize(("make", "mcpu"), [(symbolic, "cortex-a72"), *((OpCase.module, mcpu) for mcpu in EMULATED)])
def test_every_operator(tmp_path, make, mcpu):
    """All samples as the entry functions of one library; the few that need Python say so."""
    modules = {f"case_{number}": (case, make(case)) for number, case in enumerate(op_cases())}
    chosen = {name: (case, module) for name, (case, module) in modules.items() if module and len(module.functions) == 1}
    whole = IRModule({name: module["main"] for name, (_, module) in chosen.items()})
    target = ky.Target("cpu", arch="aarch64", mcpu=mcpu)
    emulated = Emulated(ky.compile(whole, target=target, backends=[]), tmp_path, cpu=EMULATED[mcpu])
    results = emulated.run([(name, case.inputs()) for name, (case, _) in chosen.items()])
    ran = 0
    for (case, _), outputs in zip(chosen.values(), results, strict=True):
        if isinstance(outputs, int):
            assert outputs == 4, case.id  # KY_NEEDS_PYTHON
            continue
        ran += 1
        for found, wanted in zip(outputs, case.expected(), strict=True):
            assert_allclose(found, np.asarray(wanted))
    assert ran > 0.8 * len(op_cases())
