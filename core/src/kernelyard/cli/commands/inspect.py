"""`kernelyard inspect`: what is in an artifact; needs none of the plugins that would run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json
from kernelyard.errors import describe

if TYPE_CHECKING:
    from kernelyard.runtime.abi.spec import Fields, TensorSpec
    from kernelyard.runtime.artifact.container import Contents
    from kernelyard.runtime.program.program import Program
    from kernelyard.runtime.program.vm_function import VMFunction

MAX_TEXT = 80  # of a metadata value, for people; JSON has all


@click.command("inspect")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--code", is_flag=True, help="Also print programs and modules as text; needs the plugins' runtimes.")
@json_option
def command(artifact: Path, code: bool, as_json: bool) -> None:
    """Show the programs, modules, weights, metadata and report of ARTIFACT."""
    facts = read_facts(artifact)
    if code:
        from kernelyard.runtime.artifact.kyar import load

        facts["code"] = load(artifact).inspect()
    if as_json:
        print_json(facts)
        return
    for line in _describe(facts):
        click.echo(line)


def read_facts(artifact: Path) -> dict[str, Any]:
    """Read the metadata of an artifact: the whole file is checked, no code in it is loaded.

    Raises: ArtifactError, ArtifactCorruptedError, ArtifactVersionError.
    """
    from kernelyard.runtime.abi.spec import Fields
    from kernelyard.runtime.artifact import safetensors_format
    from kernelyard.runtime.artifact.container import read_container
    from kernelyard.runtime.artifact.kyar import CONSTANTS, read_report
    from kernelyard.runtime.placement_decision import read_sets_of_sizes
    from kernelyard.runtime.report import Report

    contents = read_container(artifact)
    manifest = contents.manifest
    report = read_report(contents)
    constants = safetensors_format.from_bytes(contents.member(CONSTANTS, "manifest"), CONSTANTS)
    variants = manifest.each("variants", Fields) if "variants" in manifest else ()
    alternatives = manifest.each("alternatives", Fields) if "alternatives" in manifest else ()
    return {
        "target": manifest.text("target"),
        "precision": manifest.text("precision"),
        "programs": _entries(manifest),
        "modules": _modules(manifest, contents),
        "variants": [{"target": each.text("target"), "modules": _modules(each, contents)} for each in variants],
        "sizes": read_sets_of_sizes(manifest),
        "alternatives": [
            {"sizes": read_sets_of_sizes(each), "modules": _modules(each, contents)} for each in alternatives
        ],
        "constants": {"count": len(constants), "bytes": sum(array.nbytes for array in constants.values())},
        "metadata": manifest.strings("metadata"),
        "report": None if report is None else Report.from_json(report).to_json(),
    }


def _modules(manifest: Fields, contents: Contents) -> list[dict[str, Any]]:
    from kernelyard.runtime.abi.spec import Fields

    return list(manifest.each("modules", lambda item, where: _module(Fields(item, where), contents)))


def _module(fields: Fields, contents: Contents) -> dict[str, Any]:
    nbytes = contents.member(fields.text("member"), fields.where).nbytes
    facts = {"kind": fields.text("kind"), "requires": fields.strings("requires"), "needs": fields.text("needs")}
    return {**facts, "bytes": nbytes, **_blobs(fields, contents)}


def _blobs(fields: Fields, contents: Contents) -> dict[str, Any]:
    """Return the blobs of a module, and how they fit this machine, which the plugin that made them is asked."""
    from kernelyard.runtime.artifact import blobs, kyar

    if blobs.BLOBS not in fields:
        return {}
    nbytes = {name: contents.member(member, fields.where).nbytes for name, member in fields.strings("blobs").items()}
    token = fields.text(blobs.COMPATIBILITY)
    try:
        fit = blobs.verdict(kyar.load_module(fields, contents), token)
    except Exception as error:  # it is not installed here, say, or a vendor's code fails
        fit = f"unknown here: {describe(error)}"
    return {"blobs": nbytes, "compatibility": token, "fit": fit}


def _entries(manifest: Fields) -> list[dict[str, Any]]:
    """Return what callers may run: programs, and functions with branches and loops, whose blocks have the steps."""
    from kernelyard.runtime.program.program import Program
    from kernelyard.runtime.program.vm_function import VMFunction

    programs = manifest.each("programs", Program.from_json)
    vm_functions = manifest.each("routines", VMFunction.from_json) if "routines" in manifest else ()
    found = [_entry(each, len(each.steps)) for each in programs]
    called = [(each, sum(len(block.steps) for block in each.blocks)) for each in vm_functions if not each.private]
    return [*found, *(_entry(*each) for each in called)]


def _entry(function: Program | VMFunction, steps: int) -> dict[str, Any]:
    return {
        "name": function.name,
        "inputs": _tensors(function.inputs),
        "outputs": _tensors(function.outputs),
        "steps": steps,
        "bounds": {name: list(pair) for name, pair in function.size_bounds.items()},
    }


def _tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    from kernelyard.runtime.abi.spec import shape_to_json

    return [{"name": spec.name, "shape": shape_to_json(spec.shape), "dtype": spec.dtype} for spec in specs]


def _describe_modules(modules: Sequence[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for module in modules:
        requires = " ".join(module["requires"].values())
        needs = f", needs {module['needs']}" if module["needs"] else ""
        lines.append(f"module {module['kind']} of {requires}, {module['bytes'] / 1e6:.1f} MB{needs}")
        if "blobs" in module:
            size = sum(module["blobs"].values()) / 1e6
            lines.append(
                f"  {len(module['blobs'])} blobs, {size:.1f} MB, for {module['compatibility']}: {module['fit']}"
            )
    return lines


def _describe(facts: dict[str, Any]) -> list[str]:
    from kernelyard.runtime.placement_decision import sizes_text

    lines: list[str] = []
    for program in facts["programs"]:
        lines.append(f"{program['name']}: {program['steps']} steps for {facts['target']} in {facts['precision']}")
        for side in ("inputs", "outputs"):
            lines += [
                f"  {side[:-1]:6} {spec['name']}: {spec['dtype']} [{', '.join(map(str, spec['shape']))}]"
                for spec in program[side]
            ]
        for name, (low, high) in program["bounds"].items():
            lines.append(f"  size   {name}: {f'at least {low}' if high is None else f'{low} to {high}'}")
    if facts["sizes"]:
        lines.append(f"at sizes near {' or '.join(map(sizes_text, facts['sizes']))}")
    lines += _describe_modules(facts["modules"])
    for variant in facts["variants"]:
        lines += [f"variant for {variant['target']}", *_describe_modules(variant["modules"])]
    for other in facts["alternatives"]:
        lines += [f"at sizes near {' or '.join(map(sizes_text, other['sizes']))}", *_describe_modules(other["modules"])]
    lines.append(f"weights: {facts['constants']['count']} tensors, {facts['constants']['bytes'] / 1e6:.1f} MB")
    for name, value in facts["metadata"].items():
        text = " ".join(value.split())
        lines.append(f"metadata {name}: {text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + '...'}")
    if facts["report"] is not None:
        lines.append(facts["report"]["summary"])
    return [*lines, "", facts["code"]] if "code" in facts else lines
