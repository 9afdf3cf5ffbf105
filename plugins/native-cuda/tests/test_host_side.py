"""Host side of a call, counted in calls of the driver: replays, waits, copies, tensors of other libraries, devices.

On the late driver, which does everything as late as it may: a wait that is missing gives wrong numbers.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import InputTypeError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.device import dlpack
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.dlpack_exchange import ATTRIBUTE, ExchangeTable
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard.runtime.execute.bound_device_program import BoundDeviceProgram
from kernelyard.runtime.execute.device_graph import CapturedProgram
from kernelyard_native_cuda.drivers import open_device
from kernelyard_native_cuda.drivers.gpu import Gpu

from . import late_driver
from .test_rules import random

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong")

WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")
SIZE = 96
NBYTES = 4 * SIZE * SIZE  # of a cache: more than a feed that is copied into the arena


def calls_of(run: Callable[[], object], *functions: str) -> int:
    """How many calls of the driver's functions something takes."""
    before = late_driver.calls(*functions)
    run()
    return late_driver.calls(*functions) - before


def decoder() -> IRModule:
    """A step with two caches, which it gives back changed: `y = (x @ keys') @ values'`."""
    b = FunctionBuilder()
    x, keys, values = b.input("x", (1, SIZE)), b.input("keys", (SIZE, SIZE)), b.input("values", (SIZE, SIZE))
    new_keys, new_values = b.op("add", keys, np.float32(0.5)), b.op("multiply", values, np.float32(0.5))
    y = b.op("matmul", b.op("matmul", x, new_keys), new_values)
    return IRModule({"main": b.function(y, new_keys, new_values)})


def decode(x: np.ndarray, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    keys, values = keys + np.float32(0.5), values * np.float32(0.5)
    return x @ keys @ values, keys, values


@pytest.fixture(scope="module")
def step(gpu, target) -> Callable[..., Any]:
    return ky.VirtualMachine(ky.compile(decoder(), target=target, backends=[]), ky.cuda(0))["main"]


def test_a_decoder_replays_and_copies_no_cache(gpu, step):
    """Caches are fed back where they lie, and written where the next step finds them, at two places in turn."""
    late_driver.reuse_memory()
    x, wanted = random(1, SIZE), (None, random(SIZE, SIZE), random(SIZE, SIZE))
    found = wanted
    captures, costs = late_driver.calls("cuStreamBeginCapture_v2"), []
    for _ in range(12):
        before = [late_driver.calls(*each) for each in COUNTED]
        found = step(x, *found[1:])
        costs.append([late_driver.calls(*each) - old for each, old in zip(COUNTED, before, strict=True)])
        wanted = decode(x, *wanted[1:])
    assert late_driver.calls("cuStreamBeginCapture_v2") - captures <= 4
    assert costs[6:] == [[1, 0, 0, 0]] * 6  # a graph; no launch beside it, no copy, no wait
    for actual, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


COUNTED = (
    ("cuGraphLaunch",),
    ("cuLaunchKernel",),
    ("cuMemcpyDtoDAsync_v2",),
    ("cuStreamSynchronize", "cuCtxSynchronize"),
)


def test_results_that_the_caller_keeps_are_replayed_too(gpu, step):
    """They lie elsewhere each time: a graph writes them to the arena, and they are copied."""
    feeds = random(1, SIZE), *(DeviceArray.of(gpu, random(SIZE, SIZE)) for _ in range(2))
    kept = [step(*feeds) for _ in range(3)]
    before = late_driver.calls("cuLaunchKernel")
    kept += [step(*feeds) for _ in range(5)]
    assert late_driver.calls("cuLaunchKernel") == before
    wanted = decode(feeds[0], feeds[1].numpy(), feeds[2].numpy())
    for found in kept:
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_new_size_takes_launches_alone(gpu, target):
    """Code is found once, and numbers of launches are computed once for steps that are alike."""
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 8))
    for _ in range(4):
        x = b.op("nn.relu", b.op("matmul", x, random(8, 8)))
    executable = ky.compile(IRModule({"main": b.function(x)}), target=target, backends=[])
    run = ky.VirtualMachine(executable, ky.cuda(0))["main"]
    run(random(3, 8))
    launches = calls_of(lambda: run(random(4, 8)), "cuLaunchKernel")
    assert launches >= 4
    assert calls_of(lambda: run(random(5, 8)), "cuLaunchKernel") == launches
    assert calls_of(lambda: run(random(6, 8)), *PREPARATIONS) == 1  # the result's memory


PREPARATIONS = ("cuModuleGetFunction", "cuFuncSetAttribute", "cuModuleLoadData", "cuMemAllocFromPoolAsync_v2")
PREPARATIONS += ("cuMemAllocFromPoolAsync", "cuStreamSynchronize", "cuCtxSynchronize")


# --- other libraries ----------------------------------------------------------------------------------------------------
class Library:
    """A library with a current stream and DLPack's exchange API, as PyTorch has them; its tensors are `Tensor`s."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.stream = int(gpu.call("cuStreamCreate", gpu.api.CUstream_flags.CU_STREAM_NON_BLOCKING))

        def fill(value: Any, into: Any) -> int:
            shape, index = value.shape_words, gpu.index
            strides = ctypes.addressof(value.strides) if value.strides else None
            words = ctypes.addressof(shape)
            into[0] = dlpack.DLTensor(value.address, 2, index, len(shape), 2, 32, 1, words, strides, 0)
            return 0

        def tell(kind: int, index: int, into: Any) -> int:
            into[0] = self.stream
            return 0

        tensor_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(dlpack.DLTensor))(fill)
        stream_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(
            tell
        )
        pointers = (ctypes.cast(each, ctypes.c_void_p).value for each in (tensor_of, stream_of))
        table = ExchangeTable(1, 2, None, None, None, None, *pointers)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.kept = tensor_of, stream_of, table
        self.Tensor = type("Tensor", (LibraryTensor,), {})
        setattr(self.Tensor, ATTRIBUTE, capsule(ctypes.addressof(table), b"dlpack_exchange_api", None))

    def tensor(self, numbers: np.ndarray) -> LibraryTensor:
        """A tensor that this library's stream fills once it gets there."""
        source = DeviceArray.of(self.gpu, numbers)
        source.numpy()  # it is there
        held = DeviceMemory(self.gpu, numbers.nbytes)
        self.gpu.call("cuMemcpyDtoDAsync", held.address, source.address, numbers.nbytes, self.stream)
        return self.Tensor(held, source, numbers.shape)

    def overwriting(self, tensor: LibraryTensor) -> Callable[[], None]:
        """Use the memory for something else, next on its stream once a call has returned."""
        other = DeviceArray.of(self.gpu, np.full(tensor.shape_words[:], np.nan, np.float32))
        other.numpy()  # it is there

        def run() -> None:
            self.gpu.call("cuMemcpyDtoDAsync", tensor.address, other.address, other.nbytes, self.stream)
            self.gpu.call("cuStreamSynchronize", self.stream)

        return run

    def numbers(self, array: Any) -> np.ndarray:
        """Return what its stream reads of an array that it is given."""
        capsule = array.__dlpack__(stream=self.stream)
        found = np.empty(array.shape, np.float32)
        held = DeviceMemory(self.gpu, found.nbytes)
        self.gpu.call("cuMemcpyDtoDAsync", held.address, array.array.address, found.nbytes, self.stream)
        self.gpu.call("cuMemcpyDtoHAsync", found.ctypes.data, held.address, found.nbytes, self.stream)
        self.gpu.call("cuStreamSynchronize", self.stream)
        del capsule
        return found


class LibraryTensor:
    strides: Any = None  # dense

    def __init__(self, held: DeviceMemory, source: DeviceArray, shape: tuple[int, ...]) -> None:
        self.held, self.address, self.source = held, held.address, source
        self.shape_words = (ctypes.c_int64 * len(shape))(*shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def check_a_stream_in_both_directions(gpu: Gpu, step) -> None:
    """The library's stream has yet to write the feeds, overwrites them at once, and reads the result: nobody waits."""
    library = Library(gpu)
    arrays = random(1, SIZE), random(SIZE, SIZE), random(SIZE, SIZE)
    tensors = [library.tensor(array) for array in arrays]
    overwriting = [library.overwriting(tensor) for tensor in tensors]
    before = late_driver.calls(*WAITS)
    found = step(*tensors)
    assert late_driver.calls(*WAITS) == before
    for overwrite in overwriting:
        overwrite()
    for actual, expected in zip(found, decode(*arrays), strict=True):
        np.testing.assert_allclose(library.numbers(actual), expected, rtol=1e-3, atol=1e-3)


def check_feeds_that_are_under_way(gpu: Gpu, step) -> None:
    """The result is read by way of our stream, when the library's has not begun."""
    library = Library(gpu)
    arrays = random(1, SIZE), random(SIZE, SIZE), random(SIZE, SIZE)
    found = step(*map(library.tensor, arrays))
    for actual, expected in zip(found, decode(*arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def check_memory_that_another_stream_reads(gpu: Gpu, step) -> None:
    """It goes back to the pool after that stream's work, and the host does not wait for this."""
    library = Library(gpu)
    late_driver.reuse_memory()
    array = DeviceArray.of(gpu, random(SIZE, SIZE))
    expected, address = array.numpy(), array.address
    capsule = array.__dlpack__(stream=library.stream)
    held, found = DeviceMemory(gpu, NBYTES), np.empty((SIZE, SIZE), np.float32)
    gpu.call("cuMemcpyDtoDAsync", held.address, address, NBYTES, library.stream)
    before = late_driver.calls(*WAITS)
    del array, capsule
    gc.collect()
    assert late_driver.calls(*WAITS) == before
    again = DeviceArray.of(gpu, np.zeros((SIZE, SIZE), np.float32))
    assert again.address == address
    gpu.synchronize()  # it is overwritten now, but not before that stream has read it
    gpu.call("cuMemcpyDtoHAsync", found.ctypes.data, held.address, NBYTES, library.stream)
    gpu.call("cuStreamSynchronize", library.stream)
    np.testing.assert_array_equal(found, expected)


def check_results_are_written_where_the_caller_gets_them(gpu: Gpu, step) -> None:
    """Each to memory of its own, though a graph of the call before writes elsewhere."""
    feeds = [(random(1, SIZE), *(DeviceArray.of(gpu, random(SIZE, SIZE)) for _ in range(2))) for _ in range(2)]
    found = [step(*feeds[number % 2]) for number in range(6)]
    for number, results in enumerate(found):
        x, keys, values = feeds[number % 2]
        for actual, expected in zip(results, decode(x, keys.numpy(), values.numpy()), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


CHECKS = [
    check_feeds_that_are_under_way,
    check_a_stream_in_both_directions,
    check_memory_that_another_stream_reads,
    check_results_are_written_where_the_caller_gets_them,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_other_streams_and_results(gpu, step, check):
    check(gpu, step)


def test_a_tensor_with_gaps_is_refused(gpu, step):
    library = Library(gpu)
    tensor = library.tensor(random(SIZE, SIZE))
    tensor.strides = (ctypes.c_int64 * 2)(1, SIZE)
    with pytest.raises(InputTypeError, match="not contiguous"):
        step(random(1, SIZE), tensor, tensor)
    gpu.call("cuStreamSynchronize", library.stream)


# --- mutants ------------------------------------------------------------------------------------------------------------
def ignoring_addresses(patch: pytest.MonkeyPatch) -> None:
    run = CapturedProgram.run

    def mutant(self: CapturedProgram, choices: Any, move: Any) -> Any:
        run(self, ((0,),), lambda _: move(choices[0]))
        return choices[0]

    patch.setattr(CapturedProgram, "run", mutant)


def forgetting_streams(patch: pytest.MonkeyPatch) -> None:
    free_after = Gpu.free_after
    patch.setattr(Gpu, "free_after", lambda self, address, streams: free_after(self, address, ()))


WRONG = "Not equal to tolerance|Arrays are not equal"
# What is changed, the check that finds it, and how.
MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], Callable[..., None], str]] = {
    "our stream does not wait for a feed's": (
        lambda p: p.setattr(Gpu, "wait_for", lambda self, stream: None),
        check_feeds_that_are_under_way,
        WRONG,
    ),
    "a feed's stream does not wait for ours": (
        lambda p: p.setattr(BoundDeviceProgram, "_release", lambda self, arrays: None),
        check_a_stream_in_both_directions,
        WRONG,
    ),
    "readers of a result do not wait": (
        lambda p: p.setattr(Gpu, "share_with", lambda self, stream: None),
        check_a_stream_in_both_directions,
        WRONG,
    ),
    "memory is given back before its readers are done": (
        forgetting_streams,
        check_memory_that_another_stream_reads,
        WRONG,
    ),
    "a graph is replayed at other addresses": (
        ignoring_addresses,
        check_results_are_written_where_the_caller_gets_them,
        WRONG,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(gpu, step, monkeypatch, name):
    mutate, check, words = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=words) as caught:
        check(gpu, step)
    monkeypatch.undo()
    late_driver.reset()
    del caught  # it kept the check's memory, which is yet to be written, before


# --- several devices ----------------------------------------------------------------------------------------------------
def test_a_program_runs_on_each_device(gpu, target):
    """Code, constants, memory and streams are of the device; what lies on another one comes through the host."""
    first, second = ky.devices("cuda")
    executable = ky.compile(decoder(), target=target, backends=[])
    feeds = random(1, SIZE), random(SIZE, SIZE), random(SIZE, SIZE)
    try:
        on_first = ky.VirtualMachine(executable, first)["main"](*feeds)
        on_second = ky.VirtualMachine(executable, second)["main"](feeds[0], *on_first[1:])
        assert [str(each.device) for each in (*on_first, *on_second)] == ["cuda:0"] * 3 + ["cuda:1"] * 3
        wanted = decode(feeds[0], *decode(*feeds)[1:])
        for actual, expected in zip(on_second, wanted, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
    finally:
        open_device(1).synchronize()


def test_calls_from_many_threads_share_one_arena(gpu, target):
    """One stream orders all work: what a call leaves behind in the arena, none after it reads."""
    machine = ky.VirtualMachine(ky.compile(decoder(), target=target, backends=[]), ky.cuda(0))
    feeds = [(random(1, SIZE), random(SIZE, SIZE), random(SIZE, SIZE)) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for given, found in zip(feeds, pool.map(lambda each: machine["main"](*each), feeds), strict=True):
            for actual, expected in zip(found, decode(*given), strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
    assert len(machine.contexts) == 1
