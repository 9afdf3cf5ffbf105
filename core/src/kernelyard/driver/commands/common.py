"""Helpers shared by the commands: options, feeds for a model, and output as text or JSON."""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.errors import ArtifactError, ExecutionError, InputNameError, InputShapeError, did_you_mean
from kernelyard.runtime.text_table import fold

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.execute.executable import Executable

ARTIFACT_SUFFIX = ".kyar"

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


# --- compiling and loading --------------------------------------------------------------------------------------------
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
            "require": required_shares(self.require),
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
        help="float32, or quicker and less exact: bf16, int8_weights, int4_weights (default: float32).",
        shell_complete=_completing("complete_precision"),
    )
    @click.option(
        "--bounds",
        multiple=True,
        metavar="NAME=LOW..HIGH",
        help="Bounds of a symbolic size: n=1..512, or n=1.. for open.",
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
        from kernelyard.driver.commands import completion

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


def required_shares(requirements: Sequence[str]) -> dict[str, float]:
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


def open_executable(path: Path, how: CompileOptions, threads: int | None) -> Executable:
    """Load an artifact or a shared library that holds one, or compile a model."""
    if is_artifact(path):
        from kernelyard.runtime.artifact.kyar import load

        how.refuse(path)
        return load(path, threads=threads)
    from kernelyard.driver.compile import compile as compile_model

    exe = compile_model(path, **how.arguments())
    exe.threads = threads
    return exe


def check_output(output: Path, model: Path) -> None:
    """Check the path of an output file. Raises: ArtifactError without a folder, or over the model."""
    if not output.parent.is_dir():
        raise ArtifactError(f"cannot write {output}", found=f"there is no folder {output.parent}")
    if os.path.exists(model) and os.path.exists(output) and output.samefile(model):
        raise ArtifactError(f"cannot write {output}", found="it is the model", hint="give the result another name: -o")


def is_artifact(path: Path) -> bool:
    """Return True for an artifact and for a shared library, by what is in the file; what cannot be read is neither."""
    from kernelyard.runtime.artifact.container import is_container

    try:
        return is_container(path)
    except ArtifactError:
        return False


# --- feeds ------------------------------------------------------------------------------------------------------------
def make_feeds(exe: Executable, files: Sequence[str], dim_values: Sequence[str]) -> dict[str, np.ndarray]:
    """Return inputs for a model: the given NumPy files, and random numbers (always the same) for the rest."""
    import numpy as np

    given = dict(read_array(item) for item in files)
    for name in given:
        _check_name(name, [info.name for info in exe.inputs], "input")
    values = read_dims(dim_values)
    known = {symbol for info in exe.inputs for dim in info.shape for symbol in _symbols(dim)}
    for name in values:
        _check_name(name, sorted(known), "symbolic dimension")
    random = np.random.default_rng(0)
    return {info.name: given.get(info.name, _random(random, info.shape, info.dtype, values)) for info in exe.inputs}


def _check_name(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise InputNameError(
            f"no {what} is called {name!r}",
            expected=", ".join(known) or f"this model has no {what}",
            hint=did_you_mean(name, known),
        )


def read_dims(dim_values: Sequence[str]) -> dict[str, int]:
    """Parse values of `--dim`, such as `n=4`, into sizes by symbol.

    Raises: BadParameter (of click) for any other text.
    """
    values: dict[str, int] = {}
    for item in dim_values:
        name, equals, text = item.partition("=")
        if not (equals and name and text.isdecimal()):
            raise click.BadParameter(f"{item!r}; write NAME=N", param_hint="--dim")
        values[name] = int(text)
    return values


def _symbols(dim: int | str) -> frozenset[str]:
    from kernelyard import dims

    return frozenset(() if isinstance(dim, int) else dims.symbols_of(dims.parse(dim)))


def read_array(item: str) -> tuple[str, np.ndarray]:
    import numpy as np

    from kernelyard.runtime.array_files import read_array_file

    name, equals, path = item.rpartition("=")  # names may hold an equals sign, and then files may not
    if not equals:
        raise click.BadParameter(f"{item!r}; write NAME=FILE.npy", param_hint="--input")
    try:
        array = read_array_file(path)
    except (OSError, ValueError) as error:
        raise ExecutionError(
            f"the file for input {name!r} cannot be read", where=path, found=error, expected="a .npy file"
        ) from error
    if not isinstance(array, np.ndarray):
        raise ExecutionError(f"the file for input {name!r} holds several arrays", where=path, expected="a .npy file")
    return name, array


def _random(
    random: np.random.Generator, shape: Sequence[int | str], dtype: str, values: Mapping[str, int]
) -> np.ndarray:
    from kernelyard import dims, dtypes

    sizes: list[int] = []
    for dim in shape:
        parsed = dim if isinstance(dim, int) else dims.parse(dim)
        sizes.append(dims.evaluate(parsed, {**dict.fromkeys(dims.symbols_of(parsed), 1), **values}))
    if any(size < 0 for size in sizes):
        raise InputShapeError("the given --dim values make a negative size", found=str(sizes))
    try:
        if dtypes.is_float(dtype):
            return random.standard_normal(sizes).astype(dtypes.to_numpy(dtype))
        return random.integers(0, 2, sizes).astype(dtypes.to_numpy(dtype))
    except (MemoryError, OverflowError, ValueError) as error:
        raise InputShapeError("no array can have the sizes that --dim gives", found=str(sizes)) from error


# --- printing ---------------------------------------------------------------------------------------------------------
_pending: ContextVar[list[str] | None] = ContextVar("pending", default=None)


def print_json(value: object) -> None:
    """Print JSON for machines; numbers that JSON does not have (infinities, NaN) become null."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    pending = _pending.get()
    if pending is None:
        click.echo(text)
    else:
        pending.append(text)


@contextmanager
def stdout_for_json() -> Iterator[None]:
    """Keep stdout for JSON: whatever else is printed meanwhile, by native code too, goes to stderr.

    What `print_json` is given is printed at the end.
    """
    texts: list[str] = []
    token = _pending.set(texts)
    sys.stdout.flush()
    stdout, sys.stdout = sys.stdout, sys.stderr
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with suppress(TypeError, OSError, AttributeError):  # no C library by that name: Windows
            ctypes.CDLL(None).fflush(None)  # what native code printed lies in its buffer while stdout is a pipe
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdout = stdout
        _pending.reset(token)
        for text in texts:
            click.echo(text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None when the output is no terminal, where lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(line: str) -> None:
    """Print a line, folded to the terminal."""
    width = terminal_width()
    fits = width is None or len(click.unstyle(line)) <= width
    for part in [line] if fits else fold(line, width):
        click.echo(part)
