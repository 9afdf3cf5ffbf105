"""The command line: `kernelyard compile|run|bench|explain|inspect|backends|doctor`. Each command is a module of
`kernelyard.driver.commands` and is imported when it is called."""

from __future__ import annotations

import difflib
import json
import sys
from importlib import import_module

import click

from kernelyard import __version__
from kernelyard.errors import KernelyardError

COMMANDS = ("backends", "bench", "compile", "doctor", "explain", "inspect", "run")


class LazyGroup(click.Group):
    """Finds each command in its own module; an unknown one gets a suggestion."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            close = difflib.get_close_matches(cmd_name, COMMANDS, 1)
            ctx.fail(
                f"no command {cmd_name!r}"
                + (f"; did you mean {close[0]!r}?" if close else f"; one of {', '.join(COMMANDS)}")
            )
        return import_module(f"kernelyard.driver.commands.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; our errors are printed without a traceback (as JSON where asked) and exit with 1."""
        try:
            return super().invoke(ctx)
        except KernelyardError as error:
            if "--json" in sys.argv:
                click.echo(json.dumps({"error": error.to_json()}, indent=2))
            else:
                click.echo(str(error), err=True)
            ctx.exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kernelyard")
@click.option("-p", "plugins", multiple=True, metavar="no:NAME", help="Do not load the plugin NAME.")
def main(plugins: tuple[str, ...]) -> None:
    """Compile deep-learning models to the libraries and code generators that are installed."""
    if plugins:
        from kernelyard.plugins.manager import block

        wrong = [plugin for plugin in plugins if not plugin.startswith("no:")]
        if wrong:
            raise click.BadParameter(f"{wrong[0]!r}; write -p no:NAME", param_hint="-p")
        block(plugin.removeprefix("no:") for plugin in plugins)
