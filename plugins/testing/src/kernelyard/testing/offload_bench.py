"""Test which programs a backend takes: compile small ones, check what was offloaded, then the numbers.

Example:
    >>> from kernelyard.testing.offload_bench import OffloadBench
    >>> bench = OffloadBench("dnnl")
    >>> build = lambda b, x, w: b.op("nn.relu", b.op("matmul", x, w))
    >>> exe = bench.taken("matmul", build, ((4, 8), "float32"), ((8, 6), "float32"))
    >>> bench.composites(exe)
    ['dnnl.matmul']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.runtime.device.device import Device
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.report_words import VIEW
from kernelyard.testing.assertions import assert_allclose, assert_declined
from kernelyard.testing.conformance.place import device_of
from kernelyard.testing.reference import evaluate

Build = Callable[..., Var | Sequence[Var]]  # builder, then a variable for each input
Input = tuple[Sequence[Dim], str]  # shape, dtype


def module_of(build: Build, *inputs: Input) -> IRModule:
    """Return a module whose `main` is `build(builder, *parameters)`."""
    b = FunctionBuilder()
    result = build(b, *(b.input(f"x{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(inputs)))
    return IRModule({"main": b.function(*((result,) if isinstance(result, Var) else result))})


def values(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Return random numbers whose products every dtype can hold: integers of [-8, 8), floats of deviation 1/2."""
    rng = np.random.default_rng(seed)
    if dtypes.is_integer(dtype):
        return rng.integers(-8, 8, shape).astype(dtypes.to_numpy(dtype))
    return (rng.standard_normal(shape) * 0.5).astype(dtypes.to_numpy(dtype))


def feeds_of(module: IRModule, /, **sizes: int) -> list[np.ndarray]:
    """Return random inputs for the parameters of `main`; `sizes` are those of the symbols."""
    types = [param.tensor_type for param in module.graph_functions()["main"].params]
    shapes = [[dims.evaluate(dim, sizes) for dim in type_.shape] for type_ in types]
    return [values(shape, type_.dtype, seed) for seed, (shape, type_) in enumerate(zip(shapes, types, strict=True))]


def skip_without(device: Device) -> None:
    """Skip the test where the device cannot be opened, with the reason."""
    try:
        device.require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.found}; {error.hint}")


class OffloadBench:
    """Compile for one backend, and run on the first device of its first target; for CUDA that is the emulator.

    arch: what is compiled for, where a call names no other. growth: each program is run again by the same machine with
    symbols that are larger by so much. Patterns are named without the backend's prefix.
    """

    def __init__(self, backend: str, arch: str | None = None, growth: int = 0) -> None:
        self.backend = backend
        self.arch = arch
        self.growth = growth

    @cached_property
    def device(self) -> Device:
        """Return the device that programs run on."""
        return device_of(self.backend)

    def compiled(self, module: IRModule, arch: str | None = None, **options: Any) -> Executable:
        """Compile a module for this backend, with its options; a broken promise is an error."""
        target = ky.Target(self.device.kind, arch=arch or self.arch)
        return ky.compile(module, target=target, backends=[self.backend], options={self.backend: options}, strict=True)

    def composites(self, exe: Executable) -> list[str]:
        """Return the patterns that the backend runs, in order."""
        return [region.pattern for region in exe.report.regions if region.backend == self.backend]

    def right(
        self, exe: Executable, module: IRModule, *feeds: np.ndarray, dtype: str | None = None, **sizes: int
    ) -> None:
        """Assert that the program gives what the reference gives, for these feeds or for random ones.

        sizes: of the symbols. dtype: its tolerance in place of the outputs' own.
        """
        machine = ky.VirtualMachine(exe, self.device)
        every = [{name: size + more for name, size in sizes.items()} for more in sorted({0, self.growth})]
        for given in [feeds] if feeds else [feeds_of(module, **each) for each in every]:
            result = machine["main"](*given)
            results = result if isinstance(result, tuple) else (result,)
            for found, wanted in zip(results, evaluate(module, given), strict=True):
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
    ) -> Executable:
        """Assert that the whole program is one composite of that pattern, and right."""
        module = module_of(build, *inputs)
        exe = self.compiled(module, **(options or {}))
        assert self.composites(exe) == self._qualify([pattern]), str(exe.report)
        assert not self._elsewhere(exe), str(exe.report)
        self.right(exe, module, *feeds, dtype=dtype, **sizes)
        return exe

    def partly(
        self,
        patterns: Sequence[str],
        code: str,
        build: Build,
        *inputs: Input,
        at: str | None = None,
        arch: str | None = None,
        **sizes: int,
    ) -> Executable:
        """Assert that parts are composites of those patterns, the rest was declined with that code, and all is right.

        at: the pattern that was declined.
        """
        module = module_of(build, *inputs)
        exe = self.compiled(module, arch)
        assert self.composites(exe) == self._qualify(patterns), str(exe.report)
        assert self._elsewhere(exe), str(exe.report)
        assert_declined(exe, self.backend, code, at and f"{self.backend}.{at}")
        self.right(exe, module, dtype=None, **sizes)
        return exe

    def declined(self, code: str, build: Build, *inputs: Input, arch: str | None = None, **sizes: int) -> Executable:
        """Assert that nothing of the program is taken, for that reason, and that it is right."""
        return self.partly([], code, build, *inputs, at=None, arch=arch, **sizes)

    def _qualify(self, patterns: Sequence[str]) -> list[str]:
        return [f"{self.backend}.{pattern}" for pattern in patterns]

    def _elsewhere(self, exe: Executable) -> set[str]:
        """Return the other backends that run something."""
        return {node.backend for node in exe.report.nodes} - {self.backend, VIEW}
