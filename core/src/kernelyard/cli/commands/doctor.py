"""`kernelyard doctor`: is this environment in order?"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click

from kernelyard import __version__
from kernelyard.cli.commands.backends import describe
from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json, say, terminal_width
from kernelyard.cli.plugin_faults import faults_of, notes_of, runtime_half_faults
from kernelyard.errors import PluginError
from kernelyard.plugins.discovery.manager import BackendInfo, backends, get_manager
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.plugins.sandbox import sandbox_probe
from kernelyard.plugins.sandbox.guard import run_guarded
from kernelyard.runtime.abi.runtime_halves import runtime_entry_points
from kernelyard.runtime.export import get_include
from kernelyard.runtime.installed.disk_cache import list_ignored_settings
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of
from kernelyard.runtime.text_table import align_rows

FAULTS = ("broken", "incompatible", "unavailable")
# Parts of which one should be usable: the extra that installs it, and the consequence of having none.
NEEDED_PARTS = {
    "code_generator": ("cpu", "ops that no library supports run on the slow reference interpreter"),
    "frontend": ("onnx", "only IRModules can be compiled"),
}
LIBRARIES = ("numpy", "apache-tvm-ffi", "pluggy", "ml_dtypes")


@click.command("doctor")
@click.option("--report", "as_report", is_flag=True, help="Print what a bug report needs; no paths, no secrets.")
@click.option("--retry", is_flag=True, help="Probe every plugin in a subprocess again, and ignore cached results.")
@json_option
@click.pass_context
def command(ctx: click.Context, as_report: bool, retry: bool, as_json: bool) -> None:
    """Examine the environment: versions, plugins, runtime halves. Exits with 1 if it has faults."""
    entries = runtime_entry_points()
    if retry:
        get_manager().forget_verdicts()
        sandbox_probe.forget(entries, [()] * len(entries))
    infos, runtimes = backends(), _runtimes(entries)
    faults = _faults(infos, runtimes)
    active = [info for info in infos if info.state == "active"]
    notes = [f"{info.name} ({info.dist}): {note}" for info in active for note in notes_of(info, entries)]
    notes += list_ignored_settings()
    versions = {"kernelyard": __version__, "plugin API": API_VERSION, "python": platform.python_version()}
    versions |= {name: _version(name) for name in LIBRARIES}
    machine = f"{platform.system()} {platform.machine()}"
    if as_json or as_report:
        facts = {"healthy": not faults, "faults": faults, "notes": notes, "machine": machine, "versions": versions}
        parts = {"generators": _collect_facts("code_generator"), "backends": _collect_facts("backend")}
        facts["include"] = get_include()
        found = {**facts, "plugins": [asdict(info) for info in infos], "runtimes": runtimes, **parts}
        _print_facts(found, as_report, as_json)
    else:
        say(f"{machine}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
        say(f"C headers: {get_include()}")
        _print_plugins(infos, runtimes)
        for note in notes:
            click.secho(f"note: {note}", fg="yellow")
        for fault in faults:
            click.secho(f"to mend: {fault}", fg="red")
        if not faults:
            click.secho("all in order", fg="green")
    ctx.exit(1 if faults else 0)


def _print_facts(found: Mapping[str, Any], as_report: bool, as_json: bool) -> None:
    """Print all facts as JSON, or what of them a bug report may say, as JSON or as Markdown."""
    if as_report:
        from kernelyard.cli.bug_report import bug_report, report_lines

        found = bug_report(found)
        if not as_json:
            click.echo("\n".join(report_lines(found)))
            return
    print_json(found)


def _faults(infos: Sequence[BackendInfo], runtimes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """List the faults of plugins and device runtimes, a line each."""
    active = [info for info in infos if info.state == "active"]
    return [
        *(f"{info.name} ({info.dist}): {info.state}" for info in infos if info.state in FAULTS),
        *(f"{info.name} ({info.dist}): {fault}" for info in active for fault in faults_of(info)),
        *(f"runtime {kind} ({facts['dist']}): broken" for kind, facts in runtimes.items() if facts["reason"]),
    ]


def _print_plugins(infos: list[BackendInfo], runtimes: dict[str, dict[str, str]]) -> None:
    click.echo("\nplugins")
    for line in describe(infos) or ["none"]:
        say(f"  {line}")
    times = ", ".join(f"{info.name} {info.seconds:.1f} s" for info in infos if info.state == "active")
    say(f"  import, hooks and probe: {times or 'none is active'}")
    click.echo("\nruntime halves, for running artifacts")
    rows = [(kind, f"{f['dist']} {f['version']}", f["reason"] or "can be imported") for kind, f in runtimes.items()]
    _print_table(rows)
    for name, facts in {**_collect_facts("code_generator"), **_collect_facts("backend")}.items():
        click.echo(f"\n{name}")
        _print_table(list(facts.items()))
    click.echo()
    usable = {part for info in infos if info.state == "active" for part in info.provides}
    for part, (extra, consequence) in NEEDED_PARTS.items():
        if part not in usable:
            say(f"no {part.replace('_', ' ')} is usable: {consequence}")
            click.echo(f"    → {_way_to(part, extra, infos)}")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned cells, indented."""
    width = terminal_width()
    for line in align_rows(rows, None if width is None else width - 2):
        click.echo(f"  {line}")


def _way_to(part: str, extra: str, infos: Sequence[BackendInfo]) -> str:
    """Return a hint to get a plugin that provides a part: the fault of an installed one, else an install command."""
    installed = [f"{info.name} is {info.state}: {info.hint or info.reason}" for info in infos if part in info.provides]
    return "; ".join(installed) or f"pip install 'kernelyard[{extra}]'"


def _collect_facts(part: str) -> dict[str, dict[str, str]]:
    """Collect the facts that each usable code generator or backend reports."""
    found: dict[str, dict[str, str]] = {}
    for each in get_manager().active(part):
        try:
            facts = run_guarded(f"asking {each.name} for facts", lambda each=each: dict(each.facts()))
        except PluginError as error:
            facts = {"facts": error.message}
        if facts:
            found[each.name] = {str(name): str(fact) for name, fact in facts.items()}
    return found


def _runtimes(entries: Sequence[EntryPoint]) -> dict[str, dict[str, str]]:
    """Return the installed runtime halves by kind; the reason says why one cannot load modules."""
    found: dict[str, dict[str, str]] = {}
    for entry, reason in zip(entries, runtime_half_faults(entries), strict=True):
        dist, version = distribution_of(entry)
        found.setdefault(entry.name, {"dist": dist, "version": version, "reason": reason})
    return found


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"
