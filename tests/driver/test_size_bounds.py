"""Bounds of symbolic sizes: a backend's check reads them, the runtime holds them, the artifact keeps them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from interpreted_backend import InterpretedBackend

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims, errors
from kernelyard.cli.main import main
from kernelyard.dims import Bounds, Dim
from kernelyard.dims.interval import bounds_of
from kernelyard.ir import FunctionBuilder, IRModule, parse_module, to_text
from kernelyard.ir.size_bounds import with_bounds
from kernelyard.patterns import Accept, Answer, Decline, FusionPattern, Match, is_op, wildcard
from kernelyard.plugins.api import Region
from kernelyard.runtime.api import RuntimeModule
from kernelyard.testing import assert_declined, assert_offloaded

MOST = 8


def at_most_eight_rows(match: Match) -> Answer:
    low, high = match.bounds(match.call.tensor_type.shape[0])
    if high is None or high > MOST:
        return Decline("dynamic-shape", f"{low} to {'any number of' if high is None else high} rows, up to {MOST}")
    return Accept()


@pytest.fixture
def acme(install) -> None:
    relu = FusionPattern("acme.relu", is_op("nn.relu")(wildcard()), at_most_eight_rows)
    install(InterpretedBackend("acme", patterns=[relu]))


def network() -> IRModule:
    """Relu of n * 2 rows."""
    b = FunctionBuilder()
    n = dims.symbol("n")
    return IRModule({"main": b.function(b.op("nn.relu", b.input("x", (n * 2, 3)), origin="relu")), "rest": rest()})


def rest():
    b = FunctionBuilder()
    return b.function(b.op("floor", b.input("y", (dims.symbol("n"), dims.symbol("m")))))


@pytest.mark.usefixtures("acme")
def test_a_check_reads_the_bounds() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    exe = ky.compile(network(), backends=["acme"], bounds={"n": (1, 4)}, strict=True)
    assert_offloaded(exe, "acme", count=1)
    np.testing.assert_array_equal(exe(x).numpy(), np.maximum(x, 0))
    for bounds, reason in ((None, "2 to any number of rows, up to 8"), ({"n": (3, 5)}, "6 to 10 rows, up to 8")):
        report = ky.explain(network(), backends=["acme"], bounds=bounds)
        assert_declined(report, "acme", "dynamic-shape")
        assert [each.message for each in report.declined] == [reason]


@pytest.mark.parametrize("merge", [False, True])
def test_codegen_reads_the_bounds(install, merge: bool) -> None:
    seen: list[tuple[str, Bounds]] = []

    class Acme(InterpretedBackend):
        def check_region(self, region: Region) -> Answer:
            seen.append(("check_region", region.bounds(region.inputs[0].tensor_type.shape[0])))
            return Accept()

        def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
            seen.extend(("codegen", region.bounds(region.inputs[0].tensor_type.shape[0])) for region in regions)
            return super().codegen(regions, options)

    install(Acme("acme", ops=["nn.relu"], merge_composites=merge))
    ky.compile(network(), backends=["acme"], bounds={"n": (1, 4)}, strict=True)
    assert seen == [*([("check_region", (2, 8))] if merge else []), ("codegen", (2, 8))]


@pytest.mark.parametrize("rows", [0, 2, 10])
def test_other_sizes_are_refused(rows: int) -> None:
    exe = ky.compile(network(), backends=[], bounds={"n": (2, 4)})
    with pytest.raises(errors.InputShapeError, match="the size n is out of its bounds") as caught:
        exe(np.ones((rows, 3), np.float32))
    error = caught.value
    assert (error.found, error.expected, error.where) == (f"n = {rows // 2}", "2 to 4", "input 'x'")
    for good in (4, 8):
        assert exe(np.ones((good, 3), np.float32)).shape == (good, 3)


def test_the_artifact_keeps_them(tmp_path) -> None:
    path = tmp_path / "model.kyar"
    ky.compile(network(), bounds={"n": (1, 4), "m": (2, None)}).save(path)
    with pytest.raises(errors.InputShapeError, match="out of its bounds"):
        ky.load(path)(np.ones((10, 3), np.float32))
    facts = json.loads(CliRunner().invoke(main, ["inspect", str(path), "--json"]).stdout)
    assert {each["name"]: each["bounds"] for each in facts["programs"]} == {
        "main": {"n": [1, 4]},
        "rest": {"n": [1, 4], "m": [2, None]},
    }
    lines = CliRunner().invoke(main, ["inspect", str(path)]).stdout.splitlines()
    assert {"  size   n: 1 to 4", "  size   m: at least 2"} <= set(lines)


def test_text_keeps_them() -> None:
    module = with_bounds(network(), {"n": (1, 4), "m": (2, None)})
    again = parse_module(to_text(module))
    assert to_text(again) == to_text(module)
    with pytest.raises(errors.InputShapeError):
        ky.compile(again, backends=[])(np.ones((10, 3), np.float32))


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"k": (1, 4)}, "'k', which is no symbolic size"),
        ({"n": (4, 1)}, "bounds of 'n' are none"),
        ({"n": (-1, 1)}, "bounds of 'n' are none"),
        ({"n": 4}, "bounds of 'n' are none"),
        ([("n", (1, 4))], "must be a dictionary"),
    ],
)
def test_bounds_are_checked(bounds, problem: str) -> None:
    with pytest.raises(errors.OptionError, match=problem):
        ky.compile(network(), backends=[], bounds=bounds)


def branching() -> onnx.ModelProto:
    """Relu of n rows where c is true, else their negation."""

    def branch(op: str) -> onnx.GraphProto:
        result = onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["r"])], op, [], [result])

    values = [
        onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3]),
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3]),
    ]
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    graph = onnx.helper.make_graph([node], "g", values[:2], values[2:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("saved", [False, True])
def test_bounds_hold_before_a_branch_is_chosen(tmp_path, saved: bool) -> None:
    exe = ky.compile(branching(), backends=[], bounds={"n": (2, 4)})
    if saved:
        exe.save(tmp_path / "model.kyar")
        exe = ky.load(tmp_path / "model.kyar")
    for rows in (0, 1, 5, 5, 5):  # from the second call on it is one program
        with pytest.raises(errors.InputShapeError, match="the size n is out of its bounds") as caught:
            exe(np.array(True), np.ones((rows, 3), np.float32))
        assert (caught.value.found, caught.value.expected, caught.value.where) == (f"n = {rows}", "2 to 4", "input 'x'")
    for rows in (2, 4, 4, 4):
        x = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(exe(np.array(True), x).numpy(), np.maximum(x, 0))
        np.testing.assert_array_equal(exe(np.array(False), x).numpy(), -x)


def test_inspect_shows_the_bounds_of_a_model_with_branches(tmp_path) -> None:
    path = tmp_path / "model.kyar"
    ky.compile(branching(), backends=[], bounds={"n": (2, None)}).save(path)
    (entry,) = json.loads(CliRunner().invoke(main, ["inspect", str(path), "--json"]).stdout)["programs"]
    assert (entry["name"], entry["bounds"]) == ("main", {"n": [2, None]})
    assert [each["name"] for each in entry["inputs"]] == ["c", "x"]


def test_the_command_line_takes_them(tmp_path, onnx_model: onnx.ModelProto) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "model.kyar"
    onnx.save(onnx_model, path)
    arguments = ["compile", str(path), "-o", str(output), "--backends", "none"]
    result = CliRunner().invoke(main, [*arguments, "--bounds", "batch=1..8"])
    assert result.exit_code == 0, result.output
    assert ky.load(output).programs["main"].size_bounds == {"batch": (1, 8)}
    for wrong in ("n", "n=8", "n=a..b", "=1..2"):
        refused = CliRunner().invoke(main, [*arguments, "--bounds", wrong])
        assert refused.exit_code == 2
        assert "write NAME=LOW..HIGH" in refused.output


# --- interval arithmetic ----------------------------------------------------------------------------------------------
N, M = dims.symbol("n"), dims.symbol("m")
DIMS = st.recursive(
    st.sampled_from([N, M]) | st.integers(-5, 9),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
        st.tuples(inner, inner).map(lambda pair: dims.maximum(*pair)),
        st.tuples(inner, inner).map(lambda pair: dims.minimum(*pair)),
        st.tuples(inner, st.integers(1, 4)).map(lambda pair: pair[0] // pair[1]),
    ),
    max_leaves=6,
)


@given(DIMS, st.booleans())
def test_bounds_hold_all_values(dim: Dim, is_open: bool) -> None:
    low, high = bounds_of(dim, {"n": (2, 5), "m": (1, None if is_open else 4)})
    for n, m in itertools.product(range(2, 6), range(1, 40 if is_open else 5)):
        value = dims.evaluate(dim, {"n": n, "m": m})
        assert value < 0 or low <= value
        assert high is None or value <= high


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n", (2, 5)),
        ("k", (1, None)),
        ("n * 3 + 1", (7, 16)),
        ("n * n", (4, 25)),
        ("(n + 1) // 2", (1, 3)),
        ("k // 2", (0, None)),
        ("60 // n", (12, 30)),
        ("7 - n", (2, 5)),
        ("7 - k", (0, 6)),
        ("k - n", (0, None)),
        ("max(n, k)", (2, None)),
        ("min(n, k)", (1, 5)),
        ("n * k", (2, None)),
    ],
)
def test_bounds_of_expressions(text: str, expected: tuple[int, int | None]) -> None:
    assert bounds_of(dims.parse(text), {"n": (2, 5)}) == expected


def test_large_numbers_stay_exact() -> None:
    huge = 10**400
    assert bounds_of(N * huge + M, {"n": (1, 2), "m": (1, None)}) == (huge + 1, None)
    assert bounds_of(N * huge, {"n": (1, 2)}) == (huge, 2 * huge)
