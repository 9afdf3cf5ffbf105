"""L0 of the conformance kit examines plugins of every kind that it can try."""

from __future__ import annotations

import pytest

from kernelyard.testing.conformance.bench import Bench
from kernelyard.testing.conformance.claims import parse_claims
from kernelyard.testing.conformance.loading import CHECKS

CLAIMS = parse_claims('ops = ["add"]\ndtypes = ["float32"]', "here")


@pytest.mark.parametrize("check", CHECKS)
def test_a_code_generator_is_examined_as_a_backend_is(check: str) -> None:
    CHECKS[check](Bench("native-cpu"), CLAIMS)


def test_a_frontend_is_none_of_both() -> None:
    with pytest.raises(AssertionError, match="it provides frontend"):
        CHECKS["it is active"](Bench("onnx"), CLAIMS)
