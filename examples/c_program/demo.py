"""A model as a C library: compile it, export it, build a C program that runs it, and compare the numbers.

Needs a C compiler. Run: python examples/c_program/demo.py [folder]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import kernelyard as ky
import kernelyard.ops  # the operators that the model is written in
from kernelyard import dims
from kernelyard.ir import Constant, FunctionBuilder, IRModule
from kernelyard.runtime.c_compiler import find_compiler
from kernelyard.runtime.library import get_include

PROGRAM = Path(__file__).with_name("main.c")


def classifier() -> IRModule:
    """Two layers over 784 numbers, for any number of rows."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal(shape) / 28).astype(np.float32) for shape in ((784, 128), (128, 10))]
    b = FunctionBuilder()
    x = b.input("image", (dims.symbol("n"), 784))
    hidden = b.op("nn.relu", b.op("matmul", x, Constant(weights[0])))
    return IRModule({"main": b.function(b.op("nn.softmax", b.op("matmul", hidden, Constant(weights[1])), axis=1))})


def build(exe: ky.Executable, folder: Path) -> Path:
    """The library of a model, and the C program that is linked with it."""
    exe.export_library(folder / "libmodel.so", standalone=True)
    program = folder / "program"
    options = [f"-I{get_include()}", f"-L{folder}", "-lmodel", f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    subprocess.run([*find_compiler().command, "-O2", str(PROGRAM), "-o", str(program), *options], check=True)
    return program


def main(folder: Path) -> None:
    """Build, run, compare."""
    exe = ky.compile(classifier(), backends=[])
    program = build(exe, folder)
    for rows in (1, 5):
        image = np.random.default_rng(rows).standard_normal((rows, 784)).astype(np.float32)
        image.tofile(folder / "image.bin")
        subprocess.run([str(program), str(rows), str(folder / "image.bin"), str(folder / "digits.bin")], check=True)
        digits = np.fromfile(folder / "digits.bin", np.float32).reshape(rows, 10)
        np.testing.assert_allclose(digits, exe(image).numpy(), rtol=1e-5, atol=1e-6)
        print(f"{rows} rows: the C program and Python agree")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else made).absolute())
