"""A perceptron for digits, 784-128-10, on CUDA by two routes: kernels of our own, and matrix products by cuBLAS.

Both compile where there is no GPU, are saved, and run in another process on the emulator.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, to_text
from kernelyard.placement.partition import partition_for
from kernelyard.runtime.report import Report
from kernelyard.testing import assert_allclose, assert_offloaded
from kernelyard.transform.partition.run_codegen import RunCodegen

pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")
pytest.importorskip("kernelyard_cublas", reason="kernelyard-cublas is not installed")

TARGET = ky.Target("cuda", arch="sm_90")
RNG = np.random.default_rng(0)
W1, B1, W2, B2 = (
    (RNG.standard_normal(shape) * 0.1).astype(np.float32) for shape in ((784, 128), (128,), (128, 10), (10,))
)


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> None:
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def perceptron() -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 784))
    hidden = b.op("nn.relu", b.op("add", b.op("matmul", x, W1), B1))
    return IRModule({"main": b.function(b.op("add", b.op("matmul", hidden, W2), B2))})


def by_numpy(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ W1 + B1, 0) @ W2 + B2


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, 784), dtype=np.float32)


def backends_of(report: Report) -> set[str]:
    return {node.backend for node in report.nodes}


@pytest.fixture(scope="module")
def path_a() -> ky.Executable:
    """Each operator by our own kernels."""
    return ky.compile(perceptron(), target=TARGET, backends=[], strict=True)


@pytest.fixture(scope="module")
def path_b() -> ky.Executable:
    """Matrix products, with bias and relu, by the library."""
    return ky.compile(perceptron(), target=TARGET, backends=["cublas"], strict=True)


def test_path_a_has_kernels_of_our_own_alone(path_a: ky.Executable) -> None:
    assert {module.kind for module in path_a.modules} == {"native-cuda"}
    assert backends_of(path_a.report) == {"native-cuda"}
    assert path_a.target == "cuda arch=sm_90"


def test_path_b_has_both_layers_on_cublas(path_b: ky.Executable) -> None:
    assert_offloaded(path_b, "cublas", "cublas.matmul_bias_relu", count=1)
    assert_offloaded(path_b, "cublas", "cublas.matmul_bias", count=1)
    assert {module.kind for module in path_b.modules} == {"cublas"}
    assert len(path_b.programs["main"].steps) == 2
    assert backends_of(path_b.report) == {"cublas"}


def test_the_stages_put_together_by_hand_give_the_same_modules(path_b: ky.Executable) -> None:
    """partition_for_cublas and RunCodegen; and once more, to the letter, from the text of the partitioned module."""
    placed = ky.partition_for_cublas(perceptron(), target=TARGET)
    assert to_text(placed) == to_text(partition_for("cublas", perceptron()))  # which is for CUDA
    regions = [f for f in placed.graph_functions().values() if f.attrs.get("Codegen") == "cublas"]
    assert len(regions) == 2
    generated = RunCodegen()(placed)
    (by_hand,) = generated.attrs["external_modules"]
    (by_compile,) = path_b.modules
    assert by_hand.save_to_bytes() == by_compile.save_to_bytes()
    assert set(by_hand.constants()) == set(by_compile.constants())
    again = ky.compile(placed, target=TARGET, backends=["cublas"], strict=True)
    assert again.inspect() == path_b.inspect()


@pytest.mark.parametrize("name", ["path_a", "path_b"])
@pytest.mark.parametrize("count", [1, 33])
def test_both_agree_with_numpy_on_the_emulator(name: str, count: int, request: pytest.FixtureRequest) -> None:
    exe = request.getfixturevalue(name)
    found = ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](images(count))
    assert_allclose(found, by_numpy(images(count)))


RERUN = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
np.save(sys.argv[3], machine["main"](np.load(sys.argv[2])).numpy())
assert not {"kernelyard.ir", "kernelyard.driver", "kernelyard.placement"} & set(sys.modules)
"""


@pytest.mark.parametrize("name", ["path_a", "path_b"])
def test_both_are_saved_and_run_in_another_process(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    artifact, feeds, results = (str(tmp_path / file) for file in ("mlp.kyar", "x.npy", "y.npy"))
    request.getfixturevalue(name).save(artifact)
    np.save(feeds, images(5))
    subprocess.run([sys.executable, "-c", RERUN, artifact, feeds, results], check=True)
    assert_allclose(np.load(results), by_numpy(images(5)))
