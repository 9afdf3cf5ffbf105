"""L0: the plugin is found, fits this core and the next one's refusal, and its two halves load as they should."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from packaging.specifiers import SpecifierSet

import kernelyard as ky
from kernelyard.errors import OptionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import GROUP, BackendInfo, get_manager
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.runtime.abi.api_range import check_runtime_api
from kernelyard.runtime.abi.runtime_halves import runtime_entry_points
from kernelyard.runtime.installed.entry_points import distribution_of, find
from kernelyard.target import Target
from kernelyard.testing.conformance.bench import Bench
from kernelyard.testing.conformance.claims import Claims

NEXT_MAJOR = str(int(API_VERSION.split(".")[0]) + 1)  # what it cannot have been tested with
IMPORT_SECONDS = 30
NO_OPTION = "an_option_that_no_plugin_has"
COMPILER = ("ir", "ops", "tir", "legalize", "patterns", "transform", "plugins", "placement", "driver", "cli", "testing")
NO_COMPILER = f"""
parts = {{name.split(".")[1] for name in sys.modules if name.startswith("kernelyard.")}} & set({COMPILER})
assert not parts, f"it imports kernelyard.{{sorted(parts)[0]}}"
"""


def _info(bench: Bench) -> BackendInfo:
    return next(info for info in get_manager().infos() if info.name == bench.backend)


def _is_active(bench: Bench, claims: Claims) -> None:
    info = _info(bench)
    assert info.state == "active", f"it is {info.state}: {info.reason}; {info.hint or ''}"
    assert {"backend", "code_generator"} & set(info.provides), f"it provides {', '.join(info.provides)}"
    assert info.summary, "its manifest has no summary"


def _fits(bench: Bench, claims: Claims) -> None:
    api = SpecifierSet(_info(bench).api)
    assert api.contains(API_VERSION), f"{api} does not contain {API_VERSION}"
    assert not api.contains(NEXT_MAJOR), f'{api} is not tested with {NEXT_MAJOR}; add "<{NEXT_MAJOR}"'


def _hooks_are_cheap(bench: Bench, claims: Claims) -> None:
    (entry,) = [entry for entry in find(GROUP).entries if entry.name == bench.backend]
    shown = _python(f"import sys, {entry.module}\nassert 'kernelyard.ir' not in sys.modules, 'it imports the compiler'")
    assert not shown, f"importing it prints {shown!r}"


def _runtime_half_stands_alone(bench: Bench, claims: Claims) -> None:
    own = [entry for entry in runtime_entry_points() if distribution_of(entry)[0] == _info(bench).dist]
    assert own, "it has no entry point of the group kernelyard.runtime: what it compiles cannot be loaded"
    for entry in own:
        check_runtime_api(entry)
        shown = _python(f"import sys, {entry.module}\n{NO_COMPILER}")
        assert not shown, f"importing {entry.module} prints {shown!r}"


def _python(code: str) -> str:
    """Run code in a fresh Python process, which must succeed; return its output."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1:] or f"exit status {done.returncode}"
    return done.stdout


def _patterns_are_its_own(bench: Bench, claims: Claims) -> None:
    if "backend" not in _info(bench).provides:
        return  # a code generator, which has none
    backend = get_manager().get(bench.backend, "backend")
    for target in _info(bench).targets:
        names = [pattern.name for pattern in backend.patterns(Target(target))]
        assert names, f"it has no patterns for {target}"
        assert len(set(names)) == len(names), f"two patterns for {target} have one name"
        assert all(name.startswith(f"{bench.backend}.") for name in names), f"patterns are called {bench.backend}.*"


def _unknown_options_are_refused(bench: Bench, claims: Claims) -> None:
    builder = FunctionBuilder()
    module = IRModule({"main": builder.function(builder.op("abs", builder.input("x", (2,))))})
    try:
        ky.compile(module, backends=[bench.backend], options={bench.backend: {NO_OPTION: 1}})
    except OptionError:
        return
    raise AssertionError(f"it accepts the option {NO_OPTION!r}")


CHECKS: dict[str, Callable[..., None]] = {
    "it is active": _is_active,
    "it fits this plugin API, and no untested one": _fits,
    "its hooks are cheap and print nothing": _hooks_are_cheap,
    "its runtime half stands alone": _runtime_half_stands_alone,
    "its patterns are its own": _patterns_are_its_own,
    "unknown options are refused": _unknown_options_are_refused,
}
