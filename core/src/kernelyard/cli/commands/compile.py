"""`kernelyard compile`: from a model to one file."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.cli.model_files import ARTIFACT_SUFFIX, check_output
from kernelyard.cli.options import CompileOptions, compile_options, json_option, placement_option
from kernelyard.cli.output import print_json
from kernelyard.cli.progress import Progress
from kernelyard.runtime.device.device import CPU, device_kinds
from kernelyard.target import Target


@click.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact (default: the model's name).")
@click.option(
    "--targets",
    metavar="LIST",
    help="CPUs and GPUs for one file, the slowest first: x86-64-v2,x86-64-v4,cuda:sm_80,cuda:sm_90. The last one "
    "that a machine has is loaded there.",
)
@placement_option
@compile_options
@json_option
def command(
    model: Path,
    output: Path | None,
    targets: str | None,
    placement: Path | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Compile MODEL and save it as one .kyar file, written whole or not at all."""
    from kernelyard.driver.compile import compile as compile_model

    output = output or (model.with_suffix(ARTIFACT_SUFFIX) if model.name else Path(f"model{ARTIFACT_SUFFIX}"))
    check_output(output, model)  # known before the work is done
    with Progress(f"compiling {model}"):
        given = {"placement": placement, **how.arguments()}
        exe, *variants = (compile_model(model, **{**given, **each}) for each in targets_of(targets, how))
        exe.save(output, variants)
    nbytes = output.stat().st_size
    if as_json:
        print_json({"artifact": str(output), "bytes": nbytes, "report": exe.report.to_json()})
        return
    click.echo(exe.report.summary)
    click.echo(f"{output}  {nbytes / 1e6:.1f} MB")


def targets_of(targets: str | None, how: CompileOptions) -> list[dict[str, Target]]:
    """Return the targets that --targets lists, as arguments of `compile`; one without any where it is not given.

    A name is a CPU of this architecture, ARCHITECTURE:CPU, or KIND:ARCHITECTURE of a device that a plugin drives, whose
    architectures are one target, behind the CPUs. Raises: UsageError.
    """
    if targets is None:
        return [{}]
    if how.target not in (None, CPU):
        raise click.UsageError("--targets lists what --target names, too: x86-64-v3,cuda:sm_90")
    named = [name.strip().rpartition(":")[::2] for name in targets.split(",")]
    if not all(name for _, name in named) or len(set(named)) != len(named):
        raise click.UsageError(f"--targets {targets}: write names of CPUs and devices, each once: x86-64-v3,cuda:sm_90")
    archs = {kind: ",".join(name for prefix, name in named if prefix == kind) for kind in device_kinds()}
    cpus = [Target(CPU, arch=arch or None, mcpu=cpu) for arch, cpu in named if arch not in archs]
    return [{"target": each} for each in (*cpus, *_device_targets(archs))]


def _device_targets(archs: dict[str, str]) -> list[Target]:
    """Return a target for each kind of device that has architectures."""
    return [Target(kind, arch=listed) for kind, listed in archs.items() if listed]
