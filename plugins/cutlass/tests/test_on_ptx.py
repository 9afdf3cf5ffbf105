"""Execute the PTX of templates by the interpreter; it gives what stands in for them on the emulator.

Both get the arguments of one launch, so that the stand-ins in NumPy are held to the templates, without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptx import GlobalMemory, Program

from kernelyard import dtypes
from kernelyard.runtime.abi.module import BoundTensor
from kernelyard_cuda import nvrtc
from kernelyard_cutlass import compiler
from kernelyard_cutlass.emulation import EmulatedLaunch
from kernelyard_cutlass.kernels import Kernel, entry_of
from kernelyard_cutlass.launches import PlannedLaunch, arguments, blocks, swizzle_grid
from kernelyard_cutlass.toolchain import find_toolchain

from .conftest import NEEDS_TOOLCHAIN
from .test_cubins import KERNELS
from .test_emulation import Memory, numbers

pytestmark = NEEDS_TOOLCHAIN
Tensors = dict[str, Any]
RANDOM = np.random.default_rng(0)


def bytes_of_weights(*shape: int) -> np.ndarray:
    return RANDOM.integers(-128, 128, shape)


def gemm(kernel: Any, at: Memory) -> PlannedLaunch:
    m, n, k = 70, 72, 96
    sizes = {"m": m, "n": n, "k": k, "batch": 1, "lda": k, "ldb": n, "ld_source": n, "ldd": n}
    strides = dict.fromkeys(("stride_a", "stride_b", "stride_source", "stride_d"), 0)
    tensors = {"a": at(numbers(m, k)), "b": at(numbers(k, n, seed=1)), "d": at(np.zeros((m, n)))}
    epilogue = {"source": at(numbers(m, n, seed=2)), "vector": at(numbers(n, seed=3)), "alpha": 1.0, "beta": 1.0}
    return PlannedLaunch(
        kernel, swizzle_grid(kernel, m, n, 1), arguments("gemm", **sizes, **strides, **tensors, **epilogue)
    )


def conv2d(kernel: Any, at: Memory) -> PlannedLaunch:
    n, size, c, k, window = 1, 9, 16, 24, 3
    sizes = {"n": n, "h": size, "w": size, "c": c, "k": k, "r": window, "s": window, "p": size, "q": size}
    steps = {f"{name}_{axis}": 1 for name in ("pad", "stride", "dilation") for axis in "hw"}
    tensors = {"x": at(numbers(n, size, size, c)), "weight": at(numbers(k, window, window, c, seed=1) / 8)}
    tensors |= {"source": at(numbers(k, seed=2)), "vector": None, "y": at(np.zeros((n, size, size, k)))}
    given = arguments("conv2d", **sizes, **steps, **tensors, source_w=0, source_h=0, source_n=0, alpha=1.0, beta=1.0)
    return PlannedLaunch(kernel, swizzle_grid(kernel, n * size * size, k, 1), given)


def attention(kernel: Any, at: Memory) -> PlannedLaunch:
    rows, columns, heads, size = 70, 77, 2, 64
    sizes = {"batch": 1, "rows": rows, "columns": columns, "heads": heads, "shared_heads": 1}
    tensors = {"queries": at(numbers(1, rows, heads, size)), "keys": at(numbers(1, columns, 1, size, seed=1))}
    tensors |= {"values": at(numbers(1, columns, 1, size, seed=2)), "result": at(np.zeros((1, rows, heads, size)))}
    absent: Tensors = dict.fromkeys(("bias", "starts_q", "starts_k", "accumulators"))
    steps = {"bias_batch": 0, "bias_head": 0, "bias_row": 0, "row_q": heads * size, "row_k": size, "row_v": size}
    how = {"size": size, "value_size": size, "mask": 2, "scale": 0.125}
    given = arguments("attention", **sizes, **tensors, **absent, **steps, **how)
    return PlannedLaunch(kernel, blocks(-(-rows // kernel.queries), heads, 1), given, lanes=32)


def norm(kernel: Any, at: Memory) -> PlannedLaunch:
    tensors = {"x": at(numbers(3, 264)), "gamma": at(numbers(264)), "beta": at(numbers(264, seed=1))}
    given = arguments("norm", columns=264, **tensors, y=at(np.zeros((3, 264))), epsilon=1e-5)
    return PlannedLaunch(kernel, (3, 1, 1), given)


def weights(at: Memory) -> Tensors:
    return {
        "n": 40,
        "k": 64,
        "group": 32,
        "weights": at(bytes_of_weights(40, 32), "int8"),
        "scales": at(numbers(2, 40)),
    }


def decode_rows(kernel: Any, at: Memory) -> PlannedLaunch:
    tensors = {"a": at(numbers(3, 64)), "bias": at(numbers(40), kernel.output), "residual": None}
    d = at(np.zeros((3, 40)), kernel.output)
    given = arguments("decode_rows", m=3, **weights(at), **tensors, d=d, ld_residual=0)
    return PlannedLaunch(kernel, blocks(-(-40 // (kernel.threads // 32))), given)


def dequantize(kernel: Any, at: Memory) -> PlannedLaunch:
    given = arguments("dequantize", **weights(at), dequantized=at(np.zeros((40, 64))))
    return PlannedLaunch(kernel, blocks(-(-40 * 64 // (kernel.threads * 16))), given)


def transpose(kernel: Any, at: Memory) -> PlannedLaunch:
    given = arguments("transpose", rows=40, columns=50, x=at(numbers(2, 40, 50)), y=at(np.zeros((2, 50, 40))))
    return PlannedLaunch(kernel, (2, 2, 2), given)


LAUNCHES: dict[str, Callable[[Any, Memory], PlannedLaunch]] = {
    "gemm, residual": gemm,
    "conv2d, silu": conv2d,
    "attention": attention,
    "layer norm": norm,
    "decode, 4 bits": decode_rows,
    "dequantize": dequantize,
    "transpose": transpose,
}


def ptx_of(kernel: Kernel) -> str:
    toolchain = find_toolchain()
    options = ["--gpu-architecture=sm_80", *compiler.FLAGS, *(f"-I{folder}" for folder in toolchain.folders)]
    return nvrtc.compile_ptx(toolchain.nvrtc, compiler.text_of(kernel), options, compiler.headers_of(kernel))


def constant(text: str, name: str) -> int:
    found = re.search(rf"\b{name} = (\d+);", text)
    return int(found[1]) if found else 0


class Recorded(Memory):
    """Memory that knows its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[BoundTensor] = []

    def __call__(self, array: Any, dtype: str = "float16") -> BoundTensor:
        self.tensors.append(super().__call__(array, dtype))
        return self.tensors[-1]


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_template_gives_what_stands_in_for_it(name):
    at = Recorded()
    launch = LAUNCHES[name](KERNELS[name], at)
    text, memory = ptx_of(launch.kernel), GlobalMemory()
    places = {tensor.address: memory.put(tensor.as_array()) for tensor in at.tensors}
    threads = constant(text, "ky_threads")
    lanes = launch.lanes or threads
    given = [places.get(argument.value, argument.value) for argument in launch.arguments]
    shape = (lanes, threads // lanes, 1)
    Program(text, memory).launch(
        entry_of(launch.kernel), launch.blocks, shape, given, constant(text, "ky_shared_nbytes")
    )
    EmulatedLaunch(launch)()
    for tensor in at.tensors:
        found = memory.get(places[tensor.address], tensor.shape, dtypes.to_numpy(tensor.dtype))
        wanted = tensor.as_array().astype(np.float64)
        assert np.any(wanted)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-3, atol=2e-3)
