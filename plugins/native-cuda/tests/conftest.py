"""What the tests of native-cuda share: running functions on the emulator, beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from packaging.version import Version

from kernelyard import dtypes
from kernelyard.errors import DeviceError
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.device.driver import DeviceMemory, DeviceWorkspace
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_cuda import nvrtc
from kernelyard_cuda.compiler import KernelCompiler, find_kernel_compiler
from kernelyard_cuda.driver_api import CudaDriver
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.drivers import EMULATOR, open_device
from kernelyard_native_cuda.drivers.gpu import Gpu
from kernelyard_native_cuda.generator import NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule

TOLERANCES = {
    "float64": (1e-11, 1e-12),
    "float32": (2e-5, 2e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (2e-2, 2e-2),
    "float8_e4m3fn": (0.13, 0.13),
    "float8_e5m2": (0.26, 0.26),
}


def generate(functions: Mapping[str, PrimFunc], arch: str | None = None) -> NativeCudaModule:
    module = NativeCudaGenerator().generate(functions, Target("cuda", arch=arch), {})
    assert isinstance(module, NativeCudaModule)
    return module


def run_on(
    driver: CudaDriver,
    module: NativeCudaModule,
    symbol: str,
    inputs: Sequence[np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> list[np.ndarray]:
    """What a function gives, each tensor in memory of its own."""
    values = dict(symbols or {})
    signature = module.signature(symbol)
    shapes = [np.shape(given) for given in inputs] + [spec.evaluate(values) for spec in signature.outputs]
    arrays = [
        np.empty(shape, dtypes.to_numpy(spec.dtype)) for shape, spec in zip(shapes, signature.tensors, strict=True)
    ]
    held = [DeviceMemory(driver, array.nbytes) for array in arrays]
    for array, given, place in zip(arrays, inputs, held, strict=False):
        array[...] = given
        driver.upload(place.address, array)
    args = [BoundTensor(h.address, a.shape, s.dtype) for h, a, s in zip(held, arrays, signature.tensors, strict=True)]
    call = module.bind(symbol, args, values, BindContext(1, DeviceWorkspace(driver), driver))
    CallTable(call.steps).run()
    for array, place in zip(arrays, held, strict=True):
        driver.download(place.address, array)
    return arrays[len(inputs) :]


def assert_close(actual: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert actual.shape == np.shape(wanted)
    rtol, atol = TOLERANCES.get(dtype, (0, 0))
    if rtol:
        actual, wanted = actual.astype(np.float64), np.asarray(wanted).astype(np.float64)
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)


@pytest.fixture(scope="session")
def emulator() -> CudaDriver:
    try:
        return open_device(EMULATOR)
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")


@pytest.fixture(scope="module")
def gpu(emulator) -> Iterator[Gpu]:
    """The GPU of the late driver; a module has another one by a fixture of its own."""
    from . import late_driver

    with late_driver.late_gpu(emulator) as found:
        yield found


@pytest.fixture
def nothing_goes_wrong(gpu) -> Iterator[None]:
    """Check after a test what the late driver has seen."""
    from . import late_driver

    yield
    late_driver.check_that_nothing_went_wrong()
    late_driver.reset()


@pytest.fixture(scope="module")
def target(gpu) -> Target:
    """What the module's fixture `gpu` runs."""
    return Target("cuda", arch="sm_{}{}".format(*gpu.capability))


class QuickCompiler(KernelCompiler):
    """A compiler that optimizes little: it reads, checks and assembles the same text."""

    def cubin(self, source: str, arch: str, options: Sequence[str] = ()) -> bytes:
        return super().cubin(source, arch, (*options, "--Ofast-compile=max"))


@pytest.fixture(scope="module")
def cubins_compiled_quickly() -> Iterator[None]:
    """Compile in less than half the time, where NVRTC can (12.8), what is to be assembled and never run."""
    found = find_kernel_compiler()
    with pytest.MonkeyPatch.context() as patch:
        if found is not None and found.library and Version(nvrtc.version(found.library)) >= Version("12.8"):
            quick = QuickCompiler(found.name, found.library, found.headers)
            patch.setattr(generator, "find_kernel_compiler", lambda: quick)
        yield


def check_kernel(
    emulator: CudaDriver,
    module: NativeCudaModule,
    symbol: str,
    function: PrimFunc,
    inputs: Sequence[np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> None:
    """Assert that the emulator gives what the interpreter gives for a module's function."""
    found = run_on(emulator, module, symbol, inputs, symbols)
    wanted = evaluate(function, list(inputs), symbols or {})
    for actual, expected, buffer in zip(found, wanted, function.outputs, strict=True):
        assert_close(actual, expected, buffer.dtype)


@pytest.fixture
def check(emulator) -> Callable[..., NativeCudaModule]:
    """`check(function, *inputs, symbols={})`: the emulator gives what the interpreter gives; the module."""

    def checker(function: PrimFunc, *inputs: np.ndarray, symbols: Mapping[str, int] | None = None) -> NativeCudaModule:
        module = generate({"kernel": function})
        check_kernel(emulator, module, "kernel", function, inputs, symbols)
        return module

    return checker
