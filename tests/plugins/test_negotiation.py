"""Old and new plugins with old and new cores: the API range decides, before anything of the plugin runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

from kernelyard.errors import BackendUnavailableError
from kernelyard.plugins import manager, manifest
from kernelyard.plugins.manager import PluginManager

OLD, NEWER_MINOR, NEXT = ">=1.0,<2", ">=1.3,<2", ">=2.0,<3"
BOTH = ">=1.0,<3"
# (the core's API, the plugin's range, do they fit): rows are releases that meet.
MEETINGS = [
    ("1.0", OLD, True),
    ("1.7", OLD, True),  # an old plugin with a newer core of the same major version
    ("2.0", OLD, False),  # an old plugin with a core that broke with it
    ("1.0", NEWER_MINOR, False),  # a new plugin that uses what the old core does not have
    ("1.3", NEWER_MINOR, True),
    ("1.0", NEXT, False),  # a new plugin with an old core
    ("2.0", NEXT, True),
    ("1.0", BOTH, True),
    ("2.1", BOTH, True),
    ("3.0", BOTH, False),
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
    assert info.hint == f"install a version of kernelyard-{name} for plugin API {core}"
    assert not any(name in module for module in sys.modules), "nothing of it may run"
    with pytest.raises(BackendUnavailableError, match="KY302"):
        found.get(name, "backend")


def test_every_other_plugin_of_another_age_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plugins of different ages: each core takes the one that fits it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("KERNELYARD_PLUGINS", raising=False)
    install(tmp_path, "elder")
    install(tmp_path, "junior", manifest=MANIFEST.replace(OLD, NEXT))
    for core, usable in (("1.0", "elder"), ("2.0", "junior")):
        for module in (manager, manifest):
            monkeypatch.setattr(module, "API_VERSION", core)
        states = {info.name: info.state for info in PluginManager().infos() if info.name in ("elder", "junior")}
        assert [name for name, state in states.items() if state == "active"] == [usable]
        assert sorted(states.values()) == ["active", "incompatible"]
