"""Several kernels in one CUDA source, with grids of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.errors import ArtifactCorruptedError, FrontendError
from kernelyard_cuda.compiler import find_kernel_compiler
from kernelyard_cuda.kernels import CudaKernels, load

SOURCE = """
__device__ float shared_part(float x) { return x * 2; }

// A block for each row; its threads add up the columns through shared memory.
extern "C" __global__ void row_sums(const float* x, float* sums, long long, long long columns, long long) {
  __shared__ float parts[32];
  float sum = 0;
  for (long long i = threadIdx.x; i < columns; i += blockDim.x) sum += x[blockIdx.x * columns + i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (int i = 0; i < 32; ++i) sum += parts[i];
    sums[blockIdx.x] = shared_part(sum);
  }
}

// A block for each row and each 16 columns.
extern "C" __global__ void turned(const float* x, float* y, long long rows, long long columns, long long, long long) {
  long long column = blockIdx.y * 16 + threadIdx.x;
  if (column < columns) y[column * rows + blockIdx.x] = x[blockIdx.x * columns + column];
}

extern "C" __global__ void halved(const float* x, float* y, long long n, long long) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / 2;
}
"""
SYMBOLS = {
    "row_sums": lambda x: nn.Tensor.placeholder(x.shape[:1], "float32"),
    "turned": lambda x: nn.Tensor.placeholder(x.shape[::-1], "float32"),
    "halved": lambda x: nn.Tensor.placeholder(x.shape, "float32"),
}
GRIDS = {
    "row_sums": lambda x, sums: nn.LaunchGrid((x.shape[0],), threads=32),
    "turned": lambda x, y: nn.LaunchGrid((x.shape[0], dims.ceildiv(x.shape[1], 16)), threads=16),
}
SPEC = {"forward": {"x": nn.spec.Tensor(["n", "m"])}}

needs_compilers = pytest.mark.skipif(
    find_kernel_compiler() is None or not shutil.which("g++"),
    reason="a CUDA compiler or a C++ compiler is missing here",
)


class Net(nn.Module):
    def __init__(self, grids: Any = GRIDS) -> None:
        self.extern = nn.SourceModule(SYMBOLS, SOURCE, "cu", arch="sm_90", grids=grids)

    def forward(self, x: nn.Tensor) -> Any:
        return self.extern["halved"](self.extern["row_sums"](x)), self.extern["turned"](self.extern["turned"](x * 3.0))


@needs_compilers
def test_each_kernel_has_its_grid_for_every_size(tmp_path: Path) -> None:
    exe = ky.compile(nn.ModuleSpec(Net(), SPEC, allow_extern=True), target="cuda", backends=[])
    exe.save(tmp_path / "m.kyar")
    for each in (exe, ky.load(tmp_path / "m.kyar")):
        machine = ky.VirtualMachine(each, ky.cuda("emulator"))
        for shape in ((3, 40), (1, 1), (17, 100)):
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            sums, same = machine["forward"](x)
            np.testing.assert_allclose(sums.numpy(), x.sum(axis=1), rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(same.numpy(), x * 3)


@needs_compilers
def test_artifacts_carry_grids_and_check_them() -> None:
    net = Net()
    net.export(SPEC, allow_extern=True)
    kernels = net.extern.load()
    assert isinstance(kernels, CudaKernels)
    data = kernels.save_to_bytes()
    assert load(data, {}).save_to_bytes() == data
    with pytest.raises(ArtifactCorruptedError):
        load(
            data.replace(b'"kernel":"turned"', b'"kernel":"burned"').replace(
                b'"kernel": "turned"', b'"kernel": "burned"'
            ),
            {},
        )


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        (lambda x, sums: nn.LaunchGrid((x.shape[7],)), "grid function of row_sums failed"),
        (lambda x, sums: nn.LaunchGrid((1, 1, 1, 1)), "grid function of row_sums failed"),
        (lambda x, sums: nn.LaunchGrid((1,), threads=2048), "no GPU runs"),
        (lambda x, sums: 3, "grid function of row_sums failed"),
    ],
)
def test_grids_that_cannot_be_are_refused(grid: Any, match: str) -> None:
    with pytest.raises(FrontendError, match=match):
        Net({"row_sums": grid}).export(SPEC, allow_extern=True)


def test_grids_are_of_cuda_kernels() -> None:
    with pytest.raises(FrontendError, match="no CUDA kernel"):
        Net({"other": GRIDS["turned"]})
    with pytest.raises(FrontendError, match="no CUDA kernel"):
        nn.SourceModule({"f": lambda x: x}, "", grids={"f": GRIDS["turned"]})
    with pytest.raises(FrontendError, match="before it is called"):
        Net().extern.load()
