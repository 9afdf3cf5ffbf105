"""Names of generated code for `perf`: the map lists every function, where it is, and how long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import numpy as np
import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
import kernelyard.ops
b = FunctionBuilder()
exe = ky.compile(IRModule({"main": b.function(b.op("tanh", b.input("x", (64,))))}), backends=[])
exe(np.ones(64, np.float32))
path = f"/tmp/perf-{os.getpid()}.map"
print(open(path).read() if os.path.exists(path) else "none")
if os.path.exists(path):
    os.unlink(path)
maps = [line.split()[:2] for line in open("/proc/self/maps")]
print(*(span for span, rights in maps if "x" in rights))
"""


def run(value: str | None) -> list[str]:
    environment = {name: text for name, text in os.environ.items() if name != "KERNELYARD_PERF_MAP"}
    environment |= {"KERNELYARD_PERF_MAP": value} if value is not None else {}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_kernels_are_named_where_their_code_is() -> None:
    *lines, executable = run("1")
    named = {name: (int(start, 16), int(size, 16)) for start, size, name in (line.split() for line in lines if line)}
    (start, size), *_ = (place for name, place in named.items() if "tanh" in name)
    assert size > 16
    spans = [tuple(int(end, 16) for end in span.split("-")) for span in executable.split()]
    assert any(low <= start and start + size <= high for low, high in spans)


@pytest.mark.parametrize("value", [None, "0"])
def test_nothing_is_written_unasked(value: str | None) -> None:
    assert run(value)[0] == "none"


def test_a_link_in_the_shared_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.runtime.jit import perf_map

    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f"perf-{os.getpid()}.map").symlink_to(victim)
    monkeypatch.setattr(perf_map, "FOLDER", str(tmp_path))
    perf_map.add_to_perf_map([perf_map.MappedFunction(1, 2, "f")])
    assert victim.read_text() == "kept"
