"""The runtime half: artifacts, what is called on a GPU, and what is said where something is missing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, BackendUnavailableError, DeviceError, KernelyardError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.device.driver import DeviceWorkspace
from kernelyard.testing.offload_bench import feeds_of, module_of
from kernelyard_cuda import libraries as cuda_libraries
from kernelyard_cuda import nvrtc
from kernelyard_cuda.driver_api import CudaDriver, Image
from kernelyard_cutlass import backend, code, toolchain, tune
from kernelyard_cutlass.backend import CutlassBackend
from kernelyard_cutlass.code import Code
from kernelyard_cutlass.kernels import entry_of
from kernelyard_cutlass.launches import SIGNATURES
from kernelyard_cutlass.runtime import CutlassModule, load

from .conftest import compiled, runtime_of

F16 = "float16"
N = symbol("n")


def build(b, x, w, bias):
    return b.op("nn.relu", b.op("add", b.op("matmul", x, w), bias))


MODULE = module_of(build, ((N, 64), F16), ((64, 128), F16), ((128,), F16))


# --- artifacts --------------------------------------------------------------------------------------------------------
def test_an_artifact_is_read_as_it_was_written(programs, tmp_path):
    exe = compiled(MODULE)
    exe.save(tmp_path / "model.kyar")
    again = ky.load(tmp_path / "model.kyar")
    assert runtime_of(again).graphs == runtime_of(exe).graphs
    assert runtime_of(again).codes == runtime_of(exe).codes
    assert runtime_of(again).needs == "the CUDA emulator: nothing was compiled"
    programs.right(again, MODULE, n=7)


def with_code(module):
    """The module as if it had been compiled for two architectures."""
    codes = [
        Code(kernel, 128, 65536, {"sm_80": b"80" + bytes([n]), "sm_90": b"90"}) for n, kernel in enumerate(module.codes)
    ]
    return CutlassModule(list(module.graphs.values()), module.constants(), codes)


def test_cubins_are_saved_with_it():
    module = with_code(runtime_of(compiled(MODULE)))
    again = load(module.save_to_bytes(), module.constants())
    assert again.codes == module.codes
    assert again.save_to_bytes() == module.save_to_bytes()
    assert again.needs == "a GPU of sm_80, sm_90, or the emulator"


def test_damaged_artifacts_are_refused():
    module = with_code(runtime_of(compiled(MODULE)))
    data = module.save_to_bytes()
    for place in range(0, len(data), 7):
        for damaged in (data[:place], data[:place] + b"\xff" + data[place + 1 :]):
            try:
                read = load(damaged, module.constants())
            except KernelyardError:
                continue
            assert len(read.symbols()) == 1, "what was damaged is no part of the structure"
    with pytest.raises(ArtifactCorruptedError):
        load(data + b"more", module.constants())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"template":"gemm"', b'"template":"menu"'),
        (b'"output":"float16"', b'"output":"float1;"'),
        (b'"activation":"relu"', b'"activation":"rel;"'),
        (b'"stages":', b'"stages":-'),
        (b'"op":"gemm"', b'"op":"gemv"'),
        (b'{"gemm":[0', b'{"gemm":[9'),
    ],
)
def test_text_of_an_artifact_is_never_believed(before, after):
    module = runtime_of(compiled(MODULE))
    plain = module.save_to_bytes()
    assert before in plain
    damaged = plain.replace(before, after)
    length = int.from_bytes(plain[8:16], "little") + (len(damaged) - len(plain) if b"stages" in before else 0)
    damaged = damaged[:8] + length.to_bytes(8, "little") + damaged[16:]
    with pytest.raises(ArtifactCorruptedError):
        load(damaged, module.constants())


def test_the_runtime_half_imports_nothing_of_the_compiler(tmp_path):
    compiled(MODULE).save(tmp_path / "model.kyar")
    text = f"""
import sys, numpy as np, kernelyard as ky
vm = ky.VirtualMachine(ky.load({str(tmp_path / "model.kyar")!r}), ky.cuda("emulator"))
vm["main"](np.ones((2, 64), np.float16), np.ones((64, 128), np.float16), np.ones(128, np.float16))
names = ("kernelyard.ir", "kernelyard.patterns", "kernelyard.plugins", "kernelyard_cutlass.backend",
         "kernelyard_cutlass.patterns", "kernelyard_cutlass.compiler", "kernelyard_cutlass.toolchain")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


# --- constants of cubins ----------------------------------------------------------------------------------------------
def test_a_cubin_without_the_sizes_of_a_block_is_refused():
    kernel = next(iter(runtime_of(compiled(MODULE)).codes))
    for cubin in (b"", b"\x7fELF" + bytes(100), b"\x7fELF\x02\x01" + bytes(100)):
        with pytest.raises(ArtifactCorruptedError):
            code.code_of(kernel, "sm_90", cubin)


# --- on a GPU ---------------------------------------------------------------------------------------------------------
class Recorded(CudaDriver):
    """A GPU whose memory is the host's, which notes what is loaded and launched."""

    capability = (9, 0)

    def __init__(self):
        self.calls: list[tuple[Any, ...]] = []
        self._held: dict[int, np.ndarray] = {}

    def allocate(self, nbytes):
        array = memory.aligned_bytes(nbytes)
        self._held[memory.address_of(array)] = array
        return memory.address_of(array)

    def free(self, address, is_shared=False):
        del self._held[address]

    def upload(self, address, array):
        ctypes.memmove(address, memory.address_of(array), array.nbytes)

    def download(self, address, array):
        ctypes.memmove(memory.address_of(array), address, array.nbytes)

    def copy(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)

    def synchronize(self):
        self.calls.append(("wait",))

    def enter(self):
        self.calls.append(("enter",))

    def load(self, image: Image):
        self.calls.append(("load", image))
        return Loaded(self)


class Loaded:
    def __init__(self, driver):
        self._driver = driver

    def prepare(self, kernel, grid, arguments):
        return Launched(self._driver, kernel, grid, list(arguments))


class Launched:
    def __init__(self, driver, *what):
        self.driver, self.what = driver, what

    def __call__(self):
        self.driver.calls.append(("launch", *self.what))

    def move(self, place, address):
        self.what[2][place] = self.what[2][place]._replace(value=address)


def bound(module, driver, sizes, symbol_values):
    """The call of the module's only function, and its arguments."""
    (name,) = module.symbols()
    specs = module.signature(name).tensors
    args = []
    for spec in specs:
        shape = spec.evaluate(symbol_values)
        array = memory.aligned_empty(shape, spec.dtype)
        args.append((array, BoundTensor(memory.address_of(array), array.shape, spec.dtype)))
    context = BindContext(1, DeviceWorkspace(driver), driver)
    return module.bind(name, [arg for _, arg in args], symbol_values, context), args


def test_a_kernel_is_loaded_once_and_launched_as_its_template_says():
    module = with_code(runtime_of(compiled(MODULE)))
    driver = Recorded()
    for rows in (5, 300):
        call, args = bound(module, driver, {}, {"n": rows})
        for step in call.steps:
            step()
        _, name, grid, arguments = driver.calls[-1]
        given = dict(zip(SIGNATURES["gemm"], arguments, strict=True))
        assert [given[each].value for each in "mnk"] == [rows, 128, 64]
        assert given["a"].value == args[0][1].address
        assert grid.threads == (128, 1, 1)
        assert grid.shared_nbytes == 65536
        assert name in {entry_of(kernel) for kernel in module.codes}
    loads = [call[1].kernels for call in driver.calls if call[0] == "load"]
    assert len(loads) == len(set(loads))
    call.rebind[0](4096)
    call.steps[0]()
    assert driver.calls[-1][3][SIGNATURES["gemm"].index("a")].value == 4096


def test_threads_of_attention_are_counted_along_two_axes():
    def attention(b, q, k, v):
        return b.op("nn.attention", q, k, v)

    inputs = [((2, 70, 4, 64), F16)] * 3
    module = with_code(runtime_of(compiled(module_of(attention, *inputs))))
    driver = Recorded()
    call, _ = bound(module, driver, {}, {})
    call.steps[0]()
    _, _, grid, _ = driver.calls[-1]
    assert (grid.blocks, grid.threads) == ((2, 4, 2), (32, 4, 1))


def test_where_it_is_tuned_every_tile_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    module = with_code(runtime_of(compiled(MODULE, tune=True)))
    assert len(module.codes) > 1
    driver = Recorded()
    call, _ = bound(module, driver, {}, {"n": 64})
    launched = {entry[1] for entry in driver.calls if entry[0] == "launch"}
    assert launched == {entry_of(kernel) for kernel in module.codes}
    driver.calls.clear()
    call.steps[0]()
    bound(module, driver, {}, {"n": 64})
    assert [entry[0] for entry in driver.calls].count("launch") == 1, "it was remembered"
    assert tune.CACHE.use().entries == 1


def test_an_empty_result_launches_nothing():
    driver = Recorded()
    call, _ = bound(with_code(runtime_of(compiled(MODULE))), driver, {}, {"n": 0})
    assert call.steps == []


# --- what is missing --------------------------------------------------------------------------------------------------
def test_host_memory_is_no_place_for_kernels():
    module = runtime_of(compiled(MODULE))
    feeds = feeds_of(MODULE, n=3)
    with pytest.raises(DeviceError, match="host memory"):
        module.get_function(module.symbols()[0])(*feeds, np.empty((3, 128), np.float16), symbols={"n": 3})


@pytest.fixture
def nothing_found(monkeypatch):
    toolchain.find_toolchain.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    toolchain.find_toolchain.cache_clear()


def cutlass_at(path):
    """A folder that looks like CUTLASS."""
    for name, text in {
        "include/cutlass/cutlass.h": "",
        "include/cutlass/version.h": "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n",
        "examples/41_fused_multi_head_attention/kernel_forward.h": "",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def cuda_at(path, version):
    for name in ("include/cuda_runtime_api.h", "include/cccl/cuda/std/cstdint"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"#define CUDART_VERSION  {version}\n")
    return path


def test_without_headers_the_reason_has_the_pip_line(nothing_found, tmp_path):
    nothing_found.setenv("CUTLASS_PATH", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="CUTLASS's headers are not installed") as caught:
        toolchain.find_toolchain()
    assert "pip install --no-deps nvidia-cutlass" in caught.value.hint
    facts = CutlassBackend().facts()
    assert "pip install" in facts["CUTLASS"]


def test_without_nvrtc(nothing_found, tmp_path):
    nothing_found.setenv("CUTLASS_PATH", str(cutlass_at(tmp_path)))
    nothing_found.setattr(toolchain, "usable", lambda *args: [])
    with pytest.raises(BackendUnavailableError, match="NVRTC, which compiles CUTLASS") as caught:
        toolchain.find_toolchain()
    assert "nvidia-cuda-nvrtc-cu12" in caught.value.hint


def test_an_nvrtc_that_cannot_compile(nothing_found, tmp_path):
    nothing_found.setenv("CUTLASS_PATH", str(cutlass_at(tmp_path)))
    (tmp_path / "libnvrtc.so.13").touch()
    nothing_found.setenv("KERNELYARD_NVRTC_LIBRARY", str(tmp_path / "libnvrtc.so.13"))
    nothing_found.setattr(cuda_libraries, "find_loaded_libraries", list)
    with pytest.raises(BackendUnavailableError, match="NVRTC cannot be loaded") as caught:
        toolchain.find_toolchain()
    assert caught.value.where == str(tmp_path / "libnvrtc.so.13")


def test_an_old_cutlass(nothing_found, tmp_path):
    path = cutlass_at(tmp_path)
    (path / "include/cutlass/version.h").write_text("#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 5\n")
    nothing_found.setenv("CUTLASS_PATH", str(path))
    with pytest.raises(BackendUnavailableError, match="too old"):
        toolchain.find_toolchain()


@pytest.mark.parametrize(("headers", "is_right"), [(12090, True), (13000, False)])
def test_majors_do_not_mix(headers, is_right, nothing_found, tmp_path):
    nothing_found.setenv("CUTLASS_PATH", str(cutlass_at(tmp_path / "cutlass")))
    nothing_found.setattr(toolchain, "_nvrtc", lambda: "libnvrtc.so.12")
    nothing_found.setattr(nvrtc, "version", lambda library: "12.9")
    nothing_found.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    nothing_found.setattr(toolchain, "TOOLKITS", ())
    nothing_found.setenv("CUDA_HOME", str(cuda_at(tmp_path / "cuda", headers)))
    if is_right:
        found = toolchain.find_toolchain()
        assert (found.nvrtc_version, found.cutlass_version) == ("12.9", "4.2.0")
        assert found.folders[0] == toolchain.STAND_INS
        return
    with pytest.raises(BackendUnavailableError, match="have different versions") as caught:
        toolchain.find_toolchain()
    assert "CUDA 13" in caught.value.found
    assert "nvidia-cuda-runtime-cu12" in caught.value.hint


def test_what_cannot_be_compiled_breaks_the_contract_and_runs_elsewhere(monkeypatch):
    """With an arch, kernels are compiled; the compiler's failure is said, and the rest of the program goes on."""

    def fail(kernel, arch):
        raise BackendUnavailableError("NVRTC, which compiles CUTLASS, is not installed", hint=toolchain.INSTALL_HINT)

    monkeypatch.setattr(backend.compiler, "compile_kernel", fail)
    target = ky.Target("cuda", arch="sm_90")
    with pytest.raises(KernelyardError, match="cannot be compiled"):
        ky.compile(MODULE, target=target, backends=["cutlass"], strict=True)
