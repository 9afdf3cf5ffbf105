"""The runtime half: what it imports, foreign graphs, memory that moves, GPUs by a stand-in for the frontend."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, BackendUnavailableError, CodegenError, DeviceError, OptionError
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.device.driver import DeviceMemory, DeviceWorkspace
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_cuda import driver_api as cuda_driver
from kernelyard_cudnn import _native, gpu, planning
from kernelyard_cudnn.backend import CudnnBackend
from kernelyard_cudnn.blobs import Blob
from kernelyard_cudnn.devices import read_properties
from kernelyard_cudnn.gpu import CudnnGpu
from kernelyard_cudnn.runtime import CudnnRuntime, load

from .conftest import compiled, feeds_of, module_of, numbers


def block(b: Any) -> Any:
    x = b.input("x", (symbol("n"), 3, 6, 6))
    return b.op("nn.relu", b.op("add", b.op("nn.conv2d", x, numbers(4, 3, 3, 3)), numbers(4, 1, 1)))


def runtime() -> CudnnRuntime:
    (module,) = compiled(module_of(block)).modules
    assert isinstance(module, CudnnRuntime)
    return module


def test_running_imports_nothing_of_the_compiler_nor_the_library() -> None:
    code = (
        "import sys, kernelyard_cudnn.runtime, kernelyard_cudnn.gpu; "
        "halves = ('kernelyard.ir', 'kernelyard.patterns', 'kernelyard.plugins', 'kernelyard_cudnn.backend', 'cudnn'); "
        "print([name for name in halves if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_saved_programs_are_the_same_bytes_and_run(machine: Any, tmp_path: Any) -> None:
    module = module_of(block)
    exe = compiled(module)
    exe.save(tmp_path / "one.kyar")
    compiled(module).save(tmp_path / "two.kyar")
    assert (tmp_path / "one.kyar").read_bytes() == (tmp_path / "two.kyar").read_bytes()
    feeds = feeds_of(module, n=2)
    found = machine(ky.load(tmp_path / "one.kyar"))(*feeds)
    assert_allclose(np.asarray(found.numpy()), evaluate(module, feeds)[0])


def test_a_batch_of_nothing_is_nothing(machine: Any) -> None:
    module = module_of(lambda b: b.op("nn.conv2d", b.input("x", (0, 3, 6, 6)), numbers(4, 3, 3, 3)))
    assert machine(compiled(module))(np.zeros((0, 3, 6, 6), np.float32)).shape == (0, 4, 4, 4)


def test_in_host_memory_there_is_one_clear_error() -> None:
    args = [BoundTensor(64, (2, 3, 6, 6), "float32"), BoundTensor(64, (2, 4, 4, 4), "float32")]
    with pytest.raises(DeviceError, match="cannot run in host memory") as caught:
        runtime().bind("cudnn_0", args, {"n": 2}, BindContext(1, lambda _: 0))
    assert "emulator" in str(caught.value)


def test_tensors_may_move(machine: Any) -> None:
    driver = ky.cuda("emulator").open()
    module = runtime()
    (x,) = feeds_of(module_of(block), n=2)
    places = [DeviceMemory(driver, 4096) for _ in range(4)]
    args = [BoundTensor(places[0].address, x.shape, "float32"), BoundTensor(places[1].address, (2, 4, 4, 4), "float32")]
    call = module.bind("cudnn_0", args, {"n": 2}, BindContext(1, DeviceWorkspace(driver), driver))
    assert sorted(call.rebind) == [0, 1]
    call.rebind[0](places[2].address)
    call.rebind[1](places[3].address)
    driver.upload(places[2].address, x)
    CallTable(call.steps).run()
    found = np.empty((2, 4, 4, 4), np.float32)
    driver.download(places[3].address, found)
    assert_allclose(found, evaluate(module_of(block), [x])[0])


# --- foreign data -----------------------------------------------------------------------------------------------------
def damaged(change: Any) -> CudnnRuntime:
    module = runtime()
    data = json.loads(module.save_to_bytes())
    change(data["graphs"][0]["nodes"][-1])
    return load(json.dumps(data).encode(), module.constants())


def attribute(name: str, value: Any) -> Any:
    return lambda node: node["attrs"].__setitem__(name, value)


@pytest.mark.parametrize(
    "change",
    [
        attribute("padding", [1]),
        attribute("padding", [5, 5]),
        attribute("padding", ["1", 1]),
        attribute("strides", [0, 1]),
        attribute("orders", {"x": [0, 1, 2, 2], "w": [0, 1, 2, 3], "y": [0, 1, 2, 3]}),
        attribute("orders", {"x": [0, 1, 2, 3]}),
        attribute("orders", {"x": [0, 2, 3, 1], "w": [0, 1, 2, 3], "y": [0, 1, 2, 3]}),
        attribute("stages", [{"mode": "exec"}]),
        attribute("stages", [{"mode": "add", "operand": "nobody", "order": [0, 1, 2, 3]}]),
        attribute("stages", [{"mode": "add", "operand": "w", "order": [0, 1, 2, 3]}]),
        attribute("stages", 7),
        attribute("tf32", "yes"),
        lambda node: node["attrs"].clear(),
        lambda node: node.__setitem__("inputs", node["inputs"][:1]),
    ],
)
def test_nodes_that_make_no_sense_are_errors(change: Any) -> None:
    with pytest.raises(CodegenError, match="is malformed"):
        damaged(change).lower_kernel("cudnn_0", {"n": 2})


def test_a_wrong_stride_is_a_wrong_number(machine: Any) -> None:
    """What stands in for cuDNN reads memory as the description has it."""
    module = module_of(lambda b: b.op("nn.conv2d", b.input("x", (1, 4, 4, 4)), numbers(4, 4, 1, 1)))
    exe = compiled(module, layout="first")
    (x,) = feeds_of(module)
    right = np.asarray(machine(exe)(x).numpy())
    graphs = [graph.to_json() for graph in exe.modules[0].graphs.values()]
    graphs[0]["nodes"][-1]["attrs"]["orders"] = {"x": [0, 2, 3, 1], "w": [0, 1, 2, 3], "y": [0, 1, 2, 3]}
    other = load(json.dumps({"schema": 1, "graphs": graphs}).encode(), exe.modules[0].constants())
    driver = ky.cuda("emulator").open()
    held = [DeviceMemory(driver, 4096) for _ in range(2)]
    args = [BoundTensor(place.address, (1, 4, 4, 4), "float32") for place in held]
    driver.upload(held[0].address, x)
    CallTable(other.bind("cudnn_0", args, {}, BindContext(1, DeviceWorkspace(driver), driver)).steps).run()
    wrong = np.empty((1, 4, 4, 4), np.float32)
    driver.download(held[1].address, wrong)
    assert np.abs(wrong - right).max() > 1e-3


def test_graphs_of_other_kernels_are_corrupted() -> None:
    with pytest.raises(ArtifactCorruptedError):
        damaged(lambda node: node.__setitem__("op", "pool"))


# --- a GPU, by a stand-in for the frontend ----------------------------------------------------------------------------
class FakeGraph:
    """Notes what is asked of it; has three plans of 10, 20 and 30 bytes of workspace."""

    def __init__(self, log: list[Any]) -> None:
        self.log, self.plan = log, 0

    def build_plans(self) -> None:
        self.log.append("built by heuristics")

    def deserialize(self, handle: Any, data: Any) -> None:
        self.log.append(("restored", bytes(data)))

    def deselect_workspace_greater_than(self, nbytes: int) -> None: ...

    def get_execution_plan_count(self) -> int:
        return 3

    def build_plan_at_index(self, number: int) -> None:
        if number == 2:
            raise RuntimeError("this engine cannot")
        self.plan = number
        self.log.append(("built", number))

    def get_workspace_size(self) -> int:
        return 10 * (self.plan + 1)

    def execute(self, addresses: Any, workspace: int, handle: Any = None) -> None:
        self.log.append(("executed", sorted(addresses.items()), handle))


class FakeDevice:
    """A GPU's driver, as far as the plugin asks."""

    is_emulator, capability, stream, index = False, (9, 0), 77, 0

    def enter(self) -> None: ...

    def download(self, address: int, array: Any) -> None: ...


def fake(monkeypatch: pytest.MonkeyPatch, version: int = 92800) -> tuple[CudnnGpu, list[Any]]:
    log: list[Any] = []
    module = SimpleNamespace(
        create_handle=lambda: "handle",
        set_stream=lambda handle, stream: log.append(("stream", stream)),
        backend_version=lambda: version,
        create_device_properties=lambda _: SimpleNamespace(serialize=lambda: read_properties("h200").text),
        pygraph=lambda **_: FakeGraph(log),
        cudnnGraphNotSupportedError=RuntimeError,
    )
    monkeypatch.setattr(planning, "propose_plans", lambda *_: FakeGraph(log))
    return CudnnGpu(module, FakeDevice()), log  # pyright: ignore[reportArgumentType]


def graph() -> Any:
    return runtime().lower_kernel("cudnn_0", {"n": 2}).graph


def step(on: CudnnGpu, blobs: Any = (), tune: bool = False) -> Any:
    addresses = {tensor.uid: 1000 * tensor.uid for tensor in graph().tensors if not tensor.is_virtual}
    return on.step(graph(), addresses, lambda nbytes: 5000 + nbytes, blobs, tune)


def blob(version: int = 92800, gpu: str = "h100", text: str | None = None) -> np.ndarray:
    return Blob(version, read_properties(gpu), repr(graph()) if text is None else text, b"plan").to_array()


def test_a_plan_is_made_once_and_runs_on_the_devices_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    on, log = fake(monkeypatch)
    one, _ = step(on), step(on)
    assert log == ["built by heuristics"]
    one.move(1, 4321)
    one()
    assert log[1] == ("stream", 77)
    assert log[2][1][0] == (1, 4321)
    assert log[2][2] == "handle"


def test_a_plan_made_ahead_is_taken_by_the_same_version_and_kind_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 has the processors of an H200."""
    on, log = fake(monkeypatch)
    step(on, [blob(gpu="a100"), blob()])
    assert log == [("restored", b"plan")]


@pytest.mark.parametrize("other", [{"version": 91500}, {"gpu": "a100"}, {"text": "another graph"}], ids=str)
def test_plans_for_others_are_made_anew(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    on, log = fake(monkeypatch)
    step(on, [blob(**other)])
    assert log == ["built by heuristics"]


def test_the_quickest_plan_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    on, log = fake(monkeypatch)
    times = iter([0.5, 0.25])
    monkeypatch.setattr(planning, "seconds", lambda run: (run(1), next(times))[1])
    step(on, tune=True)
    assert [entry for entry in log if entry[0] == "built"] == [("built", 0), ("built", 1), ("built", 1)]
    again, log = fake(monkeypatch)
    step(again, tune=True)
    assert log == [("built", 1)], "another process has measured"


# --- what is missing --------------------------------------------------------------------------------------------------
def test_on_a_machine_without_a_gpu_running_says_what_is_missing() -> None:
    """Compiling, explaining and the emulator do without it."""
    module = module_of(block)
    assert "cudnn" in ky.explain(module, target="cuda", backends=["cudnn"]).summary
    exe = compiled(module)
    try:
        ky.cuda(0).open()
        pytest.skip("there is a GPU")
    except DeviceError as error:
        missing = str(error)
    with pytest.raises(DeviceError) as caught:
        exe(np.zeros((1, 3, 6, 6), np.float32))
    assert str(caught.value) == missing
    assert caught.value.hint


def test_without_the_frontend_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_version_of", lambda _: "")
    _native.load.cache_clear()
    with pytest.raises(BackendUnavailableError) as caught:
        _native.load()
    assert "kernelyard-cudnn[cu12]" in str(caught.value)
    assert "none, which GPU programs need" in _native.facts()["cuDNN"]
    with pytest.raises(BackendUnavailableError):
        gpu.gpu_of(FakeDevice())  # pyright: ignore[reportArgumentType]
    _native.load.cache_clear()


@pytest.mark.parametrize("version", ["1.27.0", "1.29.1"])
def test_other_frontends_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(_native, "_version_of", lambda _: version)
    with pytest.raises(BackendUnavailableError, match="unsupported version"):
        _native.frontend_version()


@pytest.mark.parametrize("has_gpu", [False, True])
def test_without_the_frontend_the_backend_is_unavailable_where_a_gpu_is(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    monkeypatch.setattr(cuda_driver, "gpu_is_here", lambda: has_gpu)
    monkeypatch.setattr(_native, "_version_of", lambda _: "")
    _native.load.cache_clear()
    found = CudnnBackend().probe()
    assert (found is not None) == has_gpu
    if found is not None:
        assert "cuDNN's frontend is not installed" in found.reason
        assert "pip install 'kernelyard-cudnn" in str(found.hint)


def test_mixed_majors_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "wheel_majors", lambda: (12,))
    monkeypatch.setattr(_native, "major_in_use", lambda: (13, "libcublasLt.so.13 is loaded"))
    refusal = _native.refusal()
    assert refusal is not None
    assert "nvidia-cudnn-cu12, but libcublasLt.so.13 is loaded" in str(refusal)
    assert "kernelyard-cudnn[cu13]" in str(refusal.hint)
    monkeypatch.setattr(_native, "wheel_majors", lambda: (13, 12))
    refusal = _native.refusal()
    assert refusal is not None
    assert "in one folder" in str(refusal)


@pytest.mark.parametrize(
    "options", [{"tf32": "yes"}, {"tune": 1}, {"layout": "nhwc"}, {"plan_for": "h200"}, {"plan_for": [3]}], ids=str
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        compiled(module_of(block), **options)


def test_gpus_are_named_or_files(tmp_path: Any) -> None:
    path = tmp_path / "mine.json"
    path.write_text(read_properties("a100").text.replace("108", "96"))
    assert read_properties(str(path)).processors == 96
    for name in ("b300", str(tmp_path)):
        with pytest.raises(OptionError, match="unknown GPU"):
            read_properties(name)
