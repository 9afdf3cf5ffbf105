"""A compile runs named pipelines and nothing else, in the order in which the documentation lists them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, PassContext
from kernelyard.transform.pipelines import pipeline_names

PREPARATION = "integers"  # of dnnl, before it matches: see `Backend.prepare`
PLACED = ["import", "simplify", "widen_floats", "quantized", PREPARATION, "match", "merge"]


class Outermost(Instrument):
    """Notes the passes that run by themselves, in no sequence."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        if depth == 0:
            self.names.append(pass_.name)


def model() -> IRModule:
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (4, 32)), np.ones((32, 16), np.float32))
    return IRModule({"main": b.function(b.op("cumsum", product, axis=1))})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"backends": ["dnnl"]}, [*PLACED, "codegen", "fuse_attention", "integer_products", "legalize", "pack"]),
        (
            {"backends": [], "precision": "int8_weights"},
            [
                "import",
                "simplify",
                "widen_floats",
                "int8_weights",
                "quantized",
                "codegen",
                "fuse_attention",
                "integer_products",
                "legalize",
                "pack",
            ],
        ),
    ],
    ids=str,
)
def test_a_compile_runs_pipelines_in_order(arguments: Mapping[str, object], expected: list[str]) -> None:
    seen = Outermost()
    with PassContext(instruments=[seen]):
        ky.compile(model(), **arguments)  # pyright: ignore[reportArgumentType]
    assert seen.names == expected
    named = [name for name in seen.names if name != PREPARATION]
    assert named == [name for name in pipeline_names() if name in expected]


def test_explain_goes_the_same_way_up_to_the_kernels() -> None:
    seen = Outermost()
    with PassContext(instruments=[seen]):
        ky.explain(model(), backends=["dnnl"])
    assert seen.names == [*PLACED, "fuse_attention", "integer_products", "legalize"]
