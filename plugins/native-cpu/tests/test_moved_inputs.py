"""Large inputs and results stay where they are: kernels are told their address, by a quick call as by the way through Python."""

from __future__ import annotations

import types

import numpy as np

import kernelyard as ky
import kernelyard.ops  # declares the operators
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.execute.call_limit import CallLimit

RNG = np.random.default_rng(3)


def test_calls_of_either_way_see_their_own_feeds() -> None:
    b = FunctionBuilder()
    x = b.input("x", (64, 128))  # 32 KB
    total = b.op("sum", b.op("multiply", x, b.op("exp", x)), axes=(1,), keepdims=False)
    exe = ky.compile(IRModule({"main": b.function(total)}), backends=[])
    vm = ky.VirtualMachine(exe)
    room = RNG.standard_normal(3 * 64 * 128 + 16).astype(np.float32)
    first = -room.ctypes.data % 64 // 4
    arrays = [room[first + start : first + start + 64 * 128].reshape(64, 128) for start in (0, 64 * 128, 1, 0, 2, 4)]
    arrays += [np.asfortranarray(arrays[0]), arrays[0]]
    for array in (*arrays, *reversed(arrays)):
        np.testing.assert_allclose(vm["main"](array), (array * np.exp(array)).sum(1), rtol=1e-4, atol=1e-3)
    (context,) = vm.contexts._contexts
    ((_, bound_program),) = context.latest.values()
    assert isinstance(bound_program.try_fast_path, types.BuiltinFunctionType)
    vm.set_instrument(lambda *_: None)
    np.testing.assert_allclose(vm["main"](arrays[1]), (arrays[1] * np.exp(arrays[1])).sum(1), rtol=1e-4, atol=1e-3)
    vm.set_instrument(None)
    for array in arrays:
        np.testing.assert_allclose(vm["main"](array), (array * np.exp(array)).sum(1), rtol=1e-4, atol=1e-3)


def test_large_results_are_written_where_they_stay() -> None:
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 64))
    results = b.tuple(b.op("nn.relu", x), b.op("sum", x, axes=(0, 1), keepdims=False))
    exe = ky.compile(IRModule({"main": b.function(results)}), backends=[])
    vm = ky.VirtualMachine(exe)
    feeds = [RNG.standard_normal((1024, 64)).astype(np.float32) for _ in range(4)]  # 256 KB
    kept = [vm["main"](each) for each in feeds]
    (context,) = vm.contexts._contexts
    ((_, bound_program),) = context.latest.values()
    assert isinstance(bound_program.try_fast_path, types.BuiltinFunctionType)
    given = np.empty_like(feeds[0])
    vm.function("main").run_within(CallLimit(), {"x": feeds[1]}, {exe.outputs[0].name: given})
    np.testing.assert_array_equal(given, np.maximum(feeds[1], 0))
    vm.set_instrument(lambda *_: None)
    kept.append(vm["main"](feeds[0]))
    vm.set_instrument(None)
    for each, (large, small) in zip([*feeds, feeds[0]], kept, strict=True):
        np.testing.assert_array_equal(large, np.maximum(each, 0))
        np.testing.assert_allclose(small, each.sum(), rtol=1e-3, atol=1e-2)
