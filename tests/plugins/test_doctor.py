"""What `kernelyard doctor` says of plugins that are active, and yet can never do what they are for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

PATTERNS = """
        def patterns(self, target):
            from kernelyard.patterns import FusionPattern, is_op, wildcard

            relu = is_op("nn.relu")(wildcard())
            return [FusionPattern(name, relu) for name in {names}]
"""
EMPTY = """
        def patterns(self, target):
            return []
"""


def plugin(*names: str) -> str:
    """A backend with patterns of these names."""
    return GOOD_PLUGIN.replace(EMPTY, PATTERNS.replace("{names}", repr(list(names))))


LOADER = """
from kernelyard.runtime.modules.json_runtime import JSONRuntime

class Runtime(JSONRuntime):
    kind = "{kind}"

    def build(self, graph, args, values, context):
        raise AssertionError("nothing is run here")

load = Runtime.load_from_bytes
"""


def install_bad(site: Path, code: str, runtime: str = "", kind: str = "bad", manifest: str = MANIFEST) -> None:
    install(site, "bad", plugin=code, manifest=manifest, runtime=runtime)
    (site / "fake_kernelyard_bad" / "runtime.py").write_text(LOADER.replace("{kind}", kind))


def doctor(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    own = {"KERNELYARD_CACHE_DIR": str(site / "cache"), "KERNELYARD_PLUGINS": "bad", "KERNELYARD_PLUGIN_TRIAL": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "kernelyard", "doctor", *arguments]
    environment = {**kept, **own, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def facts(site: Path) -> dict[str, Any]:
    return json.loads(doctor(site, "--json").stdout)


HALF = "fake_kernelyard_bad.runtime:load"


def test_a_plugin_in_order(tmp_path: Path) -> None:
    install_bad(tmp_path, plugin("bad.relu", "bad.other"), HALF)
    found = facts(tmp_path)
    assert (found["faults"], found["notes"]) == ([], [])
    assert found["plugins"][[each["name"] for each in found["plugins"]].index("bad")]["seconds"] > 0


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (plugin("bad.relu", "bad.other", "bad.relu"), "2 patterns for cpu are called 'bad.relu': reports cannot tell them apart"),
        (plugin(), "it has no patterns for cpu: it is never used"),
        (GOOD_PLUGIN.replace("return []", "return 1 / 0"), "asking for patterns for cpu raised ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_patterns(tmp_path: Path, code: str, fault: str) -> None:
    install_bad(tmp_path, code, HALF)
    assert facts(tmp_path)["faults"] == [f"bad (kernelyard-bad): {fault}"]
    shown = doctor(tmp_path)
    assert shown.returncode == 1
    assert f"to mend: bad (kernelyard-bad): {fault}\n" in shown.stdout


def test_a_plugin_that_provides_nothing(tmp_path: Path) -> None:
    empty = "from kernelyard.plugins import hookimpl\n"
    install_bad(tmp_path, empty, HALF, manifest=MANIFEST.replace('["backend"]', "[]"))
    assert facts(tmp_path)["faults"] == ["bad (kernelyard-bad): its manifest provides nothing: it is never used"]


@pytest.mark.parametrize(
    ("runtime", "kind", "reason"),
    [
        (HALF, "evil", "its entry point is called 'bad', its modules are of kind 'evil'"),
        ("fake_kernelyard_bad.runtime:laod", "bad", "AttributeError: module 'fake_kernelyard_bad.runtime' has no attribute 'laod'"),
        ("fake_kernelyard_bad.runtime", "bad", "fake_kernelyard_bad.runtime is no function"),
        ("fake_kernelyard_bad.absent:load", "bad", "No module named 'fake_kernelyard_bad.absent'"),
    ],
)  # fmt: skip
def test_a_runtime_half_that_can_load_nothing(tmp_path: Path, runtime: str, kind: str, reason: str) -> None:
    install_bad(tmp_path, plugin("bad.relu"), runtime, kind)
    found = facts(tmp_path)
    assert found["faults"] == ["runtime bad (kernelyard-bad): broken"]
    assert reason in found["runtimes"]["bad"]["reason"]


def test_a_runtime_half_for_another_core(tmp_path: Path) -> None:
    manifest = MANIFEST.replace('runtime_api = ">=2.0,<3"', 'runtime_api = ">=9.0"')
    install_bad(tmp_path, plugin("bad.relu"), HALF, manifest=manifest)
    assert "runtime_api = '>=9.0', this core has 2.1" in facts(tmp_path)["runtimes"]["bad"]["reason"]


def test_no_runtime_half_is_worth_a_note(tmp_path: Path) -> None:
    install_bad(tmp_path, plugin("bad.relu"))
    found = facts(tmp_path)
    assert (found["healthy"], len(found["notes"])) == (True, 1)
    assert "no entry point of the group 'kernelyard.runtime'" in found["notes"][0]
    shown = doctor(tmp_path)
    assert "note: bad (kernelyard-bad): it has no entry point" in shown.stdout
    assert shown.stdout.endswith("all in order\n")


def test_a_slow_import_is_worth_a_note(tmp_path: Path) -> None:
    install_bad(tmp_path, "import time\ntime.sleep(2.5)\n" + plugin("bad.relu"), HALF)
    found = facts(tmp_path)
    (note,) = found["notes"]
    assert note.startswith("bad (kernelyard-bad): its import took ")
    assert "more than 2 s" in note
    assert "import, hooks and probe: bad " in doctor(tmp_path).stdout


def test_a_code_generator_that_is_installed_and_cannot_be_used_is_named(tmp_path: Path) -> None:
    manifest = MANIFEST.replace('["backend"]', '["code_generator"]').replace('api = ">=2.0,<3"\nr', 'api = ">=3.0"\nr')
    install_bad(tmp_path, GOOD_PLUGIN, manifest=manifest)
    shown = doctor(tmp_path).stdout
    assert "no code generator is usable" in shown
    assert "→ bad is incompatible: pip install --upgrade kernelyard\n" in shown
    assert "pip install kernelyard-native-cpu" not in shown
