"""`kernelyard serve`: serve artifacts by the Open Inference Protocol."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from kernelyard.cli.options import threads_option
from kernelyard.runtime.api import processors
from kernelyard_serve.errors import ServeSetupError

PORT = click.IntRange(0, 65535)
POSITIVE = click.IntRange(1)


@click.command("serve", context_settings={"show_default": True})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
# Where it listens.
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0: all interfaces.")
@click.option("--port", default=8000, type=PORT, help="HTTP port; 0: any free one.")
@click.option("--grpc-port", type=PORT, help="gRPC port; 0: any free one (default: no gRPC).")
@click.option("--connections", default=1000, type=POSITIVE, help="Open connections at most.")
# How requests wait, and are put together.
@click.option("--max-batch", default=1, type=POSITIVE, help="Dynamic batching: rows at most; 1: none.")
@click.option(
    "--max-delay",
    default=0.0,
    type=click.FloatRange(0),
    metavar="MS",
    help="Longest time a request waits to be batched with others.",
)
@click.option("--max-queue", default=128, type=POSITIVE, help="Requests that may wait; more are refused (HTTP 503).")
@click.option(
    "--timeout", default=60.0, type=click.FloatRange(0), help="Seconds until a request is given up; 0: no limit."
)
# What requests may take.
@click.option("--max-body", default=64, type=POSITIVE, metavar="MIB", help="Largest request body.")
@click.option(
    "--body-timeout",
    default=30.0,
    type=click.FloatRange(0.001),
    help="Seconds within which a client must send a whole request.",
)
@click.option("--max-held", default=1024, type=POSITIVE, metavar="MIB", help="Memory for all request bodies together.")
# How models run.
@click.option("--callers", type=POSITIVE, help="Model calls that run at once (default: one for each processor).")
@threads_option
@click.option(
    "--workers",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Run models in N processes, restarted when one dies; 0: in this one.",
)
@click.option(
    "--warm", multiple=True, metavar="NAME=N,...", help="Prepare these symbolic sizes before ready; repeatable."
)
@click.option("--control/--no-control", default=True, help="Let clients load and unload models.")
# Language models.
@click.option("--openai", is_flag=True, help="Serve one language model through an OpenAI-compatible API.")
@click.option("--cache-dtype", metavar="DTYPE", help="Data type of a language model's KV cache: float16, int8, ...")
# Between a front and its workers.
@click.option("--listen-fd", type=int, hidden=True)
@click.option("--messages", is_flag=True, hidden=True)
def command(models: tuple[str, ...], openai: bool, **settings: Any) -> None:
    """Serve each MODEL: a .kyar file, a folder MODEL/VERSION/x.kyar, a folder of such, or NAME=PATH.

    SIGHUP loads what is new, SIGTERM stops when all requests are answered.
    """
    from kernelyard_serve.server import Address, run

    workers = settings["workers"]
    place = (settings[name] for name in ("host", "port", "grpc_port", "connections", "body_timeout"))
    address = Address(*place, fd=settings["listen_fd"], messages=settings["messages"])
    if openai and address.grpc_port is not None:
        raise click.UsageError("--openai is over HTTP alone: without --grpc-port")
    if openai and len(models) != 1:
        raise click.UsageError("--openai serves one model")
    if workers:
        _serve_by_workers(models, openai, settings, address)
        return
    if openai:
        _serve_openai(models[0], address, settings)
        return
    from kernelyard_serve.repository import ModelRepository, find_artifacts

    run(partial(ModelRepository, partial(find_artifacts, models), _options(settings)), address, _say)


def _options(settings: Mapping[str, Any]) -> Any:
    """Return the options of a server of artifacts."""
    from kernelyard_serve.batching import BatchPolicy
    from kernelyard_serve.options import MIB, ServeOptions

    callers = settings["callers"] or processors()
    batch = BatchPolicy(settings["max_batch"], 1e-3 * settings["max_delay"], settings["max_queue"], callers)
    return ServeOptions(
        batch,
        settings["timeout"] or None,
        settings["max_body"] * MIB,
        settings["body_timeout"],
        settings["max_held"] * MIB,
        settings["threads"],
        tuple(map(read_sizes, settings["warm"])),
        settings["control"],
    )


# --- workers ----------------------------------------------------------------------------------------------------------
def _serve_by_workers(models: Sequence[str], openai: bool, settings: Mapping[str, Any], address: Any) -> None:
    """Keep the connections, and have processes answer that run the models, each on its part of the processors."""
    from kernelyard_serve.front_server import Workers, run_front

    share = max(1, processors() // settings["workers"])
    given = {name: value for name, value in settings.items() if _is_given(name)}
    given |= {name: settings[name] or share for name in (("threads",) if openai else ("threads", "callers"))}
    command = partial(_worker_command, models, given, openai, address.grpc_port is not None)
    workers = Workers(command, settings["workers"])
    if openai:
        _language_models()  # says what is not installed
        workers = Workers(command, settings["workers"], "/health", reloads=False)
    else:
        from kernelyard_serve.repository import find_artifacts

        find_artifacts(models)  # says what is wrong once, before all workers do
    run_front(workers, _options(settings).body_reader(), address, _say)


def _worker_command(
    models: Sequence[str], given: Mapping[str, Any], openai: bool, messages: bool, fd: int
) -> list[str]:
    """Return the command of a worker: the same models and limits."""
    own = ("host", "port", "grpc_port", "workers", "control", "warm")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name not in own]
    options += [f"--warm={each}" for each in given.get("warm", ())]
    options += [] if given.get("control", True) else ["--no-control"]
    options += [flag for flag, is_set in (("--openai", openai), ("--messages", messages)) if is_set]
    return [sys.executable, "-m", "kernelyard", "serve", *options, f"--listen-fd={fd}", "--", *models]


def _say(line: str) -> None:
    click.echo(line)  # which flushes: whoever waits for the server reads it


def read_sizes(text: str) -> dict[str, int]:
    """Return `seq=128,n=4` as {"seq": 128, "n": 4}. Raises: BadParameter."""
    sizes: dict[str, int] = {}
    for item in text.split(","):
        name, equals, size = item.partition("=")
        if not (equals and name.strip() and size.strip().isdecimal() and int(size) > 0):
            raise click.BadParameter(f"{text!r}; write NAME=N, or NAME=N,NAME=N", param_hint="--warm")
        sizes[name.strip()] = int(size)
    return sizes


# --- language models --------------------------------------------------------------------------------------------------
def _language_models() -> Any:
    """Return the module of another distribution that serves language models. Raises: ServeSetupError."""
    try:
        return import_module("kernelyard_llm.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kernelyard_llm":
            raise
        hint = "pip install 'kernelyard-llm[serve]'"
        raise ServeSetupError("OpenAI's protocol needs kernelyard-llm", found=error, hint=hint) from error


def _serve_openai(model: str, address: Any, settings: Mapping[str, Any]) -> None:
    """Serve one language model by the application of another distribution."""
    server = _language_models()
    from kernelyard_serve.options import MIB
    from kernelyard_serve.server import run_app

    given = {name for name in settings if _is_given(name)}
    options = server.ServerOptions(
        waiting=settings["max_queue"],
        threads=settings["threads"],
        max_body=settings["max_body"] * MIB,
        body_timeout=settings["body_timeout"],
        max_held=settings["max_held"] * MIB,
        cache_dtype=settings["cache_dtype"],
        **({"sequences": settings["max_batch"]} if "max_batch" in given else {}),
        **({"timeout": settings["timeout"] or None} if "timeout" in given else {}),
    )
    run_app(server.create_app(model, options), address, _say)


def _is_given(name: str) -> bool:
    """Return True where an option is on the command line: language models have other defaults."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
