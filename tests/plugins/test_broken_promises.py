"""Plugins that break their word while a model is compiled: the compile goes on, the report says who it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_distribution import MANIFEST, install

import kernelyard as ky
from kernelyard.errors import PluginContractError
from kernelyard.ir import FunctionBuilder, IRModule, to_text
from kernelyard.plugins.discovery.manager import get_manager

# An honest backend that takes nn.relu, for the rows to change.
PLUGIN = """
from kernelyard.plugins import hookimpl

@hookimpl
def kernelyard_backend():
    import time
    from kernelyard.ir import IRModule
    from kernelyard.patterns import Accept, FusionPattern, is_op, wildcard
    from interpreted_backend import InterpretedBackend, InterpretedModule

    def check(match):
        return Accept()

    def attributes(match):
        return {}

    class Module(InterpretedModule):
        pass

    class Honest(InterpretedBackend):
        def patterns(self, target):
            return [FusionPattern("{name}.relu", is_op("nn.relu")(wildcard()), check, attributes)]

        def prepare(self, module):
            return module

        def codegen(self, regions, options):
            return Module(regions)

    return Honest("{name}")
"""
CODEGEN, MODULE = "return Module(regions)", "    class Module(InterpretedModule):\n        pass"
CHECK, ATTRIBUTES, PREPARE = "return Accept()", "return {}", "return module"
METHOD = "    class Module(InterpretedModule):\n        def {}(self):\n            {}"
MUTATION = "match.root.type = None"


def module_with(method: str, body: str) -> tuple[str, str]:
    return MODULE, METHOD.format(method, body)


def module_preparing(body: str) -> tuple[str, str]:
    return MODULE, METHOD.format("prepare", body).replace("(self)", "(self, symbol, values, threads)")


def at_regions(body: str) -> tuple[str, str]:
    before = "        def prepare(self"
    return before, f"        def check_region(self, region):\n            {body}\n\n{before}"


# What is changed in the plugin, and a part of the violation's message. These fail once the backend has the op.
LATE: dict[str, tuple[tuple[str, str], str]] = {
    "hangs": ((CODEGEN, "time.sleep(60)"), "did not finish within 2.2 s: it is in kernelyard_backend.<locals>.Honest.codegen"),
    "raises": ((CODEGEN, "1 / 0"), "division by zero"),
    "exits": ((CODEGEN, "raise SystemExit(3)"), "SystemExit: 3"),
    "returns nothing": ((CODEGEN, "return None"), "no RuntimeModule"),
    "returns a class": ((CODEGEN, "return Module"), "no RuntimeModule"),
    "has no kind": ((MODULE, "    class Module(InterpretedModule):\n        kind = None"), "has no kind"),
    "module cannot be prepared": (module_preparing("1 / 0"), "division by zero"),
    "module hangs over preparing": (module_preparing("time.sleep(60)"), "it is in kernelyard_backend.<locals>.Module.prepare"),
    "symbols raises": (module_with("symbols", "1 / 0"), "division by zero"),
    "symbols hangs": (module_with("symbols", "time.sleep(60)"), "did not finish within 2.2 s"),
    "symbols twice": (module_with("symbols", "return tuple(self.regions) * 2"), "two functions 'bad_0'"),
    "symbols of others": (module_with("symbols", "return (*self.regions, 'next_0')"), "'next_0' that was not requested"),
    "symbols lacking": (module_with("symbols", "return ()"), "lacks functions: "),
    "symbols are garbage": (module_with("symbols", "return 3"), "not iterable"),
    "constants raises": (module_with("constants", "1 / 0"), "division by zero"),
    "constants are a list": (module_with("constants", "return [1]"), "are no mapping"),
    "constants are garbage": (module_with("constants", "return {'weight': 1}"), "a constant that is none"),
    "save_to_bytes raises": (module_with("save_to_bytes", "1 / 0"), "division by zero"),
    "save_to_bytes gives text": (module_with("save_to_bytes", "return 'text'"), "cannot be serialized"),
    "changes its regions": ((CODEGEN, "regions[0].function.bindings[0].var.type = None; return Module(regions)"), "it changed the module"),
}  # fmt: skip
# These fail while the backend is offered the model.
EARLY: dict[str, tuple[tuple[str, str], str]] = {
    "check hangs": ((CHECK, "time.sleep(60)"), "it is in kernelyard_backend.<locals>.check"),
    "check raises": ((CHECK, "1 / 0"), "division by zero"),
    "check exits": ((CHECK, "raise SystemExit(3)"), "SystemExit: 3"),
    "check answers garbage": ((CHECK, "return 'yes'"), "a check must return Accept()"),
    "check changes the model": ((CHECK, f"{MUTATION}; return Accept()"), "it changed the module"),
    "check writes weights": ((CHECK, "match.call.args[0].data[...] = 0"), "read-only"),
    "attributes raises": ((ATTRIBUTES, "1 / 0"), "division by zero"),
    "attributes are garbage": ((ATTRIBUTES, "return 3"), "not iterable"),
    "attributes cannot be written": ((ATTRIBUTES, "return {'of': object()}"), "no text form"),
    "attributes change the model": ((ATTRIBUTES, f"{MUTATION}; return {{}}"), "it changed the module"),
    "prepare raises": ((PREPARE, "1 / 0"), "division by zero"),
    "prepare hangs": ((PREPARE, "time.sleep(60)"), "it is in kernelyard_backend.<locals>.Honest.prepare"),
    "prepare returns garbage": ((PREPARE, "return 3"), "no IRModule"),
    "prepare changes the model": ((PREPARE, "module['main'].params[0].type = None; return module"), "it changed the module"),
    "prepare drops the model": ((PREPARE, "return IRModule()"), "prepare changed the signature of @main"),
    "check of regions raises": (at_regions("1 / 0"), "division by zero"),
    "check of regions hangs": (at_regions("time.sleep(60)"), "it is in kernelyard_backend.<locals>.Honest.check_region"),
    "check of regions answers garbage": (at_regions("return 3"), "a check must return Accept()"),
    "patterns are garbage": (("return [FusionPattern(", "return 3 or [FusionPattern("), "not iterable"),
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions, with an honest backend called `next` in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "next", plugin=PLUGIN)
    get_manager.cache_clear()
    yield tmp_path
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith("fake_kernelyard")]:
        del sys.modules[module]


def model() -> IRModule:
    """relu of a constant beside relu of the input: the simplifier must leave both."""
    b = FunctionBuilder()
    x = b.input("x", (2, 2))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("add", x, np.float32([[1, 2], [3, -4]]))))})


X = np.float32([[1, -2], [-9, 1]])
Y = [[2, 0], [0, 0]]


def break_promise(site: Path, change: tuple[str, str]) -> None:
    before, after = change
    assert before in PLUGIN
    install(site, "bad", plugin=PLUGIN.replace(before, after), manifest=MANIFEST)


def assert_contained(module: IRModule, message: str) -> ky.Report:
    """The program is right, the report names plugin, version and fault, and with `strict` that is an error."""
    before = to_text(module)
    exe = ky.compile(module, backends=["bad", "next"])
    assert exe(X).numpy().tolist() == Y
    assert {violation.backend for violation in exe.report.violations} == {"bad"}
    said = exe.report.violations[0].message
    assert "plugin 'bad' of kernelyard-bad 1.0" in said
    assert message in said
    assert to_text(module) == before
    with pytest.raises(PluginContractError, match="bad"):
        ky.compile(module, backends=["bad", "next"], strict=True)
    return exe.report


@pytest.mark.parametrize("row", LATE)
def test_what_is_accepted_and_then_fails_goes_to_the_next(
    site: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "2" if "hang" in row else "90")
    change, message = LATE[row]
    break_promise(site, change)
    report = assert_contained(model(), message)
    assert [region.backend for region in report.regions] == ["next"]
    (reasons,) = [node.reasons for node in report.nodes if node.op == "nn.relu"]
    assert [(reason.backend, reason.code) for reason in reasons] == [("bad", "contract-violation")]


@pytest.mark.parametrize("row", EARLY)
def test_what_fails_over_the_offer_goes_to_the_next(site: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "2" if "hang" in row else "90")
    change, message = EARLY[row]
    break_promise(site, change)
    module = model()
    if row == "check writes weights":
        b = FunctionBuilder()
        x = b.input("x", (2, 2))
        module = IRModule({"main": b.function(b.op("maximum", x, np.float32([[2, 0], [0, 0]])))})
        monkeypatch.setattr(sys.modules[__name__], "X", np.float32([[2, 0], [-9, -1]]))
        install_relu_as("maximum", site)
    report = assert_contained(module, message)
    assert [region.backend for region in report.regions] == ["next"]


def install_relu_as(op: str, site: Path) -> None:
    """Both plugins take another op, whose second operand the check gets to see."""
    for file in site.glob("*/plugin.py"):
        text = file.read_text().replace('is_op("nn.relu")(wildcard())', f'is_op("{op}")(wildcard(), wildcard())')
        file.write_text(text.replace("args[0].data", "args[1].data"))


@pytest.mark.parametrize("backends", [["bad"], ["next", "bad"]])
def test_where_nobody_comes_next_the_target_takes_it(site: Path, backends: list[str]) -> None:
    break_promise(site, LATE["raises"][0])
    for file in site.glob("*_bad/plugin.py"):
        file.write_text(file.read_text().replace('"nn.relu"', '"tanh"'))
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("tanh", b.op("nn.relu", b.input("x", (2, 2)))))})
    exe = ky.compile(module, backends=backends)
    assert np.allclose(exe(X).numpy(), np.tanh(np.maximum(X, 0)))
    assert [region.backend for region in exe.report.regions] == backends[:-1]
    assert [v.backend for v in exe.report.violations] == ["bad"]
    (reasons,) = [node.reasons for node in exe.report.nodes if node.op == "tanh"]
    assert ("bad", "contract-violation") in [(reason.backend, reason.code) for reason in reasons]


def test_one_after_the_other_fails(site: Path) -> None:
    """Each gets its turn, and none is asked again."""
    break_promise(site, LATE["raises"][0])
    install(site, "worse", plugin=PLUGIN.replace(*LATE["raises"][0]))
    exe = ky.compile(model(), backends=["bad", "worse", "next"])
    assert exe(X).numpy().tolist() == Y
    assert [v.backend for v in exe.report.violations] == ["bad", "worse"]
    assert [region.backend for region in exe.report.regions] == ["next"]
    assert not exe.report.declined


def test_a_hung_check_that_wakes_up_later_changes_nothing(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on when nobody waits for it any more; what it says then is not heard."""
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "2")
    break_promise(site, (CHECK, "time.sleep(4); return Accept()"))
    others = set(threading.enumerate())  # of tests before: some sleep for a minute
    exe = ky.compile(model(), backends=["bad", "next"])
    before = exe.report.to_json()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("kernelyard plugin: offering the model to bad"):
            thread.join()
    assert exe.report.to_json() == before
    assert exe(X).numpy().tolist() == Y


def test_what_plugins_print_in_many_threads_leaves_stdout_where_it_was(site: Path) -> None:
    stdout = sys.stdout
    threads = [threading.Thread(target=lambda: ky.compile(model(), backends=["next"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is stdout
