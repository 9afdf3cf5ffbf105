"""Programs: what does not fit together is refused when it is made, and shapes are solved from feeds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard import dims, errors
from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program.program import Program, Register, Step

N, M = dims.symbol("n"), dims.symbol("m")

PROGRAM = Program(
    name="main",
    symbols=("n",),
    inputs=(TensorSpec((N, 2), "float32", "x"),),
    outputs=(TensorSpec((N * 2,), "float32", "y"),),
    registers=(
        Register((N, 2), "float32", "input", index=0),
        Register((2,), "float32", "constant", digest="0" * 64),
        Register((N, 2), "float32", "buffer"),
        Register((N * 2,), "float32", "alias", source=2),
    ),
    steps=(Step(0, "add", (0, 1), (2,), "node 'Add_0'"),),
    results=(3,),
)


def test_a_program_comes_back_from_json():
    assert Program.from_json(PROGRAM.to_json()) == PROGRAM
    assert PROGRAM.digests() == ("0" * 64,)
    assert [PROGRAM.root(register) for register in range(4)] == [0, 1, 2, 2]
    assert "r2: (n, 2) float32 = 0.add(r0, r1)" in str(PROGRAM)


BUFFER = Register((N, 2), "float32", "buffer")


@pytest.mark.parametrize(
    "changes",
    [
        {"symbols": ()},
        {"results": (2,)},
        {"results": ()},
        {"results": (9,)},
        {"steps": ()},
        {"steps": PROGRAM.steps * 2},
        {"steps": (Step(0, "add", (0, 1), (0,)),)},
        {"steps": (Step(0, "add", (0, 3), (2,)),)},
        {"steps": (Step(0, "add", (0, -5), (2,)),)},
        {"inputs": PROGRAM.inputs * 2},
        {"inputs": (TensorSpec((N, 3), "float32", "x"),)},
        {"inputs": ()},
        {"registers": (*PROGRAM.registers[:3], Register((M,), "float32", "alias", source=2))},
        {"registers": (*PROGRAM.registers[:3], Register((N * 2,), "int32", "alias", source=2))},
        {"registers": (*PROGRAM.registers[:3], Register((N * 2,), "float32", "alias", source=3))},
    ],
)
def test_parts_that_do_not_fit_are_refused(changes):
    with pytest.raises(errors.ArtifactCorruptedError):
        replace(PROGRAM, **changes)


def test_an_alias_of_an_unwritten_buffer_cannot_be_a_result():
    registers = (*PROGRAM.registers, BUFFER, Register((N * 2,), "float32", "alias", source=4))
    with pytest.raises(errors.ArtifactCorruptedError, match="malformed"):
        replace(PROGRAM, registers=registers, results=(5,))


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9), st.integers(0, 9))
def test_symbols_are_found_wherever_they_stand(n, m, slope, offset):
    specs = (TensorSpec((N * slope + offset, M), "float32", "a"), TensorSpec((M, N), "float32", "b"))
    values: dict[str, int] = {}
    solve_symbols(specs[:1], [(n * slope + offset, m)], values)
    assert values == {"n": n, "m": m}
    solve_symbols(specs, [(n * slope + offset, m), (m, n)], values)
    with pytest.raises(errors.InputShapeError, match="axis"):
        solve_symbols(specs, [(n * slope + offset, m), (m, n + 1)], {})


def test_a_symbol_that_no_shape_gives_is_an_error():
    with pytest.raises(errors.InputShapeError, match="has an impossible size") as caught:
        solve_symbols([TensorSpec((N * M,), "float32", "x")], [(6,)], {})
    assert "n * m" in str(caught.value) or "m * n" in str(caught.value)
