"""GridSample whose data and positions differ in dtype: onnxruntime has no kernel for it, ONNX's reference does."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from kernelyard.ir import IRModule
from kernelyard.ops.interpreter import run

# Of integers only the nearest: ONNX's reference cuts each weighted element to an integer, not their sum.
CASES = [
    *(
        (data, grid, mode)
        for data, grid in (("float32", "float64"), ("float64", "float32"))
        for mode in ("linear", "cubic")
    ),
    ("float32", "float64", "nearest"),
    ("int32", "float32", "nearest"),
]


@pytest.mark.parametrize(("data", "positions", "mode"), CASES)
def test_data_and_positions_may_differ_in_dtype(data, positions, mode, make, import_main) -> None:
    rng = np.random.default_rng(5)
    feeds = {
        "x": rng.uniform(0, 40, (2, 3, 5, 6)).astype(data),
        "grid": rng.uniform(-1.2, 1.2, (2, 4, 7, 2)).astype(positions),
    }
    model = make([helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode)], feeds, opset=20)
    (found,) = run(IRModule({"main": import_main(model)}), feeds)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    assert found.dtype == expected.dtype == data
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
