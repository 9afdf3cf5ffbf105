"""Options that commands share, and how their values are parsed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dim_option = click.option(
    "--dim", "dim_values", multiple=True, metavar="NAME=N", help="Size of a symbolic dimension (default: 1)."
)
placement_option = click.option(
    "--placement", type=click.Path(path_type=Path, exists=True), help="A file of measured placements (kernelyard tune)."
)


def _check_url(_ctx: click.Context, _param: click.Parameter, url: str | None) -> str | None:
    """Return what --remote-cache says. Raises: OptionError where that is no URL, whether or not it will be needed."""
    from kernelyard.runtime.installed.server_url import read_server_url

    if url:
        read_server_url(url)
    return url


remote_cache_option = click.option(
    "--remote-cache",
    metavar="URL",
    callback=_check_url,
    help="A server that keeps measured placements for many machines.",
)
threads_option = click.option("--threads", type=click.IntRange(1), help="Threads that a run may use (default: all).")


@dataclass(frozen=True)
class CompileOptions:
    """--target, --backends, --option, --require, --strict, --exclude-pattern, --precision and --bounds as given."""

    target: str | None
    backends: str | None
    settings: tuple[str, ...]
    require: tuple[str, ...] = ()
    strict: bool = False
    exclude_patterns: tuple[str, ...] = ()
    precision: str | None = None
    bounds: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `compile` and `explain` that say the same."""
        return {
            "target": "cpu" if self.target is None else self.target,
            "backends": backend_list("auto" if self.backends is None else self.backends),
            "options": backend_options(self.settings),
            "require": parse_shares(self.require),
            "strict": self.strict,
            "exclude_patterns": self.exclude_patterns,
            "precision": "float32" if self.precision is None else self.precision,
            **({"bounds": read_bounds(self.bounds)} if self.bounds else {}),
        }

    def refuse(self, artifact: Path) -> None:
        """Refuse options for compiling with an artifact. Raises: UsageError."""
        given = {"--target": self.target, "--backends": self.backends, "--option": self.settings}
        given |= {"--require": self.require, "--strict": self.strict, "--exclude-pattern": self.exclude_patterns}
        given |= {"--precision": self.precision, "--bounds": self.bounds}
        for name, value in given.items():
            if value:
                raise click.UsageError(f"{name} is an option of compilation, and {artifact} is compiled already")


def compile_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `CompileOptions`; the function gets them as `how: CompileOptions`."""

    @click.option(
        "--target",
        metavar="NAME",
        help="cpu, cuda, or another that a plugin supports (default: cpu).",
        shell_complete=_completing("complete_target"),
    )
    @click.option(
        "--backends",
        metavar="LIST",
        help="Names in order of preference, auto or none: a,b,c (default: auto).",
        shell_complete=_completing("complete_backends"),
    )
    @click.option("--option", "settings", multiple=True, metavar="PLUGIN.KEY=VALUE", help="An option of a plugin.")
    @click.option(
        "--require", multiple=True, metavar="BACKEND=SHARE", help="Fail if BACKEND runs less of the FLOPs: dnnl=0.9."
    )
    @click.option("--strict", is_flag=True, help="Fail where a plugin violates its contract.")
    @click.option(
        "--exclude-pattern", "exclude_patterns", multiple=True, metavar="NAME", help="Do not offload this pattern."
    )
    @click.option(
        "--precision",
        metavar="NAME",
        help="float32, or faster and less exact: bf16, int8_weights, int4_weights (default: float32).",
        shell_complete=_completing("complete_precision"),
    )
    @click.option(
        "--bounds",
        multiple=True,
        metavar="NAME=LOW..HIGH",
        help="Bounds of a symbolic size: n=1..512, or n=1.. without an upper one.",
    )
    @functools.wraps(function)
    def with_options(
        *args: Any,
        target: str | None,
        backends: str | None,
        settings: tuple[str, ...],
        require: tuple[str, ...],
        strict: bool,
        exclude_patterns: tuple[str, ...],
        precision: str | None,
        bounds: tuple[str, ...],
        **rest: Any,
    ):
        how = CompileOptions(target, backends, settings, require, strict, exclude_patterns, precision, bounds)
        return function(*args, how=how, **rest)

    return with_options


def _completing(name: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return what completes an option's value: a function of the module `completion`, imported when a shell asks."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from kernelyard.cli import completion

        return getattr(completion, name)(ctx, param, incomplete)

    return complete


def backend_list(text: str) -> list[str] | str:
    """Parse `auto`, or the names of a comma-separated list; `none` is the empty list."""
    if text == "auto":
        return text
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.BadParameter(f"{text!r}; write names as a,b,c, auto, or none", param_hint="--backends")
    return [] if text == "none" else names


def backend_options(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `dnnl.codegen=c` as {"dnnl": {"codegen": "c"}}; values are JSON where they read as such, else text."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        backend, dot, key = path.partition(".")
        if not (equals and dot and backend and key):
            raise click.BadParameter(f"{setting!r}; write PLUGIN.KEY=VALUE", param_hint="--option")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        options.setdefault(backend, {})[key] = value
    return options


def parse_shares(requirements: Sequence[str]) -> dict[str, float]:
    """Parse `dnnl=0.9` as {"dnnl": 0.9}."""
    shares: dict[str, float] = {}
    for requirement in requirements:
        backend, _, text = requirement.partition("=")
        try:
            shares[backend] = float(text)
        except ValueError:
            raise click.BadParameter(f"{requirement!r}; write BACKEND=SHARE", param_hint="--require") from None
    return shares


def read_bounds(items: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """Parse `n=1..512` as {"n": (1, 512)}; `n=2..` is open above."""
    bounds: dict[str, tuple[int, int | None]] = {}
    for item in items:
        name, _, text = item.rpartition("=")
        low, dots, high = text.partition("..")
        if not (name and dots and low.isdecimal() and (not high or high.isdecimal())):
            raise click.BadParameter(f"{item!r}; write NAME=LOW..HIGH", param_hint="--bounds")
        bounds[name] = int(low), int(high) if high else None
    return bounds
