"""What the tests of cudnn share: programs run on the emulator, and cuDNN itself where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import BackendUnavailableError, DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.runtime.execute.executable import Executable
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_cudnn import _native

from .stub_driver import load_stub

H200 = ky.Target("cuda", arch="sm_90")
Array = np.ndarray
Build = Callable[[FunctionBuilder], Var]


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Between -1/2 and 1/2."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.random(shape) - 0.5).astype(ky.dtypes.to_numpy(dtype))


def module_of(build: Build) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.function(build(b))})


def feeds_of(module: IRModule, **sizes: int) -> list[Array]:
    """Numbers for the inputs; symbols have these sizes."""
    from kernelyard import dims

    params = module.graph_functions()["main"].params
    shapes = [[dims.evaluate(dim, sizes) for dim in param.tensor_type.shape] for param in params]
    return [
        numbers(*shape, dtype=p.tensor_type.dtype, seed=n)
        for n, (p, shape) in enumerate(zip(params, shapes, strict=True))
    ]


def compiled(module: IRModule, target: ky.Target = H200, **options: Any) -> Executable:
    return ky.compile(module, target=target, backends=["cudnn"], strict=True, options={"cudnn": options})


@pytest.fixture(scope="session")
def machine() -> Callable[[Executable], Any]:
    """`machine(exe)` runs it on the emulator."""
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    return lambda exe: ky.VirtualMachine(exe, ky.cuda("emulator"))["main"]


@pytest.fixture
def check(machine: Any) -> Callable[..., Executable]:
    """`check(build, pattern, sizes={...})`: all is one composite of that pattern, and right."""

    def checker(
        build: Build,
        pattern: str,
        feeds: Sequence[Array] | None = None,
        sizes: Sequence[dict[str, int]] = ({},),
        **options: Any,
    ) -> Executable:
        module = module_of(build)
        exe = compiled(module, **options)
        assert_offloaded(exe, "cudnn", pattern, at_least=1)
        assert len(exe.report.regions) == 1, str(exe.report)
        run = machine(exe)
        for given in sizes:
            arrays = feeds_of(module, **given) if feeds is None else feeds
            assert_allclose(np.asarray(run(*arrays).numpy()), evaluate(module, arrays)[0])
        return exe

    return checker


def declined(build: Build, target: ky.Target = H200, **options: Any) -> list[tuple[str, str]]:
    """Codes and messages of what cudnn declines of a program."""
    exe = compiled(module_of(build), target, **options)
    return [(each.code, each.message) for each in exe.report.declined if each.backend == "cudnn"]


@pytest.fixture(scope="session")
def cudnn(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The frontend's module, ready to plan without a device."""
    try:
        _native.load()
    except BackendUnavailableError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    missing = load_stub(tmp_path_factory.mktemp("driver"))
    if missing:
        pytest.skip(f"there is no {missing}")
    return _native.load_for_planning()
