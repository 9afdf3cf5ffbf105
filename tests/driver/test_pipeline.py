"""compile(pipeline=, instruments=): passes of one's own at named points, watched, verified and reported."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import errors
from kernelyard.ir import Call, Function, FunctionBuilder, FunctionMutator, IRModule, get_op
from kernelyard.runtime.report import Report
from kernelyard.testing import evaluate
from kernelyard.transform import (
    FuseOpsByPattern,
    Instrument,
    PassContext,
    Sequential,
    TimingInstrument,
    function_pass,
    get_pipeline,
    module_pass,
)

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def model() -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    return IRModule({"main": b.function(b.op("exp", b.op("nn.relu", b.op("matmul", x, np.eye(4, dtype=np.float32)))))})


class _Swap(FunctionMutator):
    def rewrite(self, var, value):
        return Call(get_op("tanh"), value.args) if isinstance(value, Call) and value.op_name == "nn.relu" else value


@function_pass("relu_to_tanh")
def relu_to_tanh(function, module, context):
    return _Swap().mutate(function)


WANTED = np.exp(np.tanh(X))


class Seen(Instrument):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.entered = self.left = 0

    def enter(self, context) -> None:
        self.entered += 1

    def exit(self, context) -> None:
        self.left += 1

    def before_pass(self, pass_, module, depth) -> None:
        if depth == 0:
            self.names.append(pass_.name)


@pytest.mark.parametrize(
    "pipeline",
    [
        ky.get_default_pipeline("cpu").before("simplify", relu_to_tanh),
        ky.get_default_pipeline("cpu").after("simplify", relu_to_tanh),
        ky.get_default_pipeline("cpu").before("offload", relu_to_tanh),
        ky.get_default_pipeline("cpu").after("offload", relu_to_tanh),
        ky.get_default_pipeline("cpu").before("legalize.legalize_ops", relu_to_tanh),
        ky.get_default_pipeline("cpu").replace("simplify.compose_ops", relu_to_tanh),
        Sequential([get_pipeline("simplify"), relu_to_tanh], "mine"),
        relu_to_tanh,
    ],
    ids=lambda pipeline: "; ".join(getattr(pipeline, "changes", [pipeline.name])),
)
def test_a_pass_of_ones_own_runs_where_it_stands(pipeline):
    exe = ky.compile(model(), backends=[], pipeline=pipeline)
    np.testing.assert_allclose(exe(X), WANTED, rtol=1e-5)
    assert any("relu_to_tanh" in change or "mine" in change for change in exe.report.pipeline)


def test_a_pipeline_goes_by_its_name():
    with PassContext() as context:
        exe = ky.compile(model(), backends=[], pipeline="clean")
    assert exe.report.pipeline == ("clean in place of simplify",)
    np.testing.assert_allclose(exe(X), evaluate(model(), [X])[0], rtol=1e-5)
    assert "canonicalize" in context.history
    assert "compose_ops" not in context.history


def test_backends_see_what_a_pass_left():
    before = ky.explain(model(), backends=["dnnl"])
    after = ky.explain(model(), backends=["dnnl"], pipeline=ky.get_default_pipeline().after("simplify", relu_to_tanh))
    assert before.regions[0].ops == ("matmul", "nn.relu", "exp")[: len(before.regions[0].ops)]
    assert "tanh" in [node.op for node in after.nodes]
    assert "nn.relu" not in [node.op for node in after.nodes]


def test_kernels_are_not_fused_without_the_pass():
    fused = ky.compile(model(), backends=[])
    apart = ky.get_default_pipeline().without("legalize.fuse_ops").without("legalize.fuse_siblings")
    separate = ky.compile(model(), backends=[], pipeline=apart)
    assert [len(exe.report.kernels) for exe in (fused, separate)] == [1, 3]
    np.testing.assert_array_equal(fused(X), separate(X))
    assert ky.explain(model(), backends=[], pipeline=apart).kernels == separate.report.kernels


def test_with_a_precision_the_pass_comes_before_it():
    pipeline = ky.get_default_pipeline().after("simplify", relu_to_tanh)
    seen = Seen()
    exe = ky.compile(model(), backends=[], precision="int8_weights", pipeline=pipeline, instruments=[seen])
    assert seen.names[:5] == ["import", "simplify", "relu_to_tanh", "widen_floats", "int8_weights"]
    np.testing.assert_allclose(exe(X), WANTED, rtol=1e-2)


def test_the_pipeline_of_a_target_is_its_own():
    points = [ky.get_default_pipeline(target).points for target in ("cpu", "cuda")]
    assert "compose_attention" not in points[0]
    assert "compose_attention" in points[1]
    with pytest.raises(errors.TargetError):
        ky.get_default_pipeline("cudda")


def test_a_lowered_module_is_compiled_as_it_is():
    lowered = ky.get_default_pipeline("cpu")(model())
    exe = ky.compile(lowered, backends=[])
    np.testing.assert_allclose(exe(X), evaluate(model(), [X])[0], rtol=1e-5)


def test_the_report_keeps_the_changes(tmp_path):
    pipeline = ky.get_default_pipeline().without("simplify.sink_reshape")
    exe = ky.compile(model(), backends=[], pipeline=pipeline)
    exe.save(tmp_path / "m.kyar")
    report = ky.load(tmp_path / "m.kyar").report
    assert report.pipeline == ("without simplify.sink_reshape",)
    assert "pipeline: without simplify.sink_reshape" in str(report)
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert "pipeline" not in ky.explain(model(), backends=[]).to_json()


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pipeline", [3, [relu_to_tanh], FuseOpsByPattern])
def test_what_is_no_pipeline_is_refused(pipeline):
    with pytest.raises(errors.OptionError, match="pipeline"):
        ky.compile(model(), pipeline=pipeline)


def test_an_unknown_name_is_refused():
    with pytest.raises(errors.PassError, match="did you mean 'simplify'"):
        ky.compile(model(), pipeline="simplfy")


def test_a_pass_that_breaks_the_module_is_named():
    @module_pass("breaking")
    def breaking(module, context):
        main = module["main"]
        return module.with_functions({"main": Function(main.params, main.bindings[1:], main.result, main.attrs)})

    for point in ("simplify", "offload", "legalize.legalize_ops"):
        with pytest.raises(errors.PassError, match="pass 'breaking' left a malformed module"):
            ky.compile(model(), backends=[], pipeline=ky.get_default_pipeline().before(point, breaking))


def test_a_pass_that_fails_is_named():
    @module_pass("failing")
    def failing(module, context):
        raise ZeroDivisionError("oops")

    with pytest.raises(errors.PassError, match="pass 'failing' failed"):
        ky.compile(model(), backends=[], pipeline=ky.get_default_pipeline().after("offload", failing))


# --- instruments ------------------------------------------------------------------------------------------------------
def test_instruments_watch_a_compile_and_no_more():
    seen, timing = Seen(), TimingInstrument()
    ky.compile(model(), backends=[], instruments=[seen, timing])
    assert seen.names == [
        "import",
        "simplify",
        "widen_floats",
        "quantized",
        "codegen",
        "fuse_attention",
        "integer_products",
        "legalize",
        "pack",
    ]
    assert (seen.entered, seen.left) == (1, 1)
    assert "legalize_ops" in str(timing)
    get_pipeline("clean")(model())
    assert "clean" not in seen.names


def test_instruments_of_a_context_watch_too():
    outer, inner = Seen(), Seen()
    with PassContext({"fold_constants.max_bytes": 0}, [outer]) as context:
        ky.compile(model(), backends=[], instruments=[inner])
        assert PassContext.current() is context
    assert outer.names == inner.names != []
    assert (outer.entered, inner.entered) == (1, 1)
    assert "legalize_ops" in context.history
