"""The README names every option and every reason, and all of the ten patterns that TVM has are there."""

from __future__ import annotations

import re
from pathlib import Path

from kernelyard.target import Target
from kernelyard_cublas import checks
from kernelyard_cublas.backend import CublasBackend

PAGE = Path(__file__).parents[1] / "README.md"
OF_TVM = (
    "matmul",
    "matmul_bias",
    "matmul_bias_relu",
    "matmul_bias_gelu",
    "matmul_transposed",
    "matmul_transposed_bias",
    "matmul_transposed_bias_relu",
    "matmul_transposed_bias_gelu",
    "matmul_transposed_dequantize",
    "matmul_transposed_multiply",
)


def test_the_page_names_every_reason() -> None:
    named = set(re.findall(r"`([a-z0-9_-]+)`", PAGE.read_text(encoding="utf-8")))
    source = Path(checks.__file__).read_text(encoding="utf-8")
    codes = set(re.findall(r'Decline\(\s*"([a-z-]+)"', source))
    assert {"dtype", "bias", "residual", "approximation"} <= codes
    assert codes | {"rank", "batch", "zero-point"} <= named


def test_the_patterns_of_tvm_are_there_and_each_name_is_its_own() -> None:
    names = [pattern.name for pattern in CublasBackend().patterns(Target("cuda"))]
    assert len(set(names)) == len(names)
    assert {f"cublas.{name}" for name in OF_TVM} <= set(names)
