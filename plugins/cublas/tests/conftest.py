"""What the tests share: programs that are compiled for CUDA, and run on the emulator beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims, dtypes
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.runtime.cuda_driver import CudaDriver
from kernelyard.runtime.report import PlacedRegion
from kernelyard.testing import assert_allclose, assert_declined, evaluate
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.runtime import CublasRuntime, api_of

Build = Callable[..., Var | Sequence[Var]]
Input = tuple[Sequence[Any], str]

APPROXIMATE = {"approximate_gelu": True}


def module_of(build: Build, *inputs: Input) -> IRModule:
    """A module whose `main` is `build(builder, *parameters)`; an input is a shape and a dtype."""
    b = FunctionBuilder()
    result = build(b, *(b.input(f"x{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(inputs)))
    return IRModule({"main": b.function(*(result if isinstance(result, (list, tuple)) else (result,)))})


def compiled(module: IRModule, arch: str | None = None, **options: Any) -> ky.Executable:
    """The module for CUDA, what cuBLAS takes on cuBLAS; it must keep its word."""
    target = ky.Target("cuda", arch=arch)
    return ky.compile(module, target=target, backends=["cublas"], options={"cublas": options}, strict=True)


def values(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Random numbers that every product of these tests can hold."""
    rng = np.random.default_rng(seed)
    if dtypes.is_integer(dtype):
        return rng.integers(-8, 8, shape).astype(dtypes.to_numpy(dtype))
    return (rng.standard_normal(shape) * 0.5).astype(dtypes.to_numpy(dtype))


def feeds_of(module: IRModule, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Random feeds of a module."""
    params = module.graph_functions()["main"].params
    types = [param.tensor_type for param in params]
    shapes = [[dim if isinstance(dim, int) else dims.evaluate(dim, sizes) for dim in type_.shape] for type_ in types]
    return [values(shape, type_.dtype, seed) for seed, (shape, type_) in enumerate(zip(shapes, types, strict=True))]


def region_of(exe: ky.Executable) -> PlacedRegion:
    """The one region that cuBLAS has."""
    (region,) = [region for region in exe.report.regions if region.backend == "cublas"]
    return region


def runtime_of(exe: ky.Executable) -> CublasRuntime:
    """The module of cuBLAS in an executable."""
    (module,) = [module for module in exe.modules if isinstance(module, CublasRuntime)]
    return module


class Products:
    """Programs of few operators."""

    def __init__(self, emulator: CudaDriver | None) -> None:
        self._emulator = emulator

    @property
    def emulator(self) -> CudaDriver:
        if self._emulator is None:
            pytest.skip("there is no C++ compiler, which the emulator needs")
        return self._emulator

    @property
    def api(self) -> EmulatedLt:
        """What stands in for the library."""
        api = api_of(self.emulator)
        assert isinstance(api, EmulatedLt)
        return api

    def right(self, exe: ky.Executable, module: IRModule, dtype: str | None = None, **sizes: int) -> None:
        """On the emulator it gives what the reference gives."""
        machine = ky.VirtualMachine(exe, ky.cuda(self.emulator.index))
        for given in (sizes, {name: size + 3 for name, size in sizes.items()}):
            feeds = feeds_of(module, given)
            result = machine["main"](*feeds)
            results = result if isinstance(result, tuple) else (result,)
            for found, wanted in zip(results, evaluate(module, feeds), strict=True):
                assert_allclose(found, wanted, dtype)

    def taken(
        self, pattern: str, build: Build, *inputs: Input, options: Mapping[str, Any] | None = None, **sizes: int
    ) -> ky.Executable:
        """The whole program is one composite of that pattern, and right."""
        module = module_of(build, *inputs)
        exe = compiled(module, **(options or {}))
        assert [region.pattern for region in exe.report.regions] == [f"cublas.{pattern}"], str(exe.report)
        assert {node.backend for node in exe.report.nodes} <= {"cublas", "view"}, str(exe.report)
        self.right(exe, module, **sizes)
        return exe

    def partly(
        self, pattern: str, code: str, build: Build, *inputs: Input, at: str | None = None, **sizes: int
    ) -> ky.Executable:
        """A part of the program is one composite of that pattern, the rest was declined with that code; it is right."""
        module = module_of(build, *inputs)
        exe = compiled(module)
        assert region_of(exe).pattern == f"cublas.{pattern}", str(exe.report)
        assert {node.backend for node in exe.report.nodes} > {"cublas"}, str(exe.report)
        assert_declined(exe, "cublas", code, at and f"cublas.{at}")
        self.right(exe, module, **sizes)
        return exe

    def declined(self, code: str, build: Build, *inputs: Input, arch: str | None = None, **sizes: int) -> ky.Executable:
        """Nothing of the program is taken, for that reason; it is right."""
        module = module_of(build, *inputs)
        exe = compiled(module, arch)
        assert not [region for region in exe.report.regions if region.backend == "cublas"], str(exe.report)
        assert_declined(exe, "cublas", code)
        self.right(exe, module, **sizes)
        return exe


@pytest.fixture(scope="session")
def emulator() -> CudaDriver | None:
    try:
        driver = ky.cuda("emulator").open()
    except DeviceError:
        return None
    assert isinstance(driver, CudaDriver)
    return driver


@pytest.fixture
def products(emulator: CudaDriver | None) -> Products:
    return Products(emulator)
