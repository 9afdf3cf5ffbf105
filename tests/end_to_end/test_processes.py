"""One executable in several processes: forked, in pools, and while threads of the parent call it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_offloaded

COMMON = """
import os, signal, sys, threading, warnings
import numpy as np
from kernelyard.runtime import load

warnings.simplefilter("ignore")  # of what forks and has threads
exe = load(sys.argv[1], threads=2)
feeds = [{"x": np.full((rows, 64), rows, np.float32)} for rows in (1, 7, 300)]

def right():
    signal.alarm(60)  # a child that hangs has failed
    return all((np.asarray(exe.run(each)["output_0"]) == each["x"]).all() for each in feeds)

def in_child(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    assert os.waitpid(child, 0)[1] == 0

def worker(_=None):
    return right()
"""
PREFORK = """
children = []
for _ in range(4):  # a server that loads, forks its workers, and goes on
    child = os.fork()
    if child == 0:
        os._exit(0 if right() and right() else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
assert right()
in_child(lambda: right() and (in_child(right) or right()))
"""
THREADS = """
assert right()
stop = threading.Event()

def call():
    while not stop.is_set():
        for each in feeds:
            exe.run(each)

threads = [threading.Thread(target=call) for _ in range(5)]
for each in threads:
    each.start()
for _ in range(10):
    in_child(right)
stop.set()
for each in threads:
    each.join()
assert right()
"""
PLANNING = """
stop = threading.Event()

def plan(first):
    rows = first
    while not stop.is_set():
        rows = rows % 200 + 2  # sizes that are new all the time, as few are kept
        exe.run({"x": np.ones((rows, 64), np.float32)})

def right_for_new_sizes():
    return right() and exe.run({"x": np.ones((9999, 64), np.float32)})["output_0"].shape == (9999, 64)

threads = [threading.Thread(target=plan, args=(first,), daemon=True) for first in (10, 11)]
for each in threads:
    each.start()
for _ in range(15):
    in_child(right_for_new_sizes)
stop.set()
for each in threads:
    each.join()
assert right()
"""
POOLS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

if __name__ == "__main__":
    assert right()
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            assert all(pool.map(worker, range(4)))
            futures = [pool.submit(exe.run, each) for each in feeds]
            assert all((np.asarray(f.result()["output_0"]) == each["x"]).all() for f, each in zip(futures, feeds))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map(worker, range(4)))
"""


@pytest.fixture(scope="module", params=[[], ["dnnl"]], ids=["native-cpu", "dnnl"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = FunctionBuilder()
    value = b.input("x", (dims.symbol("n"), 64))
    for _ in range(5):
        value = b.op("nn.relu", b.op("matmul", value, np.eye(64, dtype=np.float32)))
    exe = ky.compile(IRModule({"main": b.function(value)}), backends=request.param, strict=True)
    if request.param:
        assert_offloaded(exe, "dnnl")
    path = tmp_path_factory.mktemp("model") / "m.kyar"
    exe.save(path)
    return path


@pytest.mark.parametrize("code", [PREFORK, THREADS, PLANNING, POOLS], ids=["prefork", "threads", "planning", "pools"])
def test_children_compute(artifact: Path, tmp_path: Path, code: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(COMMON + code)
    done = subprocess.run([sys.executable, script, artifact], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
