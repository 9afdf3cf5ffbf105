"""Every sample of every operator that dnnl takes gives what the operator's reference gives."""

from __future__ import annotations

import pytest

import kernelyard as ky
from kernelyard.testing import OpCase, assert_conforms, op_cases

LOSES_NAN = ("clip: special values", "exp: special values")


def is_taken(case: OpCase) -> bool:
    return any(row.backend == "dnnl" for row in ky.explain(case.module(), backends=["dnnl"]).placed)


def parameter(case: OpCase) -> object:
    reason = "oneDNN's exp and clip make numbers of NaN"
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if case.id in LOSES_NAN else []
    return pytest.param(case, id=case.id, marks=marks)


TAKEN = [parameter(case) for case in op_cases() if is_taken(case)]


@pytest.mark.parametrize("case", TAKEN)
def test_it_gives_what_the_reference_gives(case: OpCase) -> None:
    assert_conforms(case, lambda module, inputs: [ky.compile(module, backends=["dnnl"])(*inputs)])


def test_enough_is_taken() -> None:
    assert len(TAKEN) > 150
