"""Old and new plugins with old and new cores: the API range decides, before anything of the plugin runs.

The runtime half has a range of its own, which is read where an artifact is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

from kernelyard.errors import BackendUnavailableError
from kernelyard.plugins.discovery import manager
from kernelyard.plugins.discovery.manager import PluginManager
from kernelyard.plugins.interfaces import manifest
from kernelyard.runtime.abi import api_range as runtime_api
from kernelyard.runtime.abi.runtime_halves import Requirement, find_loader, runtime_entry_points

if TYPE_CHECKING:
    from kernelyard.runtime.abi.runtime_halves import ModuleLoader

OLD, NEWER_MINOR, NEXT = ">=2.0,<3", ">=2.3,<3", ">=3.0,<4"
BOTH = ">=2.0,<4"
# (the core's API, the plugin's range, do they fit): rows are releases that meet.
MEETINGS = [
    ("2.0", OLD, True),
    ("2.7", OLD, True),  # an old plugin with a newer core of the same major version
    ("3.0", OLD, False),  # an old plugin with a core that broke with it
    ("2.0", NEWER_MINOR, False),  # a new plugin that uses what the old core does not have
    ("2.3", NEWER_MINOR, True),
    ("2.0", NEXT, False),  # a new plugin with an old core
    ("3.0", NEXT, True),
    ("2.0", BOTH, True),
    ("3.1", BOTH, True),
    ("4.0", BOTH, False),
]


@pytest.mark.parametrize(("core", "plugin", "fits"), MEETINGS)
def test_meeting(core: str, plugin: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("KERNELYARD_PLUGINS", raising=False)
    for module in (manager, manifest):
        monkeypatch.setattr(module, "API_VERSION", core)
    name = f"met{abs(hash((core, plugin)))}"
    install(tmp_path, name, plugin=GOOD_PLUGIN, manifest=MANIFEST.replace(OLD, plugin))
    found = PluginManager()
    info = next(info for info in found.infos() if info.name == name)
    if fits:
        assert info.state == "active", info.reason
        assert found.get(name, "backend").name == name
        return
    assert info.state == "incompatible"
    assert info.reason == f"needs plugin API {plugin}, this core has {core}"
    is_core_older = plugin in (NEWER_MINOR, NEXT)
    other = f"install a version of kernelyard-{name} for plugin API {core}"
    assert info.hint == ("pip install --upgrade kernelyard" if is_core_older else other)
    assert not any(name in module for module in sys.modules), "nothing of it may run"
    with pytest.raises(BackendUnavailableError, match="KY302"):
        found.get(name, "backend")


def test_every_other_plugin_of_another_age_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plugins of different ages: each core takes the one that fits it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("KERNELYARD_PLUGINS", raising=False)
    install(tmp_path, "elder")
    install(tmp_path, "junior", manifest=MANIFEST.replace(OLD, NEXT))
    for core, usable in (("2.0", "elder"), ("3.0", "junior")):
        for module in (manager, manifest):
            monkeypatch.setattr(module, "API_VERSION", core)
        states = {info.name: info.state for info in PluginManager().infos() if info.name in ("elder", "junior")}
        assert [name for name, state in states.items() if state == "active"] == [usable]
        assert sorted(states.values()) == ["active", "incompatible"]


RUNTIME = """
from kernelyard.runtime.modules.json_runtime import JSONRuntime

class Met(JSONRuntime):
    kind = "{name}"

    def build(self, graph, args, values, context):
        raise AssertionError("no graph is run here")

load = Met.load_from_bytes
"""


def find_runtime_half(folder: Path, name: str, manifest: str) -> ModuleLoader:
    """The loader of an installed runtime half, as loading an artifact finds it."""
    install(folder, name, manifest=manifest, runtime=f"fake_kernelyard_{name}.runtime:load")
    (folder / f"fake_kernelyard_{name}" / "runtime.py").write_text(RUNTIME.replace("{name}", name))
    required = Requirement(f"kernelyard-{name}", "1.0")
    return find_loader(name, required)


@pytest.mark.parametrize(("core", "plugin", "fits"), MEETINGS)
def test_meeting_of_runtime_halves(
    core: str, plugin: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(runtime_api, "RUNTIME_API", core)
    name = f"half{abs(hash((core, plugin)))}"
    manifest = MANIFEST.replace(f'runtime_api = "{OLD}"', f'runtime_api = "{plugin}"')
    if fits:
        load = find_runtime_half(tmp_path, name, manifest)
        assert load(b'{"schema": 1, "graphs": []}', {}).kind == name
        return
    with pytest.raises(BackendUnavailableError, match="written for another version of the runtime API") as error:
        find_runtime_half(tmp_path, name, manifest)
    assert error.value.where == f"kernelyard-{name} 1.0"
    assert error.value.found == f"runtime_api = {plugin!r}"
    assert error.value.expected == f"a range that contains {core}, this core's"
    older = "kernelyard" if plugin in (NEWER_MINOR, NEXT) else f"kernelyard-{name}"
    assert error.value.hint == f"pip install --upgrade {older}"
    assert not any(name in module for module in sys.modules), "nothing of it may run"


@pytest.mark.parametrize(("core", "fits"), [("1.4", True), ("2.0", False)])
def test_a_runtime_half_that_states_no_range_was_written_for_the_first_versions(
    core: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(runtime_api, "RUNTIME_API", core)
    manifest, name = MANIFEST.replace(f'runtime_api = "{OLD}"\n', ""), f"unstated{int(fits)}"
    if fits:
        assert find_runtime_half(tmp_path, name, manifest)
    else:
        with pytest.raises(BackendUnavailableError):
            find_runtime_half(tmp_path, name, manifest)


def test_every_runtime_half_of_this_core_and_of_the_installed_plugins_fits() -> None:
    entries = runtime_entry_points()
    assert "reference" in {entry.name for entry in entries}
    for entry in entries:
        runtime_api.check_runtime_api(entry)
