"""kernelyard.reduce: a few ops are left, which fail as the whole model did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from faults import crashing_pass, doubling_pass, failing_pass, flattened, network, wrong_kernel, wrong_pass
from onnx import numpy_helper

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.dtypes import to_numpy
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ir.module import PRIVATE
from kernelyard_debug import DebugError, diff, load_case, reduce
from kernelyard_debug.case import Case
from kernelyard_debug.result_folder import save
from kernelyard_onnx_export import to_onnx


def test_a_wrong_kernel(tmp_path: Path) -> None:
    with wrong_kernel("erf"):
        reduction = reduce(network(), backends=[])
        assert reduction.ops == ("erf",)
        assert reduction.keeps_signature
        assert reduction.outcome.place is not None
        assert (reduction.outcome.place.kind, reduction.outcome.place.ops) == ("kernel", ("erf",))
        folder = reduction.save(tmp_path / "result")
        case = load_case(folder)
        assert diff(case.module, feeds=case.feeds, backends=[]).departs
    assert not diff(case.module, feeds=case.feeds, backends=[]).departs


def test_a_folder_keeps_the_dtypes_of_feeds(tmp_path: Path) -> None:
    b = FunctionBuilder()
    x = np.array([1.5, -2.0], to_numpy("bfloat16"))
    case = Case(IRModule({"main": b.function(b.op("negative", b.input("x", (2,), "bfloat16")))}), {"x": x})
    save(case, tmp_path, {}, "reference", {})
    assert load_case(tmp_path).feeds["x"].dtype == x.dtype
    np.testing.assert_array_equal(load_case(tmp_path).feeds["x"], x)


def test_the_folder_is_an_onnx_test_case_and_a_test_for_pytest(tmp_path: Path) -> None:
    with wrong_kernel("tanh"):
        folder = reduce(network(), backends=[]).save(tmp_path / "result")
    model = onnx.load(folder / "model.onnx")
    assert next(iter(model.graph.node)).op_type == "Tanh"
    tensors = {
        each.stem: numpy_helper.to_array(onnx.TensorProto.FromString(each.read_bytes()))
        for each in (folder / "test_data_set_0").iterdir()
    }
    np.testing.assert_allclose(tensors["output_0"], np.tanh(tensors["input_0"]), rtol=1e-6)
    assert json.loads((folder / "reduction.json").read_text())["keeps_signature"] is True
    test = (folder / "test_reduced.py").read_text()
    assert len(test.splitlines()) <= 12
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_reduced.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout  # this process has no wrong kernel


def test_a_branch_takes_the_place_of_its_conditional() -> None:
    functions = {}
    for name, op in (("then", "erf"), ("otherwise", "tanh")):
        b = FunctionBuilder()
        functions[name] = b.function(b.op("negative", b.op(op, b.input("y", (2, 3)))), attrs={PRIVATE: True})
    b = FunctionBuilder()
    x, flag = b.input("x", (2, 3)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [b.op("exp", x)], x.type)
    module = IRModule({"main": b.function(b.op("abs", chosen)), **functions})
    feeds = {"x": np.ones((2, 3), np.float32), "flag": np.array(True)}
    with wrong_kernel("erf"):
        reduction = reduce(module, feeds=feeds, backends=[])
    assert reduction.ops == ("erf",)
    assert reduction.keeps_signature


def test_symbolic_sizes_stay() -> None:
    with wrong_kernel("sigmoid"):
        reduction = reduce(network(None), backends=[], sizes={"n": 3})
    assert reduction.ops == ("sigmoid",)
    assert not reduction.case.function.params[0].tensor_type.is_static


@pytest.mark.parametrize("kind", ["wrong", "crash", "error"])
def test_passes_of_the_compile_path(kind: str) -> None:
    broken = {"wrong": wrong_pass("erf", "tanh"), "crash": crashing_pass("erf"), "error": failing_pass("erf")}[kind]
    pipeline = ky.get_default_pipeline("cpu").after("simplify", broken)
    reduction = reduce(network(), pipeline=pipeline)
    assert reduction.ops == ("erf",)
    assert reduction.failure.kind == {"wrong": "values"}.get(kind, kind)
    assert str(reduction.outcome.place) == f"pass {broken.name}"


def test_ops_between_the_cause_and_the_error_go() -> None:
    pipeline = ky.get_default_pipeline("cpu").after("simplify", doubling_pass("tanh"))
    reduction = reduce(flattened(), pipeline=pipeline)
    assert reduction.ops == ("tanh", "reshape")


def test_another_failure_does_not_take_its_place() -> None:
    """A crash that only smaller models have is no reduction of a wrong result."""
    pipeline = ky.get_default_pipeline("cpu").after("simplify", crashing_pass("erf", most=2))
    with wrong_kernel("erf"):
        reduction = reduce(network(), backends=[], pipeline=pipeline)
    assert reduction.outcome.kind == "values"
    assert len(reduction.ops) == 3


def test_a_command_is_the_oracle(tmp_path: Path) -> None:
    onnx.save(to_onnx(network()), tmp_path / "model.onnx")
    script = tmp_path / "check.py"
    script.write_text(
        "import sys\n"
        "model = open(sys.argv[1], 'rb').read()  # to import `onnx` takes longer than all else here\n"
        "sys.exit(all(bytes([4 << 3 | 2, len(op)]) + op in model for op in (b'Erf', b'Add')))  # a node's type is field 4\n"
    )
    arguments = [
        "reduce",
        str(tmp_path / "model.onnx"),
        "--check",
        f"{sys.executable} -I -S {script} {{model}}",
        "--json",
    ]
    result = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "result")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert sorted(facts["ops"]) == ["add", "erf"]
    assert facts["outcome"]["code"] == "exit status 1"
    assert (tmp_path / "result" / "model.onnx").exists()


def test_what_does_not_fail_is_said() -> None:
    with pytest.raises(DebugError, match="does not fail"):
        reduce(network())
    with pytest.raises(DebugError, match="does not name the model"):
        reduce(network(), check="false")
