"""What the tests share: programs that are compiled for CUDA, and run on the emulator beside the reference.

Where CUTLASS or NVRTC is missing the backend is used without them: nothing is compiled for a target without an arch, and
what is taken does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims, dtypes
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.plugins.manager import get_manager
from kernelyard.testing import assert_allclose, assert_declined, evaluate
from kernelyard_cutlass.backend import CutlassBackend
from kernelyard_cutlass.runtime import CutlassModule

Build = Callable[..., Var]
Input = tuple[Sequence[Any], str]


@pytest.fixture(scope="package", autouse=True)
def _found() -> Iterator[None]:
    """The backend is active, whatever is installed here."""
    with pytest.MonkeyPatch.context() as patch:
        if CutlassBackend().probe() is not None:
            patch.setattr(CutlassBackend, "probe", lambda self: None)
        get_manager.cache_clear()
        yield
    get_manager.cache_clear()


def module_of(build: Build, *inputs: Input) -> IRModule:
    """A module whose `main` is `build(builder, *parameters)`; an input is a shape and a dtype."""
    b = FunctionBuilder()
    result = build(b, *(b.input(f"x{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(inputs)))
    return IRModule({"main": b.function(*(result if isinstance(result, (list, tuple)) else (result,)))})


def compiled(module: IRModule, arch: str | None = None, **options: Any) -> ky.Executable:
    """The module for CUDA, what CUTLASS takes on CUTLASS; it must keep its word."""
    target = ky.Target("cuda", arch=arch)
    return ky.compile(module, target=target, backends=["cutlass"], options={"cutlass": options}, strict=True)


def values(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Random numbers that every product of these tests can hold."""
    rng = np.random.default_rng(seed)
    if dtypes.is_integer(dtype):
        return rng.integers(-8, 8, shape).astype(dtypes.to_numpy(dtype))
    return (rng.standard_normal(shape) * 0.5).astype(dtypes.to_numpy(dtype))


def feeds_of(module: IRModule, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Random feeds of a module."""
    types = [param.tensor_type for param in module.graph_functions()["main"].params]
    shapes = [[dim if isinstance(dim, int) else dims.evaluate(dim, sizes) for dim in type_.shape] for type_ in types]
    return [values(shape, type_.dtype, seed) for seed, (shape, type_) in enumerate(zip(shapes, types, strict=True))]


def composites(exe: ky.Executable) -> list[str]:
    """Names of the patterns that CUTLASS runs, in order."""
    return [region.pattern for region in exe.report.regions if region.backend == "cutlass"]


def runtime_of(exe: ky.Executable) -> CutlassModule:
    """The module of CUTLASS in an executable."""
    (module,) = [module for module in exe.modules if isinstance(module, CutlassModule)]
    return module


class Programs:
    """Programs of few operators, compiled, looked at, and run."""

    @staticmethod
    def right(exe: ky.Executable, module: IRModule, *given: np.ndarray, dtype: str | None = None, **sizes: int) -> None:
        """On the emulator it gives what the reference gives; feeds are random where they are not given."""
        machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
        feeds = list(given) or feeds_of(module, sizes)
        result = machine["main"](*feeds)
        results = result if isinstance(result, tuple) else (result,)
        for found, wanted in zip(results, evaluate(module, feeds), strict=True):
            assert_allclose(found, wanted, dtype)

    def taken(
        self,
        pattern: str,
        build: Build,
        *inputs: Input,
        options: Mapping[str, Any] | None = None,
        feeds: Sequence[np.ndarray] = (),
        dtype: str | None = None,
        **sizes: int,
    ) -> ky.Executable:
        """The whole program is one composite of that pattern, and right."""
        module = module_of(build, *inputs)
        exe = compiled(module, **(options or {}))
        assert composites(exe) == [f"cutlass.{pattern}"], str(exe.report)
        assert {node.backend for node in exe.report.nodes} <= {"cutlass", "view"}, str(exe.report)
        self.right(exe, module, *feeds, dtype=dtype, **sizes)
        return exe

    def partly(self, patterns: Sequence[str], code: str, build: Build, *inputs: Input, **sizes: int) -> ky.Executable:
        """Parts are composites of those patterns, something was declined with that code, and it is right."""
        module = module_of(build, *inputs)
        exe = compiled(module)
        assert composites(exe) == [f"cutlass.{pattern}" for pattern in patterns], str(exe.report)
        assert_declined(exe, "cutlass", code)
        self.right(exe, module, **sizes)
        return exe

    def declined(self, code: str, build: Build, *inputs: Input, arch: str | None = None, **sizes: int) -> ky.Executable:
        """Nothing of the program is taken, for that reason; it is right."""
        return self.partly([], code, build, *inputs, **sizes)


@pytest.fixture
def programs() -> Programs:
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    return Programs()
