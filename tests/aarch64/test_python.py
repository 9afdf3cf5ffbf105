"""The core and native-cpu in a Python for 64-bit ARM, on an emulated CPU: `make test-aarch64` makes that Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributions import ROOT
from ocr import model_paths

PYTHON = ROOT / ".aarch64" / "python"
EXAMPLE = ROOT / "examples" / "read_page"
SECONDS = 3000  # the emulator takes 10 to 30 times as long as the machine
SVE256, SVE512 = (f"max,sve-default-vector-length={bits // 8}" for bits in (256, 512))

pytestmark = pytest.mark.aarch64


def run(python: Path | str, *arguments: str, path: tuple[Path, ...] = (), cpu: str = "max") -> str:
    """Return the output of a program on the machine whose Python is given; cpu: which one is emulated."""
    paths = os.pathsep.join(map(str, path))
    environment = {**os.environ, "PYTHONPATH": paths, "KERNELYARD_AARCH64_CPU": cpu}
    environment["KERNELYARD_PLUGIN_TIMEOUT"] = str(SECONDS)  # that of a machine is too short for the emulator
    done = subprocess.run(
        [python, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("cpu", "vectors"), [("max,sve=off", []), (SVE256, ["sve256"])])
def test_the_page_is_read_as_here(tmp_path: Path, cpu: str, vectors: list[str]) -> None:
    """All networks are compiled there, by native-cpu alone; each result of a network is compared with this machine's."""
    models = tmp_path / "models"  # the networks' package alone, of those installed for this machine
    models.mkdir()
    (models / "rapidocr").symlink_to(model_paths()["detector"].parents[1])
    program = str(Path(__file__).with_name("read_page.py"))
    run(sys.executable, program, str(tmp_path / "here.npz"), path=(EXAMPLE,))
    run(PYTHON, program, str(tmp_path / "there.npz"), path=(EXAMPLE, models), cpu=cpu)
    here, there = (np.load(tmp_path / f"{name}.npz") for name in ("here", "there"))
    assert there["machine"].tolist() == [
        "aarch64",
        f"aarch64 with {', '.join(['bf16, dotprod, fullfp16, i8mm', *vectors])}",
    ]
    assert here["lines"].tolist() == there["lines"].tolist()
    assert len(here["lines"]) == 4
    assert set(here) == set(there)
    for name in {*here} - {"lines", "machine"}:
        np.testing.assert_allclose(there[name], here[name], rtol=0, atol=1e-4, err_msg=name)


SAVE = """
import sys
import numpy as np
import kernelyard as ky
import kernelyard.ops
from kernelyard.ir import FunctionBuilder, IRModule

b = FunctionBuilder()
module = IRModule({"main": b.function(b.op("nn.softmax", b.input("x", (3, 5)), axis=1))})
cpus = "cortex-a72", "neoverse-n2", "neoverse-v1"
least, better, wide = (ky.Target("cpu", arch="aarch64", mcpu=cpu) for cpu in cpus)
ky.compile(module, target=least, backends=[]).save(sys.argv[1], [ky.compile(module, target=better, backends=[])])
ky.compile(module, target=better, backends=[]).save(sys.argv[2])
ky.compile(module, target=wide, backends=[]).save(sys.argv[3])
"""
LOAD = """
import sys
import numpy as np
import kernelyard as ky
from kernelyard.errors import BackendUnavailableError

exe = ky.load(sys.argv[1])
print(exe.target)
print(round(float(np.asarray(exe(np.ones((3, 5), np.float32))).sum()), 4))
for path in sys.argv[2:]:
    try:
        print(ky.load(path).target)
    except BackendUnavailableError as error:
        print(error.found)
"""
LEAST, BETTER = (f"cpu arch=aarch64 mcpu={cpu}" for cpu in ("cortex-a72", "neoverse-n2"))


@pytest.mark.parametrize(
    ("cpu", "said"),
    [
        ("cortex-a72", [LEAST, "3.0", "no bf16, dotprod, fullfp16, i8mm", "no bf16, dotprod, fullfp16, i8mm, sve256"]),
        (SVE256, [BETTER, "3.0", BETTER, "cpu arch=aarch64 mcpu=neoverse-v1"]),
        (SVE512, [BETTER, "3.0", BETTER, "no sve256; SVE's vectors have 512 bits here"]),
    ],
)
def test_an_artifact_made_here_takes_the_code_for_the_cpu_there(tmp_path: Path, cpu: str, said: list[str]) -> None:
    files = [str(tmp_path / name) for name in ("fat.kyar", "new.kyar", "wide.kyar")]
    run(sys.executable, "-c", SAVE, *files)
    assert run(PYTHON, "-c", LOAD, *files, cpu=cpu).splitlines() == said
