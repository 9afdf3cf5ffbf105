"""Ten plugins that are bad on purpose: each is named with its reason, and everything else goes on working."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

PATTERNS = "from kernelyard.patterns import Accept, FusionPattern, is_op, wildcard\n            from kernelyard.plugins.api import Cost\n            return [FusionPattern('{name}.relu', is_op('nn.relu')(wildcard()), lambda match: Accept(Cost(0.0, True)))]"
TAKES_RELU = GOOD_PLUGIN.replace("return []", PATTERNS)
FIRST = MANIFEST + "priority = 99\n"  # asked before all others
WRONG_MODULE = "from interpreted_backend import InterpretedModule\n            return InterpretedModule([])"
CODEGEN = 'raise AssertionError("nothing matches, so nothing is generated")'
PROBE = "def probe(self):\n            {}\n\n        def patterns"
HANGS, CRASHES = "import time; time.sleep(60)", "import ctypes; ctypes.string_at(0)"

# The plugin's code, its manifest, its state, and a part of the reason, or of what a compile reports as its violation.
BAD: dict[str, tuple[str, str, str, str]] = {
    "import-error": ("import a_library_that_is_not_there", MANIFEST, "broken", "a_library_that_is_not_there"),
    "wrong-api": (GOOD_PLUGIN, MANIFEST.replace(">=2.0,<3", ">=3.0,<4"), "incompatible", "needs plugin API >=3.0,<4"),
    "misspelt-hook": (GOOD_PLUGIN.replace("kernelyard_backend", "kernelyard_backnd"), MANIFEST, "broken", "kernelyard_backnd"),
    "duplicate-name": (GOOD_PLUGIN, MANIFEST, "broken", "is taken by kernelyard-good"),
    "lies-in-check": (TAKES_RELU.replace(CODEGEN, WRONG_MODULE), FIRST, "active", "lies-in-check"),
    "raises-in-codegen": (TAKES_RELU.replace(CODEGEN, "raise ValueError('no')"), FIRST, "active", "ValueError"),
    "hangs-in-probe": (GOOD_PLUGIN.replace("def patterns", PROBE.format(HANGS)), MANIFEST, "broken", "did not finish within 6 s"),
    "crashes-in-probe": (GOOD_PLUGIN.replace("def patterns", PROBE.format(CRASHES)), MANIFEST, "broken", "signal 11 (SIGSEGV) in its probe"),
    "prints": ("print('look at me')\n" + GOOD_PLUGIN, MANIFEST, "active", ""),
    "slow-import": ("import time; time.sleep(0.5)\n" + GOOD_PLUGIN, MANIFEST, "active", ""),
}  # fmt: skip

CACHE = tempfile.TemporaryDirectory(prefix="kernelyard-tests-")  # our own plugins are probed once

COMPILE = """
import json, sys
import numpy as np
import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
b = FunctionBuilder()
exe = ky.compile(IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))}))
assert exe(np.float32([-1, 2])).numpy().tolist() == [0, 2]
violations = [[violation.backend, violation.message] for violation in exe.report.violations]
infos = {info.dist: [info.state, info.reason] for info in ky.backends()}
print(json.dumps({"violations": violations, "infos": infos, "seen": sorted(sys.modules)}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed distributions with one good plugin in it."""
    install(tmp_path, "good")
    return tmp_path


def python(site: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh process with the plugins of `site` and ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {
        **kept,
        "PYTHONPATH": path,
        "KERNELYARD_PLUGIN_TIMEOUT": "90",
        "KERNELYARD_CACHE_DIR": CACHE.name,
        **variables,
    }
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def install_bad(site: Path, name: str) -> str:
    """Install a bad plugin; its distribution."""
    plugin, manifest, _, _ = BAD[name]
    if name == "duplicate-name":
        install(site, "good", distribution="acme-good", plugin=plugin, manifest=manifest)
        return "acme-good"
    install(site, name, plugin=plugin, manifest=manifest)
    return f"kernelyard-{name}"


def test_there_are_ten() -> None:
    assert len(BAD) == 10


@pytest.mark.parametrize("name", BAD)
def test_it_is_contained(site: Path, name: str) -> None:
    dist, (_, _, state, reason) = install_bad(site, name), BAD[name]
    done = python(site, COMPILE, KERNELYARD_PLUGIN_TIMEOUT="6" if "did not finish" in reason else "90")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # nothing but JSON: what plugins print goes elsewhere
    assert found["infos"]["kernelyard-good"] == ["active", ""]
    assert found["infos"][dist][0] == state, found["infos"][dist]
    if state != "active":
        assert reason in found["infos"][dist][1]
    violations = dict(found["violations"])
    assert set(violations) == ({name} if state == "active" and reason else set())
    assert not violations or reason in f"{name} {violations[name]}"
    assert name != "prints" or "look at me" in done.stderr


def test_a_slow_import_costs_only_those_who_need_it(site: Path) -> None:
    install_bad(site, "slow-import")
    code = "import sys; from kernelyard.plugins.discovery.manager import PluginManager; PluginManager().get('good', 'backend')"
    done = python(site, f"{code}\nassert not any('slow_import' in name for name in sys.modules)")
    assert done.returncode == 0, done.stderr
