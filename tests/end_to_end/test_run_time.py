"""How compiled programs run: nothing computes but compiled code, nothing is compiled again, no thread too many, and
memory as little as what lives at one time."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import onnx
import pytest
from networks import MAKERS, Network
from small_models import convolution, feeds_of, perceptron

import kernelyard as ky
from kernelyard.runtime.abi import memory
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.program.execution_plan import ExecutionPlan, spans_of
from kernelyard.runtime.program.memory_plan import Lifetime, least_nbytes
from kernelyard.testing import assert_allclose, assert_offloaded

ALL_FEEDS = dict[str, dict[str, np.ndarray]]
BACKENDS = pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=["native-cpu", "dnnl"])


def compiled(model: onnx.ModelProto | Path, backends: list[str]) -> ky.Executable:
    """An executable without the reference interpreter, whose offloading has been seen to."""
    exe = ky.compile(model, backends=backends)
    assert "reference" not in [module.kind for module in exe.modules], exe.report.summary
    if backends:
        assert_offloaded(exe, "dnnl")
    return exe


# --- only compiled code computes --------------------------------------------------------------------------------------
@BACKENDS
def test_numpy_computes_nothing(backends: list[str], tmp_path: Path) -> None:
    sizes = {str(n): feeds_of(perceptron("n"), n) for n in (1, 3, 7)}
    networks = [MAKERS[name](tmp_path) for name in ("sentence-encoder", "efficientnet-lite0")]
    cases: dict[str, tuple[onnx.ModelProto | Path, ALL_FEEDS]] = {
        "perceptron": (perceptron("n"), sizes),
        "convolution": (convolution(), {"only": feeds_of(convolution())}),
        **{each.name: (each.path, {str(i): feeds for i, feeds in enumerate(each.feeds)}) for each in networks},
    }
    expected: dict[str, dict[str, np.ndarray]] = {}
    for name, (model, all_feeds) in cases.items():
        exe = compiled(model, backends)
        exe.threads = 1
        exe.save(tmp_path / f"{name}.kyar")
        flat = {f"{size}/{key}": array for size, feeds in all_feeds.items() for key, array in feeds.items()}
        np.savez(tmp_path / f"{name}.npz", **flat)  # pyright: ignore[reportArgumentType]
        expected[name] = {
            f"{size}/{key}": tensor.numpy()
            for size, feeds in all_feeds.items()
            for key, tensor in exe.run(feeds).items()
        }
    script = Path(__file__).with_name("without_ufuncs.py")
    command = [sys.executable, str(script), *(str(tmp_path / f"{name}.kyar") for name in cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert all(said["caught"]), "the harness lets NumPy compute"
    assert not said["calls"]
    for name, results in expected.items():
        found = pickle.loads((tmp_path / f"{name}.results").read_bytes())
        assert found.keys() == results.keys()
        for key, array in results.items():
            np.testing.assert_array_equal(found[key], array)


# --- nothing is compiled while programs run ---------------------------------------------------------------------------
@BACKENDS
def test_new_shapes_compile_nothing(backends: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exe = compiled(perceptron("n"), backends)
    exe.run(feeds_of(perceptron("n"), 2))  # links the code, once

    compilations: list[str] = []
    for owner, name in (
        (llvm, "parse_assembly"),
        (llvm, "parse_bitcode"),
        (llvm, "create_mcjit_compiler"),
        (llvm, "create_lljit_compiler"),
        (llvm.TargetMachine, "emit_object"),
        (llvm.TargetMachine, "emit_assembly"),
        (llvm.JITLibraryBuilder, "link"),
    ):
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, whole=whole, name=name: (compilations.append(name), whole(*a))[1])
    shapes = (1, 3, 5, 8, 13, 64, 100)
    results = {n: exe.run(feeds_of(perceptron("n"), n))["y"].numpy() for n in shapes}
    assert compilations == []
    if not backends:  # once: kernels that were compiled before are found in the cache
        ky.compile(perceptron(11), backends=[]).run(feeds_of(perceptron(11)))
        assert compilations, "the counter counts nothing"
    for n, found in results.items():
        fixed = ky.compile(perceptron(n), backends=backends)
        assert_allclose(found, fixed.run(feeds_of(perceptron(n)))["y"])


# --- threads ----------------------------------------------------------------------------------------------------------
COUNT_THREADS = """
import json, os, sys, time
import numpy as np
from kernelyard.runtime import load

def threads(least):
    found = []
    while len(found) < 250 and least not in found:  # threads that prepared plans end after a second without work
        time.sleep(0.01)
        found.append(len(os.listdir("/proc/self/task")))
    return min(found)

at_first = len(os.listdir("/proc/self/task"))  # NumPy has some
counts = {}
for number in map(int, sys.argv[2:]):
    exe = load(sys.argv[1], threads=number)
    before = threads(at_first)
    for n in (3, 700):
        exe.run({"x": np.ones((n, 512), np.float32)})
    counts[number] = threads(before + number - 1) - before
print(json.dumps(counts))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted through /proc")
@BACKENDS
def test_one_thread_spawns_none(backends: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((512, 512), dtype=np.float32), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Exp", ["h"], ["y"])]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 512]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, "product", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    compiled(model, backends).save(tmp_path / "product.kyar")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    command = [sys.executable, "-c", COUNT_THREADS, str(tmp_path / "product.kyar"), "1", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
    assert json.loads(done.stdout) == {"1": 0, "2": 1}


@BACKENDS
def test_many_callers_get_what_one_gets(backends: list[str]) -> None:
    """Bit for bit, whatever shapes the others have, and with fewer contexts than callers."""
    for model, sizes in ((perceptron("n"), (1, 2, 5, 33)), (convolution(), (1,))):
        machine = VirtualMachine(compiled(model, backends), threads=1, contexts=2)
        all_feeds = [feeds_of(model, n, seed) for n in sizes for seed in range(3)]
        serial = [machine.run("main", feeds)["y"].numpy().tobytes() for feeds in all_feeds]
        start = threading.Barrier(6)

        def work(first: int, machine=machine, all_feeds=all_feeds, serial=serial, start=start) -> list[int]:
            start.wait(timeout=60)
            turns = [(first + turn) % len(all_feeds) for turn in range(40)]
            return [i for i in turns if machine.run("main", all_feeds[i])["y"].numpy().tobytes() != serial[i]]

        with ThreadPoolExecutor(6) as pool:
            assert [wrong for wrongs in pool.map(work, range(6)) for wrong in wrongs] == []
        assert len(machine.contexts) <= 2


# --- without llvmlite -------------------------------------------------------------------------------------------------
RUN_WITHOUT_LLVMLITE = """
import sys
import numpy as np
for name in ("llvmlite", "llvmlite.binding"):
    sys.modules[name] = None
from kernelyard.runtime import load
from kernelyard.runtime.jit.dispatch_loop import dispatch_loop
assert dispatch_loop() is None
exe = load(sys.argv[1], threads=1)
x = np.load(sys.argv[2])
results = [exe(x).numpy() for _ in range(2)]
assert results[0].tobytes() == results[1].tobytes()
np.save(sys.argv[2], results[1])
"""


def test_libraries_need_no_llvmlite(tmp_path: Path) -> None:
    exe = compiled(perceptron("n"), ["dnnl"])
    assert [module.kind for module in exe.modules] == ["dnnl"]
    feeds = feeds_of(perceptron("n"), 5)
    exe.save(tmp_path / "m.kyar")
    np.save(tmp_path / "x.npy", feeds["x"])
    command = [sys.executable, "-c", RUN_WITHOUT_LLVMLITE, str(tmp_path / "m.kyar"), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    exe.threads = 1
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), exe.run(feeds)["y"].numpy())


# --- memory -----------------------------------------------------------------------------------------------------------
@BACKENDS
def test_memory_is_what_lives_at_one_time(network: Network, backends: list[str]) -> None:
    program = compiled(network.path, backends).programs["main"]
    for feeds in network.feeds:
        plan = ExecutionPlan(program, tuple(feeds[spec.name].shape for spec in program.inputs))
        sizes = [memory.nbytes_of(shape, r.dtype) for shape, r in zip(plan.shapes, program.registers, strict=True)]
        least = least_nbytes([Lifetime(sizes[register], *span) for register, span in spans_of(program).items()])
        # A search for less than some kilobytes would cost more than these.
        assert least <= plan.arena_nbytes <= 1.05 * least + (1 << 16)
