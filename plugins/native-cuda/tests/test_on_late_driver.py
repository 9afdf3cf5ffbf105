"""`gpu.py` by the real cuda-bindings, on a driver that does everything as late as it may: see `late_driver.cpp`.

Part of what runs on GPUs: every operator's first sample, whole programs, artifacts, graphs, tensors of other libraries.
What a GPU alone shows stays in `test_on_gpu.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import ExecutionError
from kernelyard.runtime.device import dlpack
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard.testing import evaluate
from kernelyard_cuda.driver_api import Argument, Grid, Image, Launch
from kernelyard_native_cuda.drivers.gpu import LEGACY_STREAM, Gpu
from kernelyard_native_cuda.generator import PRELUDE, TILES
from kernelyard_native_cuda.runtime import NativeCudaModule

from . import late_driver
from .conftest import generate
from .test_on_gpu import (  # noqa: F401  (they run here too)
    test_artifacts_run_in_the_process_that_loads_them,
    test_measuring,
    test_programs_run_again_and_again,
)
from .test_ops import CASES, check_sample, lower_static
from .test_programs import PROGRAMS, module_of
from .test_rules import random

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong")

FIRST = [name for name in CASES if name.endswith("_0")]


@pytest.fixture(scope="module")
def static_module(target) -> NativeCudaModule:
    return generate({name: lower_static(*CASES[name]) for name in FIRST}, target.arch)


@pytest.mark.parametrize("name", FIRST)
def test_first_samples(gpu, static_module, name):
    check_sample(gpu, static_module, name, {})


def test_many_threads_may_call(gpu, target):
    build, shape = PROGRAMS["attention"]
    module = module_of(build)
    machine = ky.VirtualMachine(ky.compile(module, target=target, backends=[]), ky.cuda(0), contexts=3)
    feeds = [random(rows, *shape[1:]) for rows in (1, 4, 2, 4, 3, 1)] * 3
    with ThreadPoolExecutor(3) as pool:
        for x, found in zip(feeds, pool.map(lambda x: machine["main"](x).numpy(), feeds), strict=True):
            np.testing.assert_allclose(found, evaluate(module, [x])[0], rtol=1e-3, atol=1e-4)


# --- kernels written by hand ------------------------------------------------------------------------------------------
def prepared(gpu: Gpu, emulator, body: str, arguments: list[Argument], grid: Grid) -> Launch:
    text = f"{PRELUDE.read_text()}\n{TILES.read_text()}\n"
    text += f'extern "C" __global__ void kernel(GLOBAL(float) out, const long long n) {{ {body} }}'
    cubin = late_driver.EmulatedCompiler(emulator).cubin(text, "sm_90")
    return gpu.load(Image("", ("kernel",), {"sm_90": cubin})).prepare("kernel", grid, arguments)


ONE_BLOCK = Grid((1, 1, 1), (64, 1, 1))
COUNT = "out[threadIdx.x] = threadIdx.x + n;"


def counting(gpu: Gpu, emulator, start: int, grid: Grid = ONE_BLOCK) -> tuple[DeviceArray, Launch]:
    array = DeviceArray.empty(gpu, (64,), np.dtype(np.float32))
    return array, prepared(gpu, emulator, COUNT, [Argument(array.address, array.nbytes), Argument(start)], grid)


def test_work_runs_when_somebody_waits(gpu, emulator):
    array, launch = counting(gpu, emulator, 5)
    launch()
    seen = np.ctypeslib.as_array((ctypes.c_float * 64).from_address(array.address))
    assert (seen < -300).all()
    gpu.synchronize()
    np.testing.assert_array_equal(seen, np.arange(64) + 5)


@pytest.mark.parametrize(
    "grid",
    [
        Grid((1, 70000, 1), (64, 1, 1)),
        Grid((1, 1, 70000), (64, 1, 1)),
        Grid((1 << 31, 1, 1), (64, 1, 1)),
        Grid((0, 1, 1), (64, 1, 1)),
        Grid((1, 1, 1), (64, 32, 1)),
        Grid((1, 1, 1), (64, 1, 1), 300 << 10),
    ],
)
def test_grids_that_no_gpu_takes_are_refused(gpu, emulator, grid):
    with pytest.raises(ExecutionError, match="CUDA_ERROR_INVALID_VALUE"):
        counting(gpu, emulator, 0, grid)[1]()


def test_a_kernel_that_fails_is_named(gpu, emulator):
    array = DeviceArray.empty(gpu, (64,), np.dtype(np.float32))
    prepared(gpu, emulator, "out[threadIdx.x + n] = 1;", [Argument(array.address, 256), Argument(1000)], ONE_BLOCK)()
    with pytest.raises(ExecutionError, match="CUDA_ERROR_LAUNCH_FAILED"):
        gpu.synchronize()
    assert b"kernel: an access outside a tensor" in late_driver.library().late_driver_complaint()
    late_driver.reset()


# --- captures ---------------------------------------------------------------------------------------------------------
WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")
REFUSED: dict[str, Callable[[Gpu], object]] = {
    "an allocation": lambda gpu: gpu.call("cuMemAlloc", 64),
    "page-locked memory": lambda gpu: gpu.call("cuMemAllocHost", 64),
    "waiting for the stream": lambda gpu: gpu.call("cuStreamSynchronize", gpu.stream),
    "waiting for an event": lambda gpu: gpu.call("cuEventSynchronize", gpu.call("cuEventCreate", 0)),
    "a large feed": lambda gpu: gpu.upload(DeviceMemory(gpu, 1 << 20).address, np.zeros(1 << 20, np.uint8)),
    "reading": lambda gpu: gpu.download(DeviceMemory(gpu, 64).address, np.zeros(64, np.uint8)),
    "another thread that waits for the device": lambda gpu: in_another_thread(gpu.call, "cuCtxSynchronize"),
}


def in_another_thread(call: Callable[..., object], *arguments: object) -> None:
    def run() -> None:
        with pytest.raises(ExecutionError, match="CAPTURE_UNSUPPORTED"):
            call(*arguments)

    thread = Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_captured_ends_the_capture(gpu, emulator, name):
    array, launch = counting(gpu, emulator, 7)
    with pytest.raises(ExecutionError, match="CAPTURE"):
        gpu.capture(lambda: (launch(), REFUSED[name](gpu), None)[2])
    graph = gpu.capture(launch)  # the device is usable again
    graph()
    np.testing.assert_array_equal(array.numpy(), np.arange(64) + 7)


# --- other libraries ----------------------------------------------------------------------------------------------------
class OtherLibrary:
    """A library with a stream of its own, on which its work is under way: what PyTorch does, without PyTorch."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.stream = int(gpu.call("cuStreamCreate", gpu.api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def copy_of(self, address: int, nbytes: int) -> DeviceMemory:
        """A copy that its stream makes of what lies somewhere once it gets there."""
        held = DeviceMemory(self.gpu, nbytes)
        self.gpu.call("cuMemcpyDtoDAsync", held.address, address, nbytes, self.stream)
        return held

    def numbers(self, array: DeviceArray) -> np.ndarray:
        """What its stream reads of an array that it is given."""
        capsule = array.__dlpack__(stream=self.stream)
        held, found = self.copy_of(array.address, array.nbytes), np.empty(array.shape, array.dtype)
        self.gpu.call("cuMemcpyDtoHAsync", found.ctypes.data, held.address, array.nbytes, self.stream)
        self.gpu.call("cuStreamSynchronize", self.stream)
        del capsule
        return found


class OthersTensor:
    """A tensor that another library's stream has yet to fill."""

    def __init__(self, library: OtherLibrary, numbers: np.ndarray) -> None:
        source = DeviceArray.of(library.gpu, numbers)
        source.numpy()  # it is there
        self._library, self._shape = library, numbers.shape
        self._held = library.copy_of(source.address, source.nbytes), source

    def __dlpack__(self, *, stream: int, **_: Any) -> Any:
        gpu = self._library.gpu
        event = gpu.call("cuEventCreate", 0)
        gpu.call("cuEventRecord", event, self._library.stream)
        gpu.call("cuStreamWaitEvent", stream, event, 0)
        return dlpack.export(self._held, self._held[0].address, self._shape, "float32", self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return Gpu.dlpack_type, 0


def check_a_consumer(gpu: Gpu, emulator, target) -> None:
    array, launch = counting(gpu, emulator, 3)
    launch()
    np.testing.assert_array_equal(OtherLibrary(gpu).numbers(array), np.arange(64) + 3)


def check_a_producer(gpu: Gpu, emulator, target) -> None:
    build, shape = PROGRAMS["block"]
    module, x = module_of(build), random(*shape)
    machine = ky.VirtualMachine(ky.compile(module, target=target, backends=[]), ky.cuda(0))
    found = machine["main"](OthersTensor(OtherLibrary(gpu), x))
    np.testing.assert_allclose(found, evaluate(module, [x])[0], rtol=1e-3, atol=1e-4)


def check_many_small_feeds(gpu: Gpu, emulator, target) -> None:
    """More than there are slots of page-locked memory."""
    arrays = [DeviceArray.of(gpu, np.full(100, number, np.float32)) for number in range(40)]
    np.testing.assert_array_equal([array.numpy()[0] for array in arrays], np.arange(40))


def check_reading(gpu: Gpu, emulator, target) -> None:
    array, launch = counting(gpu, emulator, 9)
    launch()
    np.testing.assert_array_equal(array.numpy(), np.arange(64) + 9)


def check_much_shared_memory(gpu: Gpu, emulator, target) -> None:
    array, launch = counting(gpu, emulator, 1, ONE_BLOCK._replace(shared_nbytes=100 << 10))
    launch()
    np.testing.assert_array_equal(array.numpy(), np.arange(64) + 1)


def check_another_thread(gpu: Gpu, emulator, target) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check_reading, gpu, emulator, target).result()


def check_a_barrier(gpu: Gpu, emulator, target, barrier: str = "__syncthreads();") -> None:
    array = DeviceArray.empty(gpu, (64,), np.dtype(np.float32))
    body = f"SHARED(float, s, 64); s[threadIdx.x] = threadIdx.x; {barrier} out[threadIdx.x] = s[63 - threadIdx.x];"
    prepared(gpu, emulator, body, [Argument(array.address, 256), Argument(0)], ONE_BLOCK)()
    np.testing.assert_array_equal(array.numpy(), np.arange(63, -1, -1))


CHECKS = [
    check_a_consumer,
    check_a_producer,
    check_many_small_feeds,
    check_reading,
    check_much_shared_memory,
    check_another_thread,
    check_a_barrier,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_order_of_work(gpu, emulator, target, check):
    check(gpu, emulator, target)


# --- mutants ------------------------------------------------------------------------------------------------------------
def without(patch: pytest.MonkeyPatch, name: str) -> None:
    """A function of the driver is never called by `Gpu.call`."""
    call = Gpu.call
    patch.setattr(Gpu, "call", lambda self, called, *args: None if called == name else call(self, called, *args))


WRONG = "Arrays are not equal|Not equal to tolerance"
# What is changed, the check that finds it, and how.
MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], Callable[..., None], str]] = {
    "readers wait for no event": (lambda p: without(p, "cuStreamWaitEvent"), check_a_consumer, WRONG),
    "the event of readers is not recorded": (lambda p: without(p, "cuEventRecord"), check_a_consumer, WRONG),
    "writers are told another stream": (
        lambda p: p.setattr(Gpu, "dlpack_stream", LEGACY_STREAM),
        check_a_producer,
        WRONG,
    ),
    "a slot of staging is not waited for": (lambda p: without(p, "cuEventSynchronize"), check_many_small_feeds, WRONG),
    "a slot of staging has no event": (lambda p: without(p, "cuEventRecord"), check_many_small_feeds, WRONG),
    "reading does not wait": (lambda p: without(p, "cuStreamSynchronize"), check_reading, WRONG),
    "much shared memory is not asked for": (
        lambda p: without(p, "cuFuncSetAttribute"),
        check_much_shared_memory,
        "cuLaunchKernel(.|\n)*CUDA_ERROR_INVALID_VALUE",
    ),
    "threads have no context": (lambda p: without(p, "cuCtxSetCurrent"), check_another_thread, "INVALID_CONTEXT"),
    "a kernel lacks a barrier": (
        lambda p: p.setattr(check_a_barrier, "__defaults__", ("",)),
        check_a_barrier,
        "CUDA_ERROR_LAUNCH_FAILED",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(gpu, emulator, target, monkeypatch, name):
    mutate, check, words = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ExecutionError), match=words) as caught:
        check(gpu, emulator, target)
    monkeypatch.undo()
    late_driver.reset()
    del caught  # it kept the check's memory, which cannot be given back, or is yet to be written, before
