"""A plugin that is broken in any way is named with its reason, and everything else goes on working."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

from kernelyard.errors import BackendUnavailableError, PluginError, UnknownBackendError
from kernelyard.plugins import hookimpl
from kernelyard.plugins.discovery.manager import BackendInfo, PluginManager, block_plugins, get_manager
from kernelyard.plugins.hookspecs import HOOK_OF_PART
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.interfaces.frontend import Frontend
from kernelyard.plugins.interfaces.manifest import Manifest, parse_manifest
from kernelyard.plugins.sandbox.guard import run_guarded
from kernelyard.runtime.abi.runtime_halves import runtime_entry_points


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, with one good plugin in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("KERNELYARD_PLUGINS", raising=False)
    install(tmp_path, "good")
    yield tmp_path
    for module in [name for name in sys.modules if name.startswith(("fake_kernelyard", "fake_acme"))]:
        del sys.modules[module]


def states(**options: object) -> dict[str, BackendInfo]:
    infos = PluginManager(**options).infos()
    assert ("kernelyard-good", "active") in {(info.dist, info.state) for info in infos}
    return {info.dist: info for info in infos}


def test_good_plugin_is_active_with_its_facts(site: Path) -> None:
    info = states()["kernelyard-good"]
    assert (info.name, info.version, info.api, info.provides) == ("good", "1.0", ">=2.0,<3", ("backend",))


BROKEN = {
    "raises": ("raise RuntimeError('no luck')", MANIFEST, "broken", "RuntimeError: no luck"),
    "exits": ("import sys; sys.exit(3)", MANIFEST, "broken", "SystemExit"),
    "syntax": ("def broken(:", MANIFEST, "broken", "SyntaxError"),
    "missing-import": ("import a_library_that_is_not_there", MANIFEST, "broken", "a_library_that_is_not_there"),
    "misspelt": (
        GOOD_PLUGIN.replace("def kernelyard_backend", "def kernelyard_backnd"),
        MANIFEST,
        "broken",
        "did you mean 'kernelyard_backend'",
    ),
    "no-hook": ("", MANIFEST, "broken", "implements no 'kernelyard_backend'"),
    "wrong-object": (
        "from kernelyard.plugins import hookimpl\n@hookimpl\ndef kernelyard_backend(): return 3",
        MANIFEST,
        "broken",
        "returned int, not a Backend",
    ),
    "hook-raises": (
        "from kernelyard.plugins import hookimpl\n@hookimpl\ndef kernelyard_backend(): 1 / 0",
        MANIFEST,
        "broken",
        "ZeroDivisionError",
    ),
    "returns-nothing": (
        "from kernelyard.plugins import hookimpl\n@hookimpl\ndef kernelyard_backend(): pass",
        MANIFEST,
        "broken",
        "returned NoneType, not a Backend",
    ),
    "unclear-range": (GOOD_PLUGIN, MANIFEST.replace(">=2.0,<3", "two"), "broken", "two"),
    "no-name": (GOOD_PLUGIN, MANIFEST.replace('name = "{name}"', ""), "broken", "name"),
    "unknown-part": (GOOD_PLUGIN, MANIFEST.replace('["backend"]', '["engine"]'), "broken", "engine"),
    "raises-no-exception": ("raise KeyboardInterrupt", MANIFEST, "broken", "KeyboardInterrupt"),
    "probe-returns-text": (
        GOOD_PLUGIN.replace("def patterns", "def probe(self):\n            return 'no'\n\n        def patterns"),
        MANIFEST,
        "broken",
        "probe() returned str",
    ),
    "hook-arguments": (
        "from kernelyard.plugins import hookimpl\n@hookimpl\ndef kernelyard_backend(unknown): pass",
        MANIFEST,
        "broken",
        "unknown",
    ),
    "other-name": (GOOD_PLUGIN.replace('"{name}"', '"another"'), MANIFEST, "broken", "calls itself 'another'"),
    "no-manifest": (GOOD_PLUGIN, None, "broken", "no readable manifest.toml"),
    "bad-toml": (GOOD_PLUGIN, "name = ", "broken", "not valid TOML"),
    "lies-name": (GOOD_PLUGIN, MANIFEST.replace("{name}", "dnnl"), "broken", "its manifest says 'dnnl'"),
    "lies-parts": (
        GOOD_PLUGIN,
        MANIFEST.replace('["backend"]', '["backend", "frontend"]'),
        "broken",
        "implements no 'kernelyard_frontend'",
    ),
    "too-new": (GOOD_PLUGIN, MANIFEST.replace(">=2.0,<3", ">=3.0"), "incompatible", "needs plugin API >=3.0"),
    "unavailable": (
        GOOD_PLUGIN.replace(
            "def patterns",
            "def probe(self):\n            from kernelyard.plugins.interfaces.backend import Unavailable\n            return Unavailable('libacme.so is missing', 'pip install acme')\n\n        def patterns",
        ),
        MANIFEST,
        "unavailable",
        "libacme.so is missing",
    ),
    "library-is-missing": (
        GOOD_PLUGIN.replace(
            "def patterns",
            "def probe(self):\n            from kernelyard.runtime.api import SharedLibrary\n            SharedLibrary('libacme.so', ('acme',)).locate()\n\n        def patterns",
        ),
        MANIFEST,
        "unavailable",
        "libacme.so is not here",
    ),
    "probe-raises": (
        GOOD_PLUGIN.replace(
            "def patterns", "def probe(self):\n            raise OSError('broken library')\n\n        def patterns"
        ),
        MANIFEST,
        "broken",
        "broken library",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plugin_is_named_and_the_rest_works(site: Path, name: str) -> None:
    plugin, manifest, state, reason = BROKEN[name]
    install(site, name, plugin=plugin, manifest=manifest)
    info = states()[f"kernelyard-{name}"]
    assert info.state == state
    assert reason in info.reason or reason in (info.hint or "")
    with pytest.raises((BackendUnavailableError, UnknownBackendError)) as error:
        PluginManager().get(name, "backend")
    assert error.value.hint


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("acme_sdk.blas", "install the library that has the module 'acme_sdk'; kernelyard-lacking 1.0 imports it"),
        ("fake_kernelyard_lacking.codegen", "the installation is incomplete: pip install --force-reinstall kernelyard-lacking"),
        ("kernelyard.gone", "it was made for another release: pip install --upgrade kernelyard kernelyard-lacking"),
    ],
)  # fmt: skip
def test_a_missing_module_has_its_cure(site: Path, module: str, hint: str) -> None:
    install(site, "lacking", plugin=f"import {module}\n{GOOD_PLUGIN}")
    info = states()["kernelyard-lacking"]
    assert (info.state, info.hint) == ("broken", hint)


def test_hanging_plugin_is_given_up(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "0.3")
    install(site, "hangs", plugin="import threading; threading.Event().wait(20)")
    info = states()["kernelyard-hangs"]
    assert info.state == "broken"
    assert "did not finish within 0.3 s" in info.reason


def test_nothing_of_an_incompatible_plugin_runs(site: Path) -> None:
    install(site, "newer", plugin="raise SystemExit('must not run')", manifest=MANIFEST.replace(">=2.0,<3", ">=7"))
    assert states()["kernelyard-newer"].state == "incompatible"
    assert not any(name.startswith("fake_kernelyard_newer") for name in sys.modules)


def test_of_duplicate_names_the_namesake_distribution_wins(site: Path) -> None:
    install(site, "good", distribution="acme-tools")
    infos = states()
    assert infos["kernelyard-good"].state == "active"
    assert infos["acme-tools"].state == "broken"
    assert "taken by kernelyard-good 1.0" in infos["acme-tools"].reason


def test_blocking(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "other")
    assert states(blocked=["other"])["kernelyard-other"].state == "blocked"
    monkeypatch.setenv("KERNELYARD_PLUGINS", "good")
    assert "KERNELYARD_PLUGINS=good" in states()["kernelyard-other"].reason
    monkeypatch.setenv("KERNELYARD_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert {info.state for info in PluginManager().infos()} == {"blocked"}
    assert not any(name.startswith("fake_kernelyard_other") for name in sys.modules)


def test_unknown_name_has_a_suggestion_and_the_pip_line(site: Path) -> None:
    with pytest.raises(UnknownBackendError, match="KY301") as error:
        PluginManager().get("goood", "backend")
    assert "did you mean 'good'" in str(error.value)
    assert "pip install" not in str(error.value)  # of names that are ours alone
    with pytest.raises(UnknownBackendError, match="pip install kernelyard-tvm-compat"):
        PluginManager().get("tvm-compat", "backend")


def test_wrong_target_is_refused(site: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="cuda"):
        PluginManager().get("good", "backend", target="cuda")


def test_order_is_priority_then_name(site: Path) -> None:
    install(site, "aaa")
    install(site, "zzz", manifest=MANIFEST + "priority = 9\n")
    names = [backend.name for backend in PluginManager().active("backend", "cpu")]
    assert [name for name in names if name in ("aaa", "good", "zzz")] == ["zzz", "aaa", "good"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('name = "x"\napi = ">=1"', "lacks 'provides'"),
        ('name = "x"\napi = ">=1"\nprovides = ["everything"]', "everything"),
        ('name = "x"\napi = "one"\nprovides = []', "API range"),
        ('name = "x"\napi = ">=1.0"\nprovides = []\nruntime_api = "one"', "range of the runtime API cannot be read"),
        ('name = "x"\napi = ">=1.0"\nprovides = []\nruntime_api = ">=1.0,!=1.2"', "cannot be read"),
        ("name = 'x'\napi = '>=1.0'\nprovides = []\nruntime_api = '>=1.0'", "on a line of its own in double quotes"),
        ('name = "x"\napi = ">=1.0"\nprovides = []\nruntime_api = 1', "wrong type"),
        ('name = "x"\napi = ">=1"\nprovides = []\npriority = "high"', "'priority' has the wrong type"),
        ('name = "x"\napi = ">=1"\nprovides = []\nspeed = 3', "unknown field 'speed'"),
        ("name = " + "[" * 100_000, "recursion"),
    ],
)
def test_manifest_faults_are_named(text: str, fault: str) -> None:
    with pytest.raises(PluginError, match="KY300") as error:
        parse_manifest(text, "manifest.toml")
    assert fault in str(error.value)


def test_a_malformed_entry_points_file_is_named_and_the_rest_works(site: Path) -> None:
    """The standard library gives up on every distribution when one file is malformed; the core does not."""
    info = site / "kernelyard_junk-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelyard-junk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelyard]\nthis is no entry point\n")
    found = states()["kernelyard-junk"]
    assert (found.name, found.state) == ("kernelyard-junk", "broken")
    assert "entry_points.txt cannot be read" in found.reason
    assert "reference" in {entry.name for entry in runtime_entry_points()}


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_an_unusable_timeout_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", value)
    with pytest.raises(PluginError, match="KERNELYARD_PLUGIN_TIMEOUT"):
        run_guarded("asking", lambda: 1)


def test_many_threads_may_need_a_plugin_first(site: Path) -> None:
    manager, found = PluginManager(), []
    threads = [threading.Thread(target=lambda: found.append(manager.get("good", "backend"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("part", HOOK_OF_PART)
def test_every_hook_gives_its_part(part: str) -> None:
    """A plugin of this process is checked like an installed one, and can be taken out again."""
    made = PARTS[part]()
    plugin = ModuleType("plugin")
    setattr(plugin, HOOK_OF_PART[part], hookimpl(lambda: made))
    manager = PluginManager(autoload=False)
    manager.register(plugin, Manifest("acme", ">=2.0,<3", (part,), ("cpu",)))
    assert manager.get("acme", part) is made
    assert manager.active(part) == [made]
    with pytest.raises(PluginError, match="already registered"):
        manager.register(plugin, Manifest("acme", ">=2.0,<3", (part,)))
    manager.unregister("acme")
    with pytest.raises(UnknownBackendError):
        manager.get("acme", part)


class OneBackend(Backend):
    name = "acme"

    def patterns(self, target):
        return []

    def codegen(self, regions, options):
        raise AssertionError("nothing matches")


class OneGenerator(CodeGenerator):
    name = "acme"

    def generate(self, functions, target, options):
        raise AssertionError("nothing to generate")


class OneFrontend(Frontend):
    name = "acme"

    def accepts(self, model):
        return False

    def import_model(self, model, options):
        raise AssertionError("nothing is accepted")


PARTS = {"backend": OneBackend, "code_generator": OneGenerator, "frontend": OneFrontend}


def test_the_frontend_whose_manifest_claims_a_model_is_imported_first(tmp_path: Path) -> None:
    """The others are imported where it declines, and not before."""
    manager = PluginManager(autoload=False)
    imported: list[str] = []
    for name, claim in {"early": {}, "late": {"suffixes": (".acme",)}, "typed": {"types": ("numpy", "bytes")}}.items():
        made = type("Named", (OneFrontend,), {"name": name})()
        plugin = ModuleType(name)
        vars(plugin)["kernelyard_frontend"] = hookimpl(lambda made=made: imported.append(made.name) or made)
        manager.register(plugin, Manifest(name, ">=2.0,<3", ("frontend",), **claim))
    asked = manager.frontends(tmp_path / "model.ACME")
    assert next(asked).name == "late"
    assert imported == ["late"]
    assert [frontend.name for frontend in asked] == ["early", "typed"]
    assert [next(manager.frontends(model)).name for model in (np.ones(1), b"model", "model.onnx")] == [
        "typed",
        "typed",
        "early",
    ]


def test_blocking_within_a_block(site: Path) -> None:
    get_manager.cache_clear()  # it may know the plugins of another test
    with block_plugins(["good"]):
        info = next(info for info in get_manager().infos() if info.name == "good")
        assert (info.state, info.hint) == ("blocked", "leave out -p no:good")
        with pytest.raises(BackendUnavailableError, match="leave out"):
            get_manager().get("good", "backend")
    assert get_manager().get("good", "backend").name == "good"
    with pytest.raises(UnknownBackendError, match="did you mean 'good'"), block_plugins(["god"]):
        pass
    get_manager.cache_clear()


def test_options_are_what_manifests_say(site: Path) -> None:
    install(site, "tunable", manifest=MANIFEST + 'options = ["speed"]\n')
    names = PluginManager().option_names()
    assert (names["tunable"], names["good"]) == (("speed",), ())
