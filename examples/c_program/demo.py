"""A model as a C library: compile it, export it, build a C program that runs it, and compare the numbers.

The model has two entry functions, and takes any number of rows. Needs a C compiler.
Run: python examples/c_program/demo.py [folder]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

import kernelyard as ky
import kernelyard.ops  # the operators that the model is written in
from kernelyard import dims
from kernelyard.ir import Constant, Expr, FunctionBuilder, IRModule
from kernelyard.runtime.export import get_include
from kernelyard.runtime.jit.c_compiler import find_compiler

PROGRAM = Path(__file__).with_name("main.c")


def classifier() -> IRModule:
    """Return two layers over 784 numbers, for any number of rows: `main` gives digits, `features` the hidden layer."""
    rng = np.random.default_rng(0)
    first, second = (
        Constant((rng.standard_normal(shape) / 28).astype(np.float32)) for shape in ((784, 128), (128, 10))
    )

    def features(b: FunctionBuilder) -> Expr:
        return b.op("nn.relu", b.op("matmul", b.input("image", (dims.symbol("n"), 784)), first))

    main, other = FunctionBuilder(), FunctionBuilder()
    digits = main.op("nn.softmax", main.op("matmul", features(main), second), axis=1)
    return IRModule({"main": main.function(digits), "features": other.function(features(other))})


def build(exe: ky.Executable, folder: Path) -> Path:
    """Build the library of a model, and the C program that is linked with it."""
    exe.export_library(folder / "libmodel.so", standalone=True)
    program = folder / "program"
    options = [f"-I{get_include()}", f"-L{folder}", "-lmodel", f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    subprocess.run([*find_compiler().command, "-O2", str(PROGRAM), "-o", str(program), *options], check=True)
    return program


def main(folder: Path) -> None:
    """Build, run, compare."""
    exe = ky.compile(classifier(), backends=[])
    program, machine = build(exe, folder), ky.VirtualMachine(exe)
    files = [str(folder / name) for name in ("image.bin", "result.bin")]
    for function, rows in product(("main", "features"), (1, 5)):
        image = np.random.default_rng(rows).standard_normal((rows, 784)).astype(np.float32)
        image.tofile(files[0])
        subprocess.run([str(program), function, str(rows), *files], check=True)
        expected = machine[function](image).numpy()
        found = np.fromfile(files[1], np.float32).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        print(f"{function}, {rows} rows: the C program and Python agree")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else made).absolute())
