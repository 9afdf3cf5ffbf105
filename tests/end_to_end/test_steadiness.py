"""Files and executables stay whole whatever happens to a process: kill, a full disk, Ctrl-C, 10,000 loads."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import ArtifactError
from kernelyard.ir import FunctionBuilder, IRModule

LOADS = 400
LOADS_OF_A_CAMPAIGN = 10_000
KEPT = 2 << 20  # bytes that the allocators of Python and C may keep back

SAVER = """
import sys
import kernelyard as ky
data = open(sys.argv[1], "rb").read()
exe = ky.load(data)
print("ready", flush=True)
while True:
    exe.save(sys.argv[2])
"""


@pytest.fixture(scope="module")
def exe():
    b = FunctionBuilder()
    x = b.input("x", (4, 64))
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return ky.compile(IRModule({"main": b.function(b.op("tanh", b.op("matmul", x, weight)))}), backends=[])


X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_loads_runs_and_frees_keep_no_memory(exe, campaign):
    data, wanted = exe.to_bytes(), exe(X).numpy()
    before = 0
    for number in range(LOADS if campaign is None else LOADS_OF_A_CAMPAIGN):
        assert np.array_equal(ky.load(data)(X).numpy(), wanted)
        if number == 100:
            before = resident()
    assert resident() - before <= KEPT


def test_a_saver_that_is_killed_leaves_a_whole_file_or_none(exe, tmp_path):
    given, path = tmp_path / "given.kyar", tmp_path / "saved.kyar"
    exe.save(given)
    random = np.random.default_rng(0)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", SAVER, given, path], stdout=subprocess.PIPE) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == b"ready\n"
            time.sleep(random.uniform(0, 0.05))
            saver.kill()
        if path.exists():
            assert path.read_bytes() == given.read_bytes()
    exe.save(path)
    assert path.read_bytes() == given.read_bytes()


def test_a_full_disk_is_an_error_and_leaves_nothing(exe, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(ArtifactError):
            exe.save(tmp_path / "saved.kyar")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert os.listdir(tmp_path) == []
    exe.save(tmp_path / "saved.kyar")


# Where a weak reference's callback is interrupted, Python drops the interrupt and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_moment_leaves_the_executable_usable(exe, campaign):
    wanted = exe(X).numpy()
    random = np.random.default_rng(campaign or 0)
    interrupted = 0
    for _ in range(200):
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-4))
            for _ in range(1000):
                exe(X)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert np.array_equal(exe(X).numpy(), wanted)
    assert interrupted
