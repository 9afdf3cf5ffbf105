"""What the tests share: programs that are compiled for CUDA, and run on the emulator beside the reference."""

from __future__ import annotations

import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.runtime.report_entries import PlacedRegion
from kernelyard.testing.offload_bench import OffloadBench, skip_without
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.runtime import CublasRuntime, api_of
from kernelyard_cuda.driver_api import CudaDriver

APPROXIMATE = {"approximate_gelu": True}


def region_of(exe: ky.Executable) -> PlacedRegion:
    """The one region that cuBLAS has."""
    (region,) = [region for region in exe.report.regions if region.backend == "cublas"]
    return region


def runtime_of(exe: ky.Executable) -> CublasRuntime:
    """The module of cuBLAS in an executable."""
    (module,) = [module for module in exe.modules if isinstance(module, CublasRuntime)]
    return module


class Products(OffloadBench):
    """Programs of few operators, and what stands in for the library."""

    @property
    def emulator(self) -> CudaDriver:
        driver = self.device.open()
        assert isinstance(driver, CudaDriver)
        return driver

    @property
    def api(self) -> EmulatedLt:
        """What stands in for the library."""
        api = api_of(self.emulator)
        assert isinstance(api, EmulatedLt)
        return api


BENCH = Products("cublas", growth=3)
compiled = BENCH.compiled


@pytest.fixture
def products() -> Products:
    skip_without(BENCH.device)
    return BENCH
