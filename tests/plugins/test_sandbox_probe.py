"""A plugin whose native code ends the process is found out in another process, once, and named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_distribution import GOOD_PLUGIN, install

from kernelyard.plugins.sandbox.worker_process import Crashed, Hung, Worker, cause

PROBE = "def probe(self):\n            {}\n\n        def patterns"
IN_PROBE = GOOD_PLUGIN.replace("def patterns", PROBE)
CRASH = "__import__('ctypes').string_at(0)"
# The plugin's code, and what its reason says.
CRASHES: dict[str, tuple[str, str]] = {
    "segfault": (IN_PROBE.replace("{}", CRASH), "ended the process with signal 11 (SIGSEGV) in its probe"),
    "abort": (IN_PROBE.replace("{}", "__import__('os').abort()"), "ended the process with signal 6 (SIGABRT) in its probe"),
    "exit": (IN_PROBE.replace("{}", "__import__('os')._exit(9)"), "ended the process with exit status 9 in its probe"),
    "quiet exit": (IN_PROBE.replace("{}", "__import__('os')._exit(0)"), "ended the process with exit status 0 in its probe"),
    "import": (f"{CRASH}\n{GOOD_PLUGIN}", "ended the process with signal 11 (SIGSEGV) in its import"),
    "hook": (GOOD_PLUGIN.replace("return Null()", CRASH), "ended the process with signal 11 (SIGSEGV) in its hooks"),
    "hang": (IN_PROBE.replace("{}", "__import__('time').sleep(60)"), "its probe did not finish within 6 s"),
    # Native code that never lets go of the interpreter stops every thread, also the one that would keep the time.
    "hang that holds the lock": (IN_PROBE.replace("{}", "__import__('ctypes').PyDLL(None).sleep(60)"), "its probe did not finish within 6 s"),
    "reads stdin": (IN_PROBE.replace("{}", "assert __import__('sys').stdin.read() == ''"), ""),
}  # fmt: skip

STATES = """
import json
import kernelyard as ky
print(json.dumps({info.dist: [info.state, info.reason, info.hint] for info in ky.backends()}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed distributions with one good plugin in it."""
    folder = tmp_path / "site"
    install(folder, "good")
    return folder


def python(site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that has the plugins of `site` alone, and a cache of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    own = {"KERNELYARD_CACHE_DIR": str(site.parent / "cache"), "KERNELYARD_PLUGIN_TIMEOUT": "90"}  # on a busy machine
    environment = {**kept, "PYTHONPATH": path, "KERNELYARD_PLUGINS": "good,bad", **own, **variables}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def states(site: Path, **variables: str) -> tuple[dict[str, list[str]], str]:
    """State, reason and hint by distribution, and what was printed beside."""
    done = python(site, "-c", STATES, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", CRASHES)
def test_it_is_named_and_the_process_lives(site: Path, name: str) -> None:
    plugin, reason = CRASHES[name]
    install(site, "bad", plugin=plugin)
    found, _ = states(site, KERNELYARD_PLUGIN_TIMEOUT="6" if "did not finish" in reason else "90")
    assert found["kernelyard-good"][0] == "active"
    assert found["kernelyard-bad"][:2] == (["broken", reason] if reason else ["active", ""])


COUNTED = "import pathlib, os; pathlib.Path({where!r}, str(os.getpid())).touch()\n" + GOOD_PLUGIN


def count_imports(site: Path, folder: Path, **variables: str) -> int:
    """In how many processes a start imports the plugin."""
    before = len(list(folder.iterdir()))
    states(site, **variables)
    return len(list(folder.iterdir())) - before


@pytest.fixture
def imports(site: Path, tmp_path: Path) -> Path:
    """A folder that gets a file for each process that imports the plugin `bad`."""
    folder = tmp_path / "imports"
    folder.mkdir()
    install(site, "bad", plugin=COUNTED.replace("{where!r}", repr(str(folder))))
    return folder


def test_later_starts_remember(site: Path, imports: Path) -> None:
    assert count_imports(site, imports) == 2  # the probe, and the use
    assert count_imports(site, imports) == 1


def test_what_changes_is_probed_again(site: Path, imports: Path) -> None:
    assert count_imports(site, imports) == 2
    plugin = site / "fake_kernelyard_bad" / "plugin.py"
    plugin.write_text(plugin.read_text() + "\n")
    assert count_imports(site, imports) == 2
    install(site, "library-that-it-needs", plugin="", package="library")
    assert count_imports(site, imports) == 2
    assert count_imports(site, imports, LD_LIBRARY_PATH="/elsewhere") == 2
    assert count_imports(site, imports) == 1


@pytest.mark.parametrize("variables", [{"KERNELYARD_CACHE_MB": "0"}, {"KERNELYARD_CACHE_DIR": "/dev/null/cache"}])
def test_without_a_cache_it_works_and_remembers_nothing(site: Path, imports: Path, variables: dict[str, str]) -> None:
    assert count_imports(site, imports, **variables) == 2
    assert count_imports(site, imports, **variables) == 2


def test_probes_can_be_disabled(site: Path, imports: Path) -> None:
    assert count_imports(site, imports, KERNELYARD_PLUGIN_TRIAL="0") == 1


def test_a_crash_is_remembered_until_a_retry(site: Path) -> None:
    """The first start says what happened; later ones know. The library is mended where nobody can see it."""
    flag = site.parent / "library"
    crash = f"__import__('pathlib').Path({str(flag)!r}).exists() or {CRASH}"
    install(site, "bad", plugin=IN_PROBE.replace("{}", crash))
    first, shown = states(site)
    assert "Segmentation fault" in shown
    assert "fake_kernelyard_bad/plugin.py" in shown  # where in the plugin that was
    second, shown = states(site)
    assert first == second
    assert not shown
    assert "kernelyard doctor --retry" in first["kernelyard-bad"][2]
    flag.touch()
    assert states(site)[0] == first
    main = "from kernelyard.cli.main import main; main()"
    done = python(site, "-c", main, "doctor", "--json")
    assert done.returncode == 1
    assert "bad (kernelyard-bad): broken" in json.loads(done.stdout)["faults"]
    mended = json.loads(python(site, "-c", main, "doctor", "--retry", "--json").stdout)
    assert "bad (kernelyard-bad): broken" not in mended["faults"]
    assert states(site)[0]["kernelyard-bad"] == ["active", "", None]


def test_a_hang_is_remembered_for_ten_minutes_or_until_another_limit(site: Path) -> None:
    """The machine may have been busy: what took too long once must not be left out for ever."""
    folder = site.parent / "imports"
    folder.mkdir()
    hang = COUNTED.replace("{where!r}", repr(str(folder))) + "\n__import__('time').sleep(60)"
    install(site, "bad", plugin=hang)
    assert count_imports(site, folder, KERNELYARD_PLUGIN_TIMEOUT="3") == 1
    assert count_imports(site, folder, KERNELYARD_PLUGIN_TIMEOUT="3") == 0
    main = "from kernelyard.cli.main import main; main()"
    shown = python(site, "-c", main, "backends", KERNELYARD_PLUGIN_TIMEOUT="3").stdout
    assert "its import did not finish within 3 s" in shown
    assert re.search(r"it is probed again after \d\d:\d\d, or at once by `kernelyard doctor --retry`", shown)
    assert "KERNELYARD_PLUGIN_TIMEOUT extends the time limit, -p no:bad excludes it" in shown
    assert count_imports(site, folder, KERNELYARD_PLUGIN_TIMEOUT="3.5") == 1
    later = "import time; now = time.time; time.time = lambda: now() + 601" + STATES
    before = len(list(folder.iterdir()))
    assert python(site, "-c", later, KERNELYARD_PLUGIN_TIMEOUT="3").returncode == 0
    assert len(list(folder.iterdir())) == before + 1


def test_doctor_survives_a_runtime_half_that_ends_the_process(site: Path) -> None:
    install(site, "bad", runtime="fake_kernelyard_bad.crash:load")
    (site / "fake_kernelyard_bad" / "crash.py").write_text(CRASH)
    done = python(site, "-c", "from kernelyard.cli.main import main; main()", "doctor", "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["runtimes"]["bad"]["reason"] == "ended the process with signal 11 (SIGSEGV) in its import"
    assert facts["runtimes"]["reference"]["reason"] == ""


def test_an_end_from_outside_is_not_held_against_it(site: Path) -> None:
    """The system may end a process for want of memory; the next start probes again."""
    once = site.parent / "once"
    kill = f"p = __import__('pathlib').Path({str(once)!r}); p.exists() or (p.touch(), os.kill(os.getpid(), 9))"
    install(site, "bad", plugin="import os\n" + IN_PROBE.replace("{}", kill))
    assert states(site)[0]["kernelyard-bad"][1] == "ended the process with signal 9 (SIGKILL) in its probe"
    assert states(site)[0]["kernelyard-bad"][0] == "active"


def test_processes_that_start_together(site: Path) -> None:
    install(site, "bad", plugin=CRASHES["segfault"][0])
    with ThreadPoolExecutor(4) as threads:
        found = [state for state, _ in threads.map(lambda _: states(site), range(4))]
    assert all(state == found[0] for state in found)
    assert found[0]["kernelyard-bad"][0] == "broken"
    assert states(site)[0] == found[0]


def test_only_what_is_needed_is_probed(site: Path, imports: Path) -> None:
    done = python(
        site,
        "-c",
        "from kernelyard.plugins.discovery.manager import PluginManager; PluginManager().get('good', 'backend')",
    )
    assert done.returncode == 0, done.stderr
    assert not list(imports.iterdir())


def test_where_no_process_can_be_started_plugins_are_used_unprobed(site: Path, imports: Path) -> None:
    nowhere = "import sys; sys.executable = '/nowhere/python'\n"
    done = python(site, "-c", nowhere + STATES)
    assert json.loads(done.stdout)["kernelyard-bad"][0] == "active"
    assert "plugins cannot be probed in a subprocess" in done.stderr
    assert len(list(imports.iterdir())) == 1


def test_loading_an_artifact_probes_nothing(site: Path, imports: Path, tmp_path: Path) -> None:
    compile_ = f"""
import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
b = FunctionBuilder()
ky.compile(IRModule({{"main": b.function(b.op("nn.relu", b.input("x", (2,))))}}), backends=[]).save({str(tmp_path / "m.kyar")!r})
"""
    assert python(site, "-c", compile_, KERNELYARD_PLUGINS="").returncode == 0
    load = f"""
import sys
import numpy as np
import kernelyard as ky
assert ky.load({str(tmp_path / "m.kyar")!r})(np.float32([-1, 2])).numpy().tolist() == [0, 2]
assert not [name for name in sys.modules if name.startswith("kernelyard.plugins")]
"""
    done = python(site, "-c", load)
    assert done.returncode == 0, done.stderr
    assert not list(imports.iterdir())


COUNTS = """
import json, os, sys, time
for line in sys.stdin:
    number = json.loads(line)
    if number == 3:
        os._exit(3)
    time.sleep(9 if number == 9 else 0)
    print(number + 1, flush=True)
"""


def test_a_worker_is_started_again() -> None:
    worker = Worker(["-c", COUNTS])
    assert worker.ask(1, 20) == 2
    with pytest.raises(Crashed, match="exit status 3") as crash:
        worker.ask(3, 20)
    assert crash.value.status == 3
    with pytest.raises(Hung, match=r"no answer within 0\.5 s"):
        worker.ask(9, 0.5)
    assert worker.ask(5, 20) == 6
    worker.close()


def test_causes() -> None:
    assert cause(-6) == "signal 6 (SIGABRT)"
    assert cause(-40) == "signal 40"  # some have no name of their own
