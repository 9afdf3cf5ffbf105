"""The command line: `kernelyard compile|run|bench|explain|inspect|backends|cache|doctor|new-backend`.

Each command is a module of `kernelyard.cli.commands`, or an entry point of the group `kernelyard.commands` of an
installed distribution; it is imported when it is called. Exit codes: 0, 1 for what
Kernelyard refuses, 2 for a command line that makes no sense, 130 where Ctrl-C ended it, 143 and 129 where SIGTERM and
SIGHUP did: all of them leave no temporary files. With `--json` errors are JSON on stdout too, and nothing
else is: what plugins and their libraries print goes to stderr.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from kernelyard import __version__
from kernelyard.errors import KernelyardError, did_you_mean
from kernelyard.runtime.installed.entry_points import distribution_of, find, load_named

COMMANDS = {
    "backends": "List the installed plugins with their states and faults.",
    "bench": "Time a model or an artifact.",
    "cache": "Show what is cached on this machine, or clear it.",
    "compile": "Compile a model and save it as one .kyar file.",
    "doctor": "Check the environment; exit with 1 if it has faults.",
    "explain": "Show the backend of each op, and why ops are not offloaded.",
    "inspect": "Show the contents of an artifact.",
    "new-backend": "Create the package of a new backend.",
    "run": "Run a model or an artifact once.",
}
GROUP = "kernelyard.commands"
ERRORS_PAGE = "docs/errors.md"  # which has a place for each code
USAGE = "usage"  # the error code of a command line that makes no sense
INTERRUPTED = "interrupted"  # likewise, of a command that a signal ended


class LazyGroup(click.Group):
    """Finds each command in its own module; an unknown one gets a suggestion."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line; where what is printed finds no room, say so."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left in the buffer
            click.echo(f"the output cannot be written: {error.strerror}", err=True)
            raise SystemExit(1) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        added = {name for names in _names_by_distribution().values() for name in names}
        return [*COMMANDS, *sorted(added)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return import_module(f"kernelyard.cli.commands.{cmd_name.replace('-', '_')}").command
        command = load_named(GROUP, cmd_name, click.Command)
        if command is None:
            names = self.list_commands(ctx)
            way_out = did_you_mean(cmd_name, names) or f"one of {', '.join(names)}"
            ctx.fail(f"no command {cmd_name!r}; {way_out}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them: of those that distributions add, metadata has but the names."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        added = _names_by_distribution()
        if added:
            with formatter.section("Commands of installed packages (COMMAND --help describes them)"):
                formatter.write_dl([(distribution, ", ".join(names)) for distribution, names in added.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; errors are printed without a traceback, warnings without a place in the code."""
        from kernelyard.cli.signals import Interrupted, interruptible

        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                if not ctx.meta["as_json"]:
                    with interruptible():
                        return super().invoke(ctx)
                from kernelyard.cli.output import stdout_for_json

                with interruptible(), stdout_for_json():
                    return super().invoke(ctx)
            except KernelyardError as error:
                page = f"{ERRORS_PAGE}#{error.code.lower()}"
                _fail(ctx, {**error.to_json(), "page": page}, f"{error}\n  page: {page}", 1)
            except Interrupted as stop:
                _fail(ctx, {"code": INTERRUPTED, "error": stop.name, "message": stop.says}, stop.says, stop.exit_code)
            except click.UsageError as error:
                if not ctx.meta["as_json"]:
                    raise
                _fail(ctx, {"code": USAGE, "error": "UsageError", "message": error.format_message()}, "", 2)


def _names_by_distribution() -> dict[str, list[str]]:
    """Return the names of the commands that distributions add to the core's."""
    names: dict[str, list[str]] = {}
    for entry in find(GROUP).entries:
        if entry.name not in COMMANDS:
            names.setdefault(distribution_of(entry)[0], []).append(entry.name)
    return dict(sorted(names.items()))


def _fail(ctx: click.Context, facts: dict[str, Any], text: str, exit_code: int) -> NoReturn:
    if ctx.meta["as_json"]:
        click.echo(json.dumps({"error": facts}, indent=2, ensure_ascii=False))
    else:
        click.echo(text, err=True)
    ctx.exit(exit_code)


def _show_warning(message: Warning | str, *_: object) -> None:
    click.echo(f"warning: {message}", err=True)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kernelyard")
@click.option("-p", "plugins", multiple=True, metavar="no:NAME", help="Do not load the plugin NAME; may be repeated.")
@click.option(
    "--isolate",
    multiple=True,
    metavar="NAME",
    help="Run the plugin NAME, or all, in a process of its own while compiling; may be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the time of each pass, and what the caches had.")
@click.pass_context
def main(ctx: click.Context, plugins: tuple[str, ...], isolate: tuple[str, ...], verbose: bool) -> None:
    """Compile deep-learning models for the libraries and code generators that are installed."""
    if verbose:
        from kernelyard.cli.verbose import verbose_log

        ctx.with_resource(verbose_log())
    if plugins:
        from kernelyard.plugins.discovery.manager import block_plugins

        wrong = [plugin for plugin in plugins if not plugin.startswith("no:")]
        if wrong:
            raise click.BadParameter(f"{wrong[0]!r}; write -p no:NAME", param_hint="-p")
        ctx.with_resource(block_plugins(plugin.removeprefix("no:") for plugin in plugins))
    if isolate:
        from kernelyard.driver.isolation.isolated_backend import isolate_plugins

        ctx.with_resource(isolate_plugins(isolate))
