"""compile(): the kinds of models it takes, who takes part, options, the report and what is logged."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from interpreted_backend import InterpretedBackend

import kernelyard as ky
from kernelyard import dims, errors
from kernelyard.ir import Function, FunctionBuilder, IRModule
from kernelyard.patterns import Accept, Answer, Match
from kernelyard.patterns.cost import Cost
from kernelyard.plugins.discovery.manager import PluginManager, get_manager
from kernelyard.plugins.interfaces.frontend import Frontend
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate
from kernelyard.transform.partition.region import Region

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
SUMMARY = re.compile(
    r"(\S+ \d+/\d+ ops \([\d.]+ % of FLOPs\))( · \S+ \d+(/\d+ ops \([\d.]+ % of FLOPs\))?)*"
    r"( · declined \d+: \S+×\d+( \S+×\d+)*)?( · contract violations \d+)?"
)


# --- models -----------------------------------------------------------------------------------------------------------
def test_every_form_of_an_onnx_model_gives_the_same(onnx_model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx_model, path)
    x = X[:, :3]
    for model in (onnx_model, onnx_model.SerializeToString(), path, str(path)):
        exe = ky.compile(model)
        assert exe.metadata == {"author": "somebody", "labels": "a\nb"}
        assert [(i.name, i.shape, i.dtype) for i in exe.inputs] == [("x", ("batch", 3), "float32")]
        results = exe.run({"x": x})
        assert_allclose(results["y"], np.maximum(x, 0))
        assert_allclose(results["z"], -x)


def test_an_irmodule(mlp: IRModule) -> None:
    assert_allclose(ky.compile(mlp)(X), evaluate(mlp, [X])[0])


def test_compiling_leaves_the_module_as_it_was(mlp: IRModule) -> None:
    before = str(mlp)
    ky.compile(mlp)
    assert str(mlp) == before


def malformed(module: IRModule) -> IRModule:
    """The module without the first line of its function."""
    main = module.graph_functions()["main"]
    return module.with_functions({"main": Function(main.params, main.bindings[1:], main.result, main.attrs)})


def test_a_malformed_module_is_refused(mlp: IRModule) -> None:
    with pytest.raises(errors.VerifyError):
        ky.compile(malformed(mlp))


def test_a_module_without_functions_is_refused() -> None:
    with pytest.raises(errors.IRError, match="no function to compile"):
        ky.compile(IRModule({}))


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(errors.FrontendError, match="folder"):
        ky.compile(tmp_path)


class Spoken(Frontend):
    """Reads texts that begin with "acme"; what it does with them is up to the test."""

    name = "spoken"

    def __init__(self, result: object) -> None:
        self.result = result

    def accepts(self, model: object) -> bool:
        if self.result == "refuses":
            raise KeyError("accepts")
        return isinstance(model, frozenset)

    def import_model(self, model: object, options: object) -> IRModule:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def test_a_frontend_of_a_plugin(install, mlp: IRModule) -> None:
    install(Spoken(mlp), targets=())
    assert_allclose(ky.compile(frozenset())(X), evaluate(mlp, [X])[0])


@pytest.mark.parametrize("fault", ["no module", "raises", "exits", "malformed module"])
def test_a_broken_frontend_is_named(install, mlp: IRModule, fault: str) -> None:
    faults = {"no module": 3, "raises": KeyError("nine"), "exits": SystemExit(3), "malformed module": malformed(mlp)}
    install(Spoken(faults[fault]), targets=())
    with pytest.raises(errors.PluginContractError) as caught:
        ky.compile(frozenset())
    assert caught.value.where == "plugin 'spoken' of kernelyard-spoken 9.9"


def test_a_frontend_that_cannot_even_be_asked_is_passed_over(install, onnx_model: onnx.ModelProto) -> None:
    install(Spoken("refuses"), targets=(), priority=99)
    assert ky.compile(onnx_model).inputs[0].name == "x"
    with pytest.raises(errors.UnknownModelError):
        ky.compile(frozenset())


# --- who takes part ---------------------------------------------------------------------------------------------------
def offloaded_by(report: ky.Report) -> set[str]:
    return {region.backend for region in report.regions}


def test_backends_are_used_in_the_order_given(install, mlp: IRModule) -> None:
    install(InterpretedBackend("acme", ["matmul", "add"]), priority=1)
    install(InterpretedBackend("beta", ["matmul", "nn.relu"]), priority=2)
    ops = {
        order: [(r.backend, *r.ops) for r in ky.explain(mlp, backends=list(order)).regions]
        for order in (("acme", "beta"), ("beta", "acme"), ("acme",), ())
    }
    assert ops["acme", "beta"].count(("acme", "matmul")) == 2
    assert ops["beta", "acme"].count(("beta", "matmul")) == 2
    assert ("beta", "nn.relu") in ops["acme", "beta"]
    assert ("beta", "nn.relu") not in ops["acme",]
    assert ops[()] == []


class Quick(InterpretedBackend):
    """States that it takes no time."""

    states_costs = True

    def _check(self, match: Match) -> Answer:
        return Accept(Cost(0.0, is_sure=True))

    def check_region(self, region: Region) -> Answer:
        return Accept(Cost(0.0, is_sure=True))


def test_auto_is_everything_usable_by_priority(install, mlp: IRModule) -> None:
    install(Quick("acme", ["matmul"]), priority=98)
    install(Quick("beta", ["matmul"]), priority=99)
    report = ky.compile(mlp).report
    assert {r.backend for r in report.regions if "matmul" in r.ops} == {"beta"}
    later = [declined.code for declined in report.declined if declined.backend == "dnnl"]
    assert "dnnl" in offloaded_by(report) or "generated" in later, "dnnl is offered what beta left"


def test_an_empty_list_leaves_all_to_the_code_generator(mlp: IRModule) -> None:
    exe = ky.compile(mlp, backends=[])
    assert set(exe.report.coverage) == {"native-cpu", "view"}
    assert_allclose(exe(X), evaluate(mlp, [X])[0])


def test_naming_a_code_generator_only_asks_for_it(mlp: IRModule) -> None:
    assert offloaded_by(ky.compile(mlp, backends=["dnnl", "native-cpu"]).report) == {"dnnl"}


@pytest.mark.parametrize("wanted", ["dnnl", None, [3], {"dnnl"}])
def test_backends_must_be_a_list_of_names(mlp: IRModule, wanted: object) -> None:
    with pytest.raises(errors.UnknownBackendError, match="list of names"):
        ky.compile(mlp, backends=wanted)


def test_a_frontend_is_no_backend(mlp: IRModule) -> None:
    with pytest.raises(errors.BackendUnavailableError, match="frontend"):
        ky.compile(mlp, backends=["onnx"])


def test_a_gpu_target_needs_its_code_generator(mlp: IRModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginManager, "active", lambda *_: [])
    with pytest.raises(errors.BackendUnavailableError, match="kernelyard-native-cuda"):
        ky.compile(mlp, target="cuda")


def test_a_target_is_what_plugins_are_for(install, mlp: IRModule) -> None:
    with pytest.raises(errors.TargetError, match="did you mean 'cuda'"):
        ky.compile(mlp, target="cudda")
    with pytest.raises(errors.TargetError, match="'npu'") as caught:
        ky.explain(mlp, target=ky.Target("npu"))
    assert {"cpu", "cuda"} <= set(str(caught.value.expected).split(", "))
    install(InterpretedBackend("acme", ["matmul"]), targets=("npu",))
    with pytest.raises(errors.TargetError, match="did you mean 'npu'"):
        ky.compile(mlp, target="npus")
    with pytest.raises(errors.BackendUnavailableError, match="or a device driver for it"):  # nothing drives one here
        ky.compile(mlp, target="npu")
    for kind in ("", "my npu", "npu:0", 3):
        with pytest.raises(errors.TargetError, match="an identifier"):
            ky.Target(kind)


# --- options ----------------------------------------------------------------------------------------------------------
def test_options_reach_the_backend(install, mlp: IRModule) -> None:
    acme = InterpretedBackend("acme", ["matmul"])
    install(acme, options=("speed",))
    ky.compile(mlp, backends=["acme"], options={"acme": {"speed": 3}})
    assert acme.options == [{"speed": 3}]


def test_options_reach_the_frontend(onnx_model: onnx.ModelProto) -> None:
    options = {"onnx": {"shapes": {"x": (2, 3)}}}
    assert ky.compile(onnx_model, options=options).inputs[0].shape == (2, 3)
    report = ky.explain(onnx_model, backends=[], options=options)
    assert report.coverage["native-cpu"]["flops"] == 2 * 6


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"acme": {"sped": 3}}, "did you mean 'speed'"),
        ({"acme": 3}, "must be a dictionary"),
        ({"akme": {}}, "did you mean 'acme'"),
        ({"native-cpu": {"anything": 1}}, "no option 'anything'"),
        (["acme"], "must be a dictionary"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(install, options: object, fact: str) -> None:
    install(InterpretedBackend("acme"), options=("speed",))
    for action in (ky.compile, ky.explain):
        with pytest.raises(errors.OptionError) as caught:
            action("there is no such file", options=options)
        assert fact in str(caught.value)


# --- the report -------------------------------------------------------------------------------------------------------
def test_explain_says_what_compile_does(mlp: IRModule, onnx_model: onnx.ModelProto) -> None:
    for model in (mlp, onnx_model):
        explained, compiled = ky.explain(model), ky.compile(model).report
        assert explained.regions == compiled.regions
        assert explained.declined == compiled.declined
        assert explained.placed == compiled.placed
        assert explained.summary == compiled.summary


def test_a_view_is_counted_as_a_view(mlp: IRModule) -> None:
    coverage = ky.compile(mlp, backends=[]).report.coverage
    assert list(coverage)[-1] == "view"
    assert (coverage["view"]["ops"], coverage["view"]["flops"], coverage["view"]["bytes"]) == (1, 0, 0)


def test_the_summary_is_one_line_and_is_logged(
    install, mlp: IRModule, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    install(InterpretedBackend("acme", ["matmul", "nn.relu"], declines={"nn.relu": "dtype"}))
    with caplog.at_level(logging.INFO, logger="kernelyard"):
        report = ky.compile(mlp, backends=["acme"]).report
    assert report.summary in caplog.messages
    assert str(report).splitlines()[0] == report.summary
    assert SUMMARY.fullmatch(report.summary), report.summary
    assert report.summary.endswith("native-cpu 3 · view 1 · declined 1: dtype×1")
    assert_declined(report, "acme", "dtype")
    assert capsys.readouterr().out == ""


def test_the_words_of_a_summary_are_explained(install, mlp: IRModule) -> None:
    install(InterpretedBackend("acme", ["matmul"]))
    text = str(ky.compile(mlp, backends=["acme"]).report)
    assert "view: ops that show the same bytes in another shape" in text
    assert "vm: " not in text  # which is not in this summary


@pytest.mark.parametrize("backends", ["auto", [], ["dnnl"]])
def test_every_summary_has_the_same_form(mlp: IRModule, backends: object) -> None:
    assert SUMMARY.fullmatch(ky.compile(mlp, backends=backends).report.summary)


def test_a_saved_model_keeps_its_report_and_its_numbers(mlp: IRModule, tmp_path: Path) -> None:
    exe = ky.compile(mlp, backends=["dnnl"])
    exe.save(tmp_path / "m.kyar")
    loaded = ky.load(tmp_path / "m.kyar")
    assert loaded.report == exe.report
    assert np.array_equal(loaded(X), exe(X))
    assert_offloaded(loaded, "dnnl")


# --- several functions, several threads -------------------------------------------------------------------------------
def test_several_entry_functions() -> None:
    functions = {}
    for name, op in (("first", "exp"), ("second", "negative")):
        b = FunctionBuilder()
        functions[name] = b.function(b.op(op, b.input("x", (dims.symbol("n"), 4))))
    exe = ky.compile(IRModule(functions))
    machine = ky.VirtualMachine(exe, ky.cpu())
    assert_allclose(machine["first"](X), np.exp(X))
    assert_allclose(machine["second"](X), -X)
    with pytest.raises(errors.ExecutionError, match="several entry functions"):
        exe(X)


def test_many_threads_may_compile_at_once(mlp: IRModule) -> None:
    expected, wrong = evaluate(mlp, [X])[0], []
    get_manager.cache_clear()  # so that threads load the plugins together

    def work() -> None:
        try:
            assert_allclose(ky.compile(mlp)(X), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what a caller requires -------------------------------------------------------------------------------------------
def test_a_required_share_is_held(install, mlp: IRModule) -> None:
    install(InterpretedBackend("acme", ["matmul", "nn.relu"], declines={"nn.relu": "dtype"}))
    assert ky.compile(mlp, backends=["acme"], require={"acme": 0.5}).report.coverage["acme"]["flops_fraction"] > 0.5
    for action in (ky.compile, ky.explain):
        with pytest.raises(errors.CoverageError) as caught:
            action(mlp, backends=["acme"], require={"native-cpu": 0.0, "acme": 1})
        text = str(caught.value)
        assert "acme runs" in text
        assert "100 % are required" in text
        assert "nn.relu×1: dtype: nn.relu is not for acme" in text


def test_a_required_share_counts_what_really_runs(install, mlp: IRModule) -> None:
    install(InterpretedBackend("acme", ["matmul"], fails=["matmul"]))
    with pytest.raises(errors.CoverageError, match="acme runs 0"):
        ky.compile(mlp, backends=["acme"], require={"acme": 0.5})


@pytest.mark.parametrize(
    ("require", "fact"),
    [(["dnnl"], "must be a dictionary"), ({"dnnl": 2}, "from 0 to 1"), ({"dnnl": "most"}, "from 0 to 1"), ({"dnl": 0.5}, "did you mean 'dnnl'")],
)  # fmt: skip
def test_bad_requirements(mlp: IRModule, require: object, fact: str) -> None:
    with pytest.raises(errors.KernelyardError) as caught:
        ky.explain(mlp, require=require)
    assert fact in str(caught.value)


def test_excluded_patterns_are_not_used(mlp: IRModule) -> None:
    report = ky.compile(mlp, backends=["dnnl"], exclude_patterns=["dnnl.softmax"]).report
    assert report.regions
    assert not [region for region in report.regions if region.pattern == "dnnl.softmax"]
    with pytest.raises(errors.OptionError, match=r"did you mean 'dnnl\.softmax'"):
        ky.explain(mlp, exclude_patterns=["dnnl.sofmax"])
    with pytest.raises(errors.OptionError, match="list of names"):
        ky.explain(mlp, exclude_patterns="dnnl.softmax")
