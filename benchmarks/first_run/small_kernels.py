"""Run kernels at small odd sizes, each compared with the reference: what compute-sanitizer looks at.

    python benchmarks/first_run/small_kernels.py generated|cutlass [--device emulator]

generated: one of each family of native-cuda. cutlass: one of each template. Neither imports PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_cuda.driver_api import require_cuda

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_cases.case import Build, Spec, op
from on_gpu import kernel_cases as on_gpu

F16 = "float16"
Made = tuple[Build, Sequence[Spec]]


def of(case: on_gpu.Case) -> Made:
    """A case of the benchmark; its weights are given too."""
    return case.build, (*case.feeds, *case.weights)


def finished(b: FunctionBuilder, x: Any, w: Any, bias: Any) -> Any:
    """A product with bias and gelu."""
    return b.op("nn.gelu", b.op("add", b.op("matmul", x, w), bias))


def whole_numbers(b: FunctionBuilder, x: Any, w: Any) -> Any:
    """int8, summed up in int32."""
    wide = [b.op("astype", each, dtype="int32") for each in (x, b.op("permute_dims", w, axes=(1, 0)))]
    return b.op("matmul", *wide)


def few_bits(rows: int, depth: int, columns: int) -> Made:
    """Weights of four bits, each group of 128 rows with a scale."""
    rng = np.random.default_rng(5)
    stored = rng.integers(-8, 8, (depth, columns)).astype(np.int8)
    scales = (rng.integers(8, 16, (depth // 128, 1, columns)) / 2048).astype(np.float16)

    def build(b: FunctionBuilder, x: Any) -> Any:
        parts = b.op("astype", b.op("reshape", stored, shape=(depth // 128, 128, columns)), dtype=F16)
        return b.op("matmul", x, b.op("reshape", b.op("multiply", parts, scales), shape=(depth, columns)))

    return build, (Spec((rows, depth), F16),)


GENERATED: Mapping[str, Callable[[], Made]] = {
    "matmul f16": lambda: of(on_gpu.product(67, 41, 35)),
    "matmul f16, transposed": lambda: of(on_gpu.product(70, 72, 130, transposed=True)),
    "matmul f32": lambda: of(on_gpu.product(33, 29, 37, "float32")),
    "gemv": lambda: of(on_gpu.product(1, 515, 77)),
    "gemv, transposed": lambda: of(on_gpu.product(3, 515, 77, transposed=True)),
    "attention": lambda: of(on_gpu.attention(1, 37, 3, 24)),
    "convolution": lambda: of(on_gpu.convolution(2, 5, 9, last=False)),
    "layer norm": lambda: of(on_gpu.layer_norm(5, 391)),
    "softmax": lambda: of(on_gpu.softmax(7, 1031)),
    "gelu": lambda: (op("nn.gelu"), (Spec((13, 79), F16),)),
    "argmax": lambda: of(on_gpu.argmax(3, 1003)),
    "sum of rows": lambda: of(on_gpu.sum_of_rows(131, 21)),
}
CUTLASS: Mapping[str, Callable[[], Made]] = {
    "gemm": lambda: (finished, (Spec((5, 64), F16), Spec((64, 128), F16), Spec((128,), F16))),
    "gemm, pad": lambda: (finished, (Spec((5, 33), F16), Spec((33, 17), F16), Spec((17,), F16))),
    "gemm, transpose": lambda: (whole_numbers, (Spec((9, 64), "int8"), Spec((40, 64), "int8"))),
    "conv2d": lambda: of(on_gpu.convolution(2, 16, 9, last=True)),
    "attention": lambda: of(on_gpu.attention(1, 37, 2, 64)),
    "norm": lambda: of(on_gpu.layer_norm(5, 768)),
    "decode_rows": partial(few_bits, 1, 512, 256),
    "dequantize": partial(few_bits, 100, 512, 256),
}
KINDS: Mapping[str, tuple[list[str], Mapping[str, Callable[[], Made]]]] = {
    "generated": ([], GENERATED),
    "cutlass": (["cutlass"], CUTLASS),
}


def run(made: Made, backends: list[str], target: ky.Target, device: ky.Device) -> str:
    """Compile and call twice; what took it. Raises: KernelyardError, AssertionError."""
    build, specs = made
    b = FunctionBuilder()
    inputs = [b.input(f"x{n}", spec.shape, spec.dtype) for n, spec in enumerate(specs)]
    module = IRModule({"main": b.function(build(b, *inputs))})
    exe = ky.compile(module, target=target, backends=backends)
    machine = ky.VirtualMachine(exe, device)
    feeds = [spec.array() for spec in specs]
    (wanted,) = evaluate(module, feeds)
    for _ in range(2):
        assert_allclose(machine["main"](*feeds).numpy(), wanted)
    taken = [region.pattern for region in exe.report.regions]
    if backends and not taken:
        raise AssertionError("CUTLASS did not take it")
    return ", ".join(taken) or "generated"


def main() -> int:
    """Return how many kinds failed; 1 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    args = parser.parse_args()
    device = ky.cuda("emulator" if args.device == "emulator" else 0)
    try:
        driver = require_cuda(device.open(), "small kernels")
    except KernelyardError as error:
        print(f"no kernel runs here: {error}")
        return 1
    target = ky.Target("cuda", arch="sm_{}{}".format(*driver.capability))
    backends, cases = KINDS[args.kind]
    failures = 0
    for name, make in cases.items():
        try:
            print(f"{name}: {run(make(), backends, target, device)}", flush=True)
        except (KernelyardError, AssertionError) as error:
            failures += 1
            print(f"{name}: FAILED: {error}", flush=True)
    print(f"{len(cases) - failures} of {len(cases)} are right")
    return failures


if __name__ == "__main__":
    sys.exit(main())
