"""A plugin that breaks its word is named in the report, its part runs elsewhere, and strict mode raises."""

from __future__ import annotations

import re

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, InterpretedModule

import kernelyard as ky
from kernelyard import dims, errors
from kernelyard.ir import Call, Function, FunctionBuilder, IRModule, get_op
from kernelyard.ir.visitor import RewriteWith
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.backend import Unavailable
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Lying(InterpretedBackend):
    """Accepts matmul and relu, and breaks its word where it is told to."""

    def __init__(self, lie: str) -> None:
        super().__init__("liar", ["matmul", "nn.relu"], fails=["nn.relu"] if lie == "codegen raises" else [])
        self.lie = lie

    def patterns(self, target):
        if self.lie == "patterns raises":
            raise RuntimeError("no patterns today")
        if self.lie == "patterns of others":
            return [FusionPattern("dnnl.matmul", is_op("matmul")(wildcard(), wildcard()))]
        return 3 if self.lie == "no patterns" else super().patterns(target)

    def prepare(self, module):
        if self.lie == "prepare raises":
            raise ZeroDivisionError("prepare")
        if self.lie == "prepare breaks":
            main = module.graph_functions()["main"]
            broken = Function(main.params, main.bindings[1:], main.result, main.attrs)
            return module.with_functions({"main": broken})
        return "a module" if self.lie == "prepare lies" else module

    def codegen(self, regions, options):
        if self.lie == "wrong object":
            return {"not": "a module"}
        if self.lie == "lacks symbols":
            return InterpretedModule([])
        return super().codegen(regions, options)


LIES = ["patterns raises", "patterns of others", "no patterns", "prepare raises", "prepare lies", "prepare breaks"]
LIES += ["codegen raises", "wrong object", "lacks symbols"]


@pytest.mark.filterwarnings("ignore::kernelyard.errors.PerformanceWarning")
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_backend(install, mlp: IRModule, lie: str) -> None:
    install(Lying(lie))
    exe = ky.compile(mlp, backends=["liar", "dnnl"])
    assert_allclose(exe(X), evaluate(mlp, [X])[0])
    assert {violation.backend for violation in exe.report.violations} == {"liar"}
    assert "contract violations" in exe.report.summary
    assert "contract violated by liar" in str(exe.report)
    with pytest.raises(errors.PluginContractError) as caught:
        ky.compile(mlp, backends=["liar", "dnnl"], strict=True)
    assert "liar" in str(caught.value)
    assert caught.value.hint


def test_only_what_fails_falls_back(install, mlp: IRModule) -> None:
    backend = InterpretedBackend("liar", ["matmul", "nn.relu"], merge_composites=False, fails=["nn.relu"])
    install(backend)
    report = ky.compile(mlp, backends=["liar"]).report
    assert_offloaded(report, "liar", "liar.matmul", count=2)
    assert not [region for region in report.regions if "nn.relu" in region.ops]
    (violation,) = report.violations
    assert "cannot generate nn.relu" in violation.message
    assert report.coverage["native-cpu"]["ops"] == 3


def test_a_check_that_crashes_declines_its_match(install, mlp: IRModule) -> None:
    def crash(match):
        raise KeyError("oops")

    pattern = FusionPattern("liar.softmax", is_op("nn.softmax")(wildcard()), crash)
    install(InterpretedBackend("liar", patterns=[pattern]))
    exe = ky.compile(mlp, backends=["liar"])
    assert_declined(exe, "liar", "check-error", "liar.softmax")
    assert [violation.backend for violation in exe.report.violations] == ["liar"]
    with pytest.raises(errors.PluginContractError, match=r"kernelyard-liar 9\.9.*oops"):
        ky.compile(mlp, backends=["liar"], strict=True)
    assert_allclose(exe(X), evaluate(mlp, [X])[0])


def test_a_check_that_answers_nonsense_declines_its_match(install, mlp: IRModule) -> None:
    pattern = FusionPattern("liar.softmax", is_op("nn.softmax")(wildcard()), lambda match: True)
    install(InterpretedBackend("liar", patterns=[pattern]))
    assert_declined(ky.explain(mlp, backends=["liar"]), "liar", "check-error")


class LyingGenerator(CodeGenerator):
    """A code generator of the highest priority that generates nothing useful."""

    name = "liar"
    targets = ("cpu",)

    def __init__(self, result: object) -> None:
        self.result = result

    def generate(self, functions, target, options):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [errors.CodegenError("cannot"), ZeroDivisionError("oops"), 3, InterpretedModule([])])
def test_a_lying_code_generator(install, mlp: IRModule, result: object) -> None:
    install(LyingGenerator(result), priority=99)
    with pytest.warns(errors.PerformanceWarning, match=r"reference interpreter: add, matmul, nn\.relu, nn\.softmax"):
        exe = ky.compile(mlp, backends=[])
    assert_allclose(exe(X), evaluate(mlp, [X])[0])
    assert set(exe.report.coverage) == {"reference", "view"}
    assert not exe.report.kernels
    assert "contract violated by liar" in str(exe.report)
    with pytest.raises(errors.PluginContractError, match="liar"):
        ky.compile(mlp, backends=[], strict=True)


def test_a_code_generator_that_fails_is_named_with_the_place(install, mlp: IRModule) -> None:
    install(LyingGenerator(ZeroDivisionError("oops")), priority=99)
    with pytest.warns(errors.PerformanceWarning):
        (violation,) = ky.compile(mlp, backends=[]).report.violations
    assert re.search(
        r"the code generator liar failed: ZeroDivisionError at test_fallback\.py:\d+: oops", violation.message
    )
    with pytest.raises(errors.PluginContractError, match="liar failed") as caught:
        ky.compile(mlp, backends=[], strict=True)
    assert "liar" in str(caught.value.where)
    assert "code for every function" in str(caught.value.expected)
    assert "kernelyard -p no:liar" in str(caught.value.hint)
    assert "parse_primfunc" in str(caught.value.hint)


def test_another_code_generator_can_be_chosen(install, mlp: IRModule) -> None:
    install(LyingGenerator(3), priority=99)
    assert set(ky.compile(mlp, backends=["native-cpu"]).report.coverage) == {"native-cpu", "view"}


@pytest.mark.filterwarnings("ignore::kernelyard.errors.PerformanceWarning")
def test_a_module_with_functions_of_others_is_refused(install, mlp: IRModule) -> None:
    class Greedy(InterpretedModule):
        def symbols(self):
            return (*super().symbols(), "taken")

    class Grabbing(InterpretedBackend):
        def codegen(self, regions, options):
            return Greedy(regions)

    install(Grabbing("acme", ["matmul"]))
    install(Grabbing("beta", ["nn.relu"]))
    exe = ky.compile(mlp, backends=["acme", "beta"])
    assert_allclose(exe(X), evaluate(mlp, [X])[0])
    assert {violation.backend for violation in exe.report.violations} == {"acme", "beta"}
    with pytest.raises(errors.PluginContractError, match="'taken' that was not requested"):
        ky.compile(mlp, backends=["acme", "beta"], strict=True)


class CompletingGenerator(CodeGenerator):
    """A code generator that completes every target by the same result."""

    name = "completing"
    targets = ("cpu",)

    def __init__(self, result: object) -> None:
        self.result = result

    def complete(self, target):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def generate(self, functions, target, options):
        raise NotImplementedError


def test_a_code_generator_completes_the_target(install, mlp: IRModule) -> None:
    seen: list[ky.Target] = []

    class Watching(InterpretedBackend):
        def patterns(self, target):
            seen.append(target)
            return super().patterns(target)

    install(CompletingGenerator(ky.Target("cpu", mcpu="x86-64-v2")), priority=99)
    install(Watching("acme", ["matmul"]))
    assert ky.explain(mlp, backends=["acme"]).target == "cpu mcpu=x86-64-v2"
    assert {target.mcpu for target in seen} == {"x86-64-v2"}


@pytest.mark.parametrize("result", [ZeroDivisionError("oops"), 3, ky.Target("cuda"), errors.CodegenError("cannot")])
def test_a_target_must_be_completed_to_one_of_its_kind(install, mlp: IRModule, result: object) -> None:
    install(CompletingGenerator(result), priority=99)
    with pytest.raises(errors.PluginContractError, match="completing"):
        ky.explain(mlp, backends=[])


def test_a_code_generator_may_refuse_a_target(install, mlp: IRModule) -> None:
    install(CompletingGenerator(errors.TargetError("no such CPU")), priority=99)
    with pytest.raises(errors.TargetError, match="no such CPU"):
        ky.explain(mlp, backends=[])


# --- without a code generator -----------------------------------------------------------------------------------------
@pytest.fixture
def no_generator(monkeypatch: pytest.MonkeyPatch):
    """A process in which only oneDNN and the ONNX frontend may be loaded."""
    monkeypatch.setenv("KERNELYARD_PLUGINS", "dnnl,onnx")
    get_manager.cache_clear()
    yield
    get_manager.cache_clear()


def test_the_reference_interpreter_runs_the_rest(no_generator, mlp: IRModule, tmp_path) -> None:
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 4))
    y = b.op("cumsum", b.op("matmul", x, np.eye(4, dtype=np.float32)), axis=1)
    module = IRModule({"main": b.function(b.op("reshape", y, shape=(dims.symbol("n") * 4,)))})
    with pytest.warns(errors.PerformanceWarning, match="reference interpreter: cumsum$") as caught:
        exe = ky.compile(module)
    assert caught[0].filename == __file__
    assert {name: work["ops"] for name, work in exe.report.coverage.items()} == {"dnnl": 1, "reference": 1, "view": 1}
    assert exe.report.summary.startswith("dnnl 1/3 ops")
    assert_allclose(exe(X), evaluate(module, [X])[0])
    assert ky.explain(module).placed == exe.report.placed
    exe.save(tmp_path / "m.kyar")
    assert_allclose(ky.load(tmp_path / "m.kyar")(X), evaluate(module, [X])[0])


def test_functions_do_not_share_what_the_interpreter_runs(no_generator) -> None:
    functions = {}
    for axis, name in enumerate(("first", "second")):
        b = FunctionBuilder()
        functions[name] = b.function(b.op("cumsum", b.input("x", (3, 4)), axis=axis))
    with pytest.warns(errors.PerformanceWarning):
        machine = ky.VirtualMachine(ky.compile(IRModule(functions), backends=[]))
    for axis, name in enumerate(functions):
        assert_allclose(machine[name](X), np.cumsum(X, axis))


def test_a_program_of_views_needs_nobody(no_generator) -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("reshape", b.input("x", (3, 4)), shape=(12,)))})
    exe = ky.compile(module, backends=[])
    assert exe.report.summary == "view 1/1 ops (0 % of FLOPs)"
    assert np.array_equal(exe(X), X.reshape(12))


def test_an_unavailable_backend_named_raises_and_auto_goes_on(install, mlp: IRModule) -> None:
    class Absent(InterpretedBackend):
        def probe(self):
            return Unavailable("libacme.so is missing", "pip install acme-library")

    install(Absent("acme", ["matmul"]), priority=99)
    with pytest.raises(errors.BackendUnavailableError) as caught:
        ky.compile(mlp, backends=["acme"])
    assert "libacme.so is missing" in str(caught.value)
    assert caught.value.hint == "pip install acme-library"
    assert not [r for r in ky.compile(mlp).report.regions if r.backend == "acme"]


class Optimizing(InterpretedBackend):
    """Makes every relu of its regions a clip, or fails as it is told to."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("tuner", ["matmul", "nn.relu"])
        self.failure = failure
        self.compiled: list[str] = []

    def optimize(self, region):
        if self.failure:
            raise self.failure
        changed = {name: RewriteWith(_clip_for_relu).mutate(f) for name, f in region.graph_functions().items()}
        return region.with_functions(changed)

    def codegen(self, regions, options):
        self.compiled = [op for region in regions for op in region.ops]
        return super().codegen(regions, options)


def _clip_for_relu(mutator, var, value):
    is_relu = isinstance(value, Call) and value.op_name == "nn.relu"
    return Call(get_op("clip"), value.args, {"min": 0.0}) if is_relu else value


def test_regions_are_optimized_before_codegen(install, mlp: IRModule) -> None:
    backend = Optimizing()
    install(backend)
    exe = ky.compile(mlp, backends=["tuner"], strict=True)
    assert_offloaded(exe, "tuner", "tuner.nn.relu", count=1)
    assert backend.compiled == ["matmul", "clip", "matmul"]
    assert_allclose(exe(X), evaluate(mlp, [X])[0])


def test_an_optimization_that_fails_is_a_violation_and_the_region_is_used_as_it_was(install, mlp: IRModule) -> None:
    backend = Optimizing(ZeroDivisionError("no time"))
    install(backend)
    exe = ky.compile(mlp, backends=["tuner"])
    assert_offloaded(exe, "tuner", "tuner.nn.relu", count=1)
    assert backend.compiled == ["matmul", "nn.relu", "matmul"]
    assert_allclose(exe(X), evaluate(mlp, [X])[0])
    assert "no time" in exe.report.violations[0].message
    assert "contract violated by tuner" in str(exe.report)
    with pytest.raises(errors.PluginContractError, match="no time"):
        ky.compile(mlp, backends=["tuner"], strict=True)
