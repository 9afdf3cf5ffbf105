"""What the tests of native-cpu share: running a PrimFunc as a kernel, beside the interpreter."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.errors import BackendUnavailableError
from kernelyard.ir import IRModule
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard.transform.layout.pack_constants import PackConstants
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_native_cpu.generator import NativeCpuGenerator
from kernelyard_native_cpu.machine import Machine, check_host_runs, resolve_machine
from kernelyard_native_cpu.runtime import NativeCpuModule
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import make_plan

Runner = Callable[..., list[np.ndarray]]
PAGE = mmap.PAGESIZE


def skip_beyond_host(mcpu: str | None) -> None:
    """Skip a test that runs code for a CPU whose features this one lacks."""
    try:
        check_host_runs(resolve_machine(mcpu))
    except BackendUnavailableError as error:
        pytest.skip(f"this CPU runs no code for {mcpu}: {error.found}")


def kernels(module: IRModule, packed_for: Machine | None = None) -> dict[str, PrimFunc]:
    """Return the loop-level functions that integer products of a module are legalized to.

    packed_for: of constants that are packed for a machine.
    """
    legal = get_pipeline("legalize")(get_pipeline("integer_products")(get_pipeline("simplify")(module)))
    if packed_for is not None:
        legal = PackConstants(lambda function, inputs: choose_packings(function, inputs, packed_for))(legal)
    return {name: f for name, f in legal.functions.items() if isinstance(f, PrimFunc)}


def plan_of_product(module: IRModule, machine: Machine, is_packed: bool = False) -> Plan:
    """Return the plan of the one product of a module, as scheduled for a machine."""
    found = kernels(module, machine if is_packed else None)
    stages = [stage for f in found.values() for group in make_groups(f) for stage in group.stages]
    (stage,) = (stage for stage in stages if len(stage.reduce) > 1)
    return make_plan(stage, frozenset(), {}, machine)


class GuardedMemory:
    """Memory that ends where a page begins that nobody may touch: a kernel that goes beyond it crashes at once."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._protect = ctypes.CDLL(None).mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def address(self, nbytes: int) -> int:
        """The start of `nbytes`; it is as aligned as they allow."""
        pages = -(-max(nbytes, 1) // PAGE)
        region = mmap.mmap(-1, (pages + 2) * PAGE)
        self._maps.append(region)
        base = ctypes.addressof(ctypes.c_char.from_buffer(region))
        for guard in (base, base + (pages + 1) * PAGE):
            assert self._protect(guard, PAGE, 0) == 0
        return base + (pages + 1) * PAGE - nbytes

    def array(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Such memory as an array, filled with bytes that make their use visible."""
        nbytes = memory.nbytes_of(shape, dtype)
        if not nbytes:
            return np.empty(shape, dtypes.to_numpy(dtype))
        raw = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(self.address(nbytes)), np.uint8)
        raw[...] = 0xC3
        return memory.view_of(raw, shape, dtype)


def compile_all(functions: Mapping[str, PrimFunc], mcpu: str | None = None) -> NativeCpuModule:
    module = NativeCpuGenerator().generate(functions, Target("cpu", mcpu=mcpu), {})
    assert isinstance(module, NativeCpuModule)
    return module


def compile_one(function: PrimFunc, mcpu: str | None = None) -> NativeCpuModule:
    return compile_all({"kernel": function}, mcpu)


def run_module(
    module: NativeCpuModule,
    symbol: str,
    inputs: Sequence[np.ndarray],
    symbols: dict[str, int] | None = None,
    threads: int = 1,
) -> list[np.ndarray]:
    """Bind and run in guarded memory."""
    values = dict(symbols or {})
    signature = module.signature(symbol)
    guarded = GuardedMemory()
    tensors: list[np.ndarray] = []
    for spec, given in zip(signature.inputs, inputs, strict=True):
        tensors.append(guarded.array(np.shape(given), spec.dtype))
        tensors[-1][...] = given
    outputs = [guarded.array(spec.evaluate(values), spec.dtype) for spec in signature.outputs]
    tensors += outputs
    specs = signature.tensors
    args = [BoundTensor(memory.address_of(a), a.shape, s.dtype) for a, s in zip(tensors, specs, strict=True)]
    context = BindContext(threads, lambda nbytes: guarded.address(memory.align(nbytes)))
    call = module.bind(symbol, args, values, context)
    CallTable(call.steps).run()
    return [array.copy() for array in outputs]


@pytest.fixture(scope="session")
def call_kernel() -> Runner:
    """`call_kernel(module, symbol, inputs, symbols={}, threads=1)`: what a kernel of a module gives."""
    return run_module


@pytest.fixture(scope="session")
def compile_function() -> Callable[..., NativeCpuModule]:
    """`compile_function(function, mcpu=None)`: a module with the one kernel "kernel"."""
    return compile_one


@pytest.fixture
def run() -> Runner:
    """`run(function, *inputs, symbols={}, threads=1, mcpu=None)`: what the kernel gives."""

    def runner(function: PrimFunc, *inputs: np.ndarray, symbols=None, threads: int = 1, mcpu: str | None = None):
        return run_module(compile_one(function, mcpu), "kernel", inputs, symbols, threads)

    return runner


@pytest.fixture
def check(run: Runner) -> Callable[..., None]:
    """`check(function, *inputs, ...)`: the kernel gives what the interpreter gives."""

    def checker(function: PrimFunc, *inputs: np.ndarray, symbols=None, rtol: float = 1e-5, atol: float = 1e-6, **how):
        found = run(function, *inputs, symbols=symbols, **how)
        wanted = evaluate(function, list(inputs), symbols or {})
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(
                actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
            )

    return checker
