"""Test faults of plugins beside their codegen: each is named with the plugin and its version, and nothing else is harmed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fake_distribution import MANIFEST, install

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactError, ExecutionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager

PLUGIN = """
from functools import partial
import numpy as np
from kernelyard.plugins.api import Accept, Backend, Cost, Decline, FusionPattern, JSONSerializer, KernelNode, hookimpl, is_op, wildcard
from kernelyard.runtime.api import BoundCall, JSONRuntime, NativeCall

def check(match):
    return Accept()

class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return KernelNode("relu", [("x", composite.bindings[0].value.args[0])])

class Runtime(JSONRuntime):
    kind = "bad"

    def extra(self):
        pass

    def build(self, graph, args, values, context):
        x, y = (a.as_array() for a in args)
        run = partial(np.maximum, x, 0, out=y)
        return BoundCall([run])

load = Runtime.load_from_bytes

class Bad(Backend):
    name = "bad"

    def extra(self):
        pass

    def patterns(self, target):
        return [FusionPattern("bad.relu", is_op("nn.relu")(wildcard()), check)]

    def codegen(self, regions, options):
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)

@hookimpl
def kernelyard_backend():
    return Bad()
"""
PLUGIN_CLASS, RUNTIME_CLASS = PLUGIN.rindex("    def extra"), PLUGIN.index("    def extra")
CHECK, BOUND = "return Accept()", "return BoundCall([run])"
WHO = "kernelyard-bad 3.1"
BLOBS = "    def blobs(self):\n        return {'engine': b'3'}\n\n"
X = np.float32([[1, -2], [-9, 1]])
LARGE = np.tile(X, (40_000, 1))  # inputs of this size are not copied: `rebind` is asked


def method(place: int, signature: str, body: str, before: str = "") -> str:
    """Return the plugin with one more method in one of its classes."""
    return f"{PLUGIN[:place]}{before}    def {signature}:\n        {body}\n\n{PLUGIN[place:]}"


def runtime(signature: str, body: str, before: str = "") -> str:
    return method(RUNTIME_CLASS, signature, body, before)


def changed(before: str, after: str) -> str:
    assert before in PLUGIN
    return PLUGIN.replace(before, after)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a plugin of this code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KERNELYARD_PLUGIN_TRIAL", "0")
    monkeypatch.setenv("KERNELYARD_PLUGINS", "bad,native-cpu,llvm")

    def put(plugin: str) -> None:
        facts = {"runtime": "fake_kernelyard_bad.plugin:load", "version": "3.1"}
        install(tmp_path, "bad", plugin=plugin, manifest=MANIFEST, **facts)
        get_manager.cache_clear()

    yield put
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith("fake_kernelyard")]:
        del sys.modules[module]


def model() -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 2))
    return IRModule({"main": b.function(b.op("tanh", b.op("nn.relu", x)))})


def compiled() -> ky.Executable:
    return ky.compile(model(), backends=["bad"])


def assert_right(exe: ky.Executable, x: np.ndarray = X) -> None:
    np.testing.assert_allclose(exe(x).numpy(), np.tanh(np.maximum(x, 0)), rtol=1e-6)


# --- the plugin and its answers ---------------------------------------------------------------------------------------
HOOKS = {
    "an argument": (changed("kernelyard_backend()", "kernelyard_backend(target)"), "Argument(s) {'target'} are declared"),
    "a generator": (changed("return Bad()", "yield Bad()"), "kernelyard_backend returned generator, not a Backend"),
    "a class": (changed("return Bad()", "return Bad"), "kernelyard_backend returned ABCMeta, not a Backend"),
    "a coroutine": (changed("def kernelyard_b", "async def kernelyard_b"), "kernelyard_backend returned coroutine"),
    "abstract": (changed("def codegen(", "def code_gen("), "abstract method codegen"),
    "probe": (method(PLUGIN_CLASS, "probe(self)", "return 'no'"), "probe() returned str, not None or an Unavailable"),
}  # fmt: skip


@pytest.mark.parametrize("row", HOOKS)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_hook_that_gives_no_backend_makes_the_plugin_broken(installed, row: str) -> None:
    plugin, reason = HOOKS[row]
    installed(plugin)
    with pytest.raises(ky.errors.BackendUnavailableError) as caught:
        compiled()
    assert reason in caught.value.message
    assert WHO in str(caught.value.where)
    assert caught.value.hint == "pip install --upgrade kernelyard-bad"
    assert_right(ky.compile(model()))


ANSWERS = {
    "patterns take nothing": (changed("def patterns(self, target)", "def patterns(self)"), "takes 1 positional argument"),
    "patterns are texts": (changed("return [FusionPattern", "return ['bad.relu'] or [FusionPattern"), "no FusionPattern"),
    "a pattern is a text": (changed('is_op("nn.relu")(wildcard())', '"nn.relu"'), "bad.relu has no pattern"),
    "of an unknown operator": (changed('"nn.relu"', '"nn.rellu"'), "no operator is called 'nn.rellu'"),
    "a check takes nothing": (changed("def check(match)", "def check()"), "check() takes 0 positional arguments"),
    "a check is a text": (changed(", check)", ", 'check')"), "'str' object is not callable"),
    "accepts for a text": (changed(CHECK, "return Accept('cheap')"), "a cost is no Cost"),
    "accepts for no time": (changed(CHECK, "return Accept(Cost(float('nan'), True))"), "a cost is no time"),
    "accepts for less than none": (changed(CHECK, "return Accept(Cost(-1.0, True))"), "a cost is no time"),
    "declines without a word": (changed(CHECK, "return Decline(3, None)"), "not Decline(code, message)"),
    "codegen takes one": (changed("codegen(self, regions, options)", "codegen(self, regions)"), "takes 2 positional"),
}  # fmt: skip


@pytest.mark.parametrize("row", ANSWERS)
def test_an_answer_of_another_form_is_a_violation(installed, row: str) -> None:
    plugin, message = ANSWERS[row]
    installed(plugin)
    exe = compiled()
    assert_right(exe)
    assert not [region for region in exe.report.regions if region.backend == "bad"]
    (violation,) = exe.report.violations
    assert WHO in violation.message
    assert message in violation.message


FACTS = {
    "facts raise": (method(PLUGIN_CLASS, "facts(self)", "1 / 0"), "asking bad for facts raised ZeroDivisionError"),
    "facts are a list": (method(PLUGIN_CLASS, "facts(self)", "return [3]"), "asking bad for facts raised TypeError"),
    "patterns are texts": (ANSWERS["patterns are texts"][0], "is one that is no FusionPattern: 'bad.relu'"),
}


@pytest.mark.parametrize("row", FACTS)
def test_doctor_tells_and_goes_on(installed, row: str) -> None:
    plugin, told = FACTS[row]
    installed(plugin)
    result = CliRunner().invoke(main, ["doctor"], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert told in " ".join(result.output.split())


# --- the runtime half -------------------------------------------------------------------------------------------------
BUILDS = {
    "nothing": ("return None", "returned NoneType, not a BoundCall"),
    "steps": ("return [run]", "returned list, not a BoundCall"),
    "no steps": ("return BoundCall(None)", "the steps of its BoundCall are NoneType"),
    "a number": ("return BoundCall([3])", "3 is no step"),
    "a jump": ("return BoundCall([NativeCall(0, n=0)])", "is no step: neither a NativeCall of a function"),
    "a call of a text": ("return BoundCall([NativeCall('f')])", "is no step"),
    "rebind": ("return BoundCall([run], rebind=3)", "rebind and slots of its BoundCall are dictionaries"),
    "an error": ("1 / 0", "ZeroDivisionError at plugin.py:"),
    "an exit": ("exit(3)", "SystemExit"),
    "a step that fails": ("return BoundCall([lambda: 1 / 0])", "ZeroDivisionError at plugin.py:"),
    "a step that exits": ("return BoundCall([lambda: exit(3)])", "SystemExit"),
    "a step of another arity": ("return BoundCall([lambda x: x])", "missing 1 required positional argument"),
}
KERNELS = {
    "raises": (runtime("native_kernel(self, symbol)", "1 / 0"), "ZeroDivisionError at plugin.py:"),
    "is a number": (runtime("native_kernel(self, symbol)", "return 3"), "its native_kernel is int, not a NativeKernel"),
}


def assert_execution_error(run: Callable[[], object], found: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        run()
    error = caught.value
    assert found in str(error.found)
    assert error.where == f"bad_0, run by bad of {WHO}"
    assert "pip install --upgrade kernelyard-bad, or compile the model again without it" in str(error.hint)


@pytest.mark.parametrize("row", [*BUILDS, *KERNELS])
def test_what_cannot_be_run_is_an_error_that_says_whose(installed, row: str) -> None:
    plugin, found = KERNELS[row] if row in KERNELS else (changed(BOUND, BUILDS[row][0]), BUILDS[row][1])
    installed(plugin)
    exe = compiled()
    assert_execution_error(lambda: exe(X), found)


@pytest.mark.parametrize(("body", "found"), [("1 / 0", "ZeroDivisionError"), ("exit(3)", "SystemExit")])
def test_what_cannot_be_shown_says_whose(installed, body: str, found: str) -> None:
    installed(runtime("inspect(self)", body))
    assert f"a module, run by bad of {WHO}, which cannot show it: {found}" in compiled().inspect()


@pytest.mark.parametrize(
    ("body", "found"), [("exit(3)", "SystemExit"), ("return 3", "int"), ("return {'a': 3}", "dict")]
)
def test_what_cannot_be_counted_says_whose(installed, body: str, found: str) -> None:
    installed(runtime("cache_info(self)", body))
    exe = compiled()
    assert_right(exe)
    with pytest.raises(ExecutionError, match="cannot say what it keeps") as caught:
        exe.cache_info()
    assert found in str(caught.value.found)
    assert WHO in str(caught.value.where)


PARTS = {
    "describe raises": ("describe=lambda: 1 / 0", "ZeroDivisionError at plugin.py:"),
    "describe is a number": ("describe=lambda: 3", "'int' object is not iterable"),
    "describe is of texts": ("describe=lambda: ['relu']", "it returned str, not a Part"),
    "counters raise": ("counters=lambda: 1 / 0", "ZeroDivisionError at plugin.py:"),
    "counters are numbers": ("counters=lambda: [3]", "cannot unpack"),
}


@pytest.mark.parametrize("row", PARTS)
def test_what_a_profile_cannot_be_told(installed, row: str) -> None:
    argument, found = PARTS[row]
    installed(changed(BOUND, f"return BoundCall([run], {argument})"))
    exe = compiled()
    assert_right(exe)
    assert_execution_error(lambda: exe.profile({"x": X}, calls=1), found)


# --- saving and loading -----------------------------------------------------------------------------------------------
SAVES = {
    "needs raise": (runtime("needs(self)", "1 / 0", "    @property\n"), "ZeroDivisionError at plugin.py:"),
    "needs are a number": (runtime("needs(self)", "return 3", "    @property\n"), "its needs are int, not a text"),
    "blobs raise": (runtime("blobs(self)", "1 / 0"), "ZeroDivisionError at plugin.py:"),
    "blobs are a list": (runtime("blobs(self)", "return [3]"), "its blobs are no dictionary of bytes"),
    "a blob is a number": (runtime("blobs(self)", "return {'a': 3}"), "its blobs are no dictionary of bytes by name"),
    "compatibility raises": (runtime("compatibility(self)", "1 / 0", BLOBS), "ZeroDivisionError at plugin.py:"),
    "compatibility is a number": (runtime("compatibility(self)", "return 3", BLOBS), "its compatibility is no text"),
}  # fmt: skip


@pytest.mark.parametrize("row", SAVES)
def test_what_cannot_be_saved_leaves_no_file(installed, tmp_path: Path, row: str) -> None:
    plugin, found = SAVES[row]
    installed(plugin)
    exe = compiled()
    assert_right(exe)
    with pytest.raises(ArtifactError, match="a module of kind 'bad' cannot be saved") as caught:
        exe.save(tmp_path / "model.kyar")
    assert found in str(caught.value.found)
    assert caught.value.where == WHO
    assert not (tmp_path / "model.kyar").exists()


def test_what_could_not_be_loaded_again_is_not_saved(installed, tmp_path: Path) -> None:
    installed(PLUGIN)
    exe = compiled()
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    metadata.write_text("")
    with pytest.raises(ArtifactError, match="the metadata of its distribution is damaged") as caught:
        exe.save(tmp_path / "model.kyar")
    assert "version ''" in str(caught.value.found)
    assert not (tmp_path / "model.kyar").exists()


@pytest.mark.parametrize(("body", "found"), [("1 / 0", "ZeroDivisionError"), ("return 3", "it returned int")])
def test_what_cannot_be_exported(installed, tmp_path: Path, body: str, found: str) -> None:
    installed(runtime("native_unit(self)", body))
    with pytest.raises(ArtifactError, match="a module of kind 'bad' cannot be exported") as caught:
        compiled().export_library(tmp_path / "model.so")
    assert found in str(caught.value.found)
    assert caught.value.where == WHO


@pytest.mark.parametrize("signature", ["fit(self, token)", "restore(self, blobs)"])
def test_blobs_that_cannot_be_used_are_done_without(installed, tmp_path: Path, signature: str) -> None:
    installed(runtime(signature, "1 / 0", BLOBS))
    path = tmp_path / "model.kyar"
    compiled().save(path)
    with pytest.warns(ky.errors.PerformanceWarning, match="bad of kernelyard-bad 3.1: blobs cannot be used"):
        loaded = ky.load(path)
    assert_right(loaded)
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 0, result.output


def test_a_sound_plugin_runs(installed, tmp_path: Path) -> None:
    """Run the plugin that each row changes one line of."""
    installed(PLUGIN)
    exe = compiled()
    with warnings.catch_warnings(action="error"):
        exe.save(tmp_path / "model.kyar")
        assert_right(ky.load(tmp_path / "model.kyar"), LARGE)
    assert [region.backend for region in exe.report.regions] == ["bad"]
