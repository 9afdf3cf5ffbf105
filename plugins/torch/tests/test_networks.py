"""Networks of many kinds by torch.export: first that oneDNN took its part, then that the numbers are PyTorch's."""

from __future__ import annotations

import pytest

from kernelyard.testing import assert_offloaded

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_agreement import export_and_check
from torch_cases import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("open_sizes", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["dnnl", "native"])
def test_results_are_those_of_eager(name: str, open_sizes: bool, backend: str) -> None:
    case = CASES[name]
    exe = export_and_check(
        case.make(),
        *case.inputs(3, 7),
        dynamic_shapes=case.dynamic if open_sizes else None,
        others=[case.inputs(2, 11), case.inputs(5, 4)] if open_sizes else (),
        backends=["dnnl"] if backend == "dnnl" else [],
    )
    if backend == "dnnl":
        assert_offloaded(exe, "dnnl", case.pattern, at_least=case.at_least)
    else:
        assert "reference" not in exe.report.coverage
