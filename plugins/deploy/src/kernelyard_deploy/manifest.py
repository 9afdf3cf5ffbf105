"""The manifest: all that other systems ask about a compiled model, read from its artifact without running it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import kernelyard as ky
from kernelyard import dims
from kernelyard.runtime.abi.spec import Fields, shape_to_json
from kernelyard.runtime.artifact.container import Member, read_container, write_container
from kernelyard.runtime.execute.compiled_model import MAIN, TensorInfo
from kernelyard_deploy.errors import ExportError
from kernelyard_deploy.facts import KEY, Facts

CORE = "kernelyard"  # the distribution that every artifact needs


@dataclass(frozen=True)
class Requirement:
    """Name a distribution that runs a part of the artifact, and its oldest version that does."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}>={self.version}" if self.version else self.distribution


@dataclass(frozen=True)
class EntryFunction:
    """Describe a function that callers run by name: its inputs and outputs."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @property
    def symbols(self) -> frozenset[str]:
        """Return the symbolic sizes of the inputs."""
        return frozenset(name for info in self.inputs for dim in info.shape for name in symbols_of(dim))


@dataclass(frozen=True)
class Manifest:
    """Describe an artifact: the facts that were given, and those that follow from the file.

    variants: further targets that it holds code for. requires: distributions whose runtime halves run it, or one of its
    variants. needs: CPU features and libraries, a text for each module of the target that needs the least. sha256,
    nbytes: of the file.
    """

    facts: Facts
    functions: tuple[EntryFunction, ...]
    target: str
    precision: str
    requires: tuple[Requirement, ...]
    needs: tuple[str, ...]
    sha256: str
    nbytes: int
    variants: tuple[str, ...] = ()

    @property
    def main(self) -> EntryFunction:
        """Return the function that servers run. Raises: ExportError where there are several, and none is "main"."""
        named = [each for each in self.functions if each.name == MAIN] or list(self.functions)
        if len(named) != 1:
            raise ExportError("the artifact has several entry functions and no main", found=[f.name for f in named])
        return named[0]

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """Return the distributions to install, with the core in the version that exports, or a newer one."""
        named = {each.distribution for each in self.requires}
        return (*([] if CORE in named else [Requirement(CORE, ky.__version__)]), *self.requires)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON data."""
        return {
            **self.facts.to_json(),
            "functions": [_function_json(each) for each in self.functions],
            "target": self.target,
            "variants": list(self.variants),
            "precision": self.precision,
            "requires": [asdict(each) for each in self.requires],
            "needs": list(self.needs),
            "digest": f"sha256:{self.sha256}",
            "bytes": self.nbytes,
        }


def symbols_of(dim: int | str) -> frozenset[str]:
    """Return the symbolic sizes in a dim of a TensorInfo."""
    return frozenset() if isinstance(dim, int) else frozenset(dims.symbols_of(dims.parse(dim)))


def _function_json(function: EntryFunction) -> dict[str, Any]:
    sides = {"inputs": function.inputs, "outputs": function.outputs}
    tensors = {side: [{**each._asdict(), "shape": list(each.shape)} for each in infos] for side, infos in sides.items()}
    return {"name": function.name, **tensors}


def read_manifest(artifact: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of an artifact: the whole file is checked, no code in it is loaded.

    Raises: ArtifactError, ArtifactCorruptedError, ArtifactVersionError, ExportError for malformed facts.
    """
    path = Path(artifact)
    fields = read_container(path).manifest
    routines = fields.each("routines", _read_function) if "routines" in fields else ()
    functions = (*fields.each("programs", _read_function), *routines)
    modules = fields.each("modules", Fields)
    variants = fields.each("variants", Fields) if "variants" in fields else ()
    requires = dict(_requirement(each) for part in (fields, *variants) for each in part.each("modules", Fields))
    facts = Facts.from_metadata(fields.strings("metadata"))
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            sha256.update(piece)
    manifest = Manifest(
        facts=replace(facts, name=facts.name or _name_of(path)),
        functions=tuple(each for each in functions if each is not None),
        target=fields.text("target"),
        precision=fields.text("precision"),
        requires=tuple(Requirement(*each) for each in sorted(requires.items())),
        needs=tuple(dict.fromkeys(text for each in modules if (text := each.text("needs")))),
        sha256=sha256.hexdigest(),
        nbytes=path.stat().st_size,
        variants=tuple(each.text("target") for each in variants),
    )
    _check_facts(manifest)
    return manifest


def _name_of(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)
    return name.strip("._-")[:100].strip("._-") or "model"


def _requirement(fields: Fields) -> tuple[str, str]:
    requires = fields.strings("requires")
    return requires["distribution"], requires["version"]


def _read_function(value: Any, where: str) -> EntryFunction | None:
    """Return the entry function that a program or a VM function is; None for a private one."""
    fields = Fields(value, where)
    if "private" in fields and fields.any("private"):
        return None
    return EntryFunction(fields.text("name"), fields.each("inputs", _read_info), fields.each("outputs", _read_info))


def _read_info(value: Any, where: str) -> TensorInfo:
    spec = Fields(value, where).tensor()
    return TensorInfo(spec.name, tuple(shape_to_json(spec.shape)), spec.dtype)


def _check_facts(manifest: Manifest) -> None:
    """Raise ExportError for facts about sizes that no function has, or that lie outside of their bounds."""
    facts = manifest.facts
    known = frozenset().union(*(each.symbols for each in manifest.functions))
    named = {facts.batch} - {""} | set(facts.sizes) | {name for values in facts.warm_up for name in values}
    if named - known:
        found, expected = ", ".join(sorted(named - known)), ", ".join(sorted(known)) or "none: all sizes are known"
        raise ExportError("the model has no such symbolic size", found=found, expected=expected)
    for values in facts.warm_up:
        missing = sorted(manifest.main.symbols - set(values))
        if missing:
            raise ExportError("a warm-up has no value for a size", found=dict(values), expected=", ".join(missing))
        for name, value in values.items():
            least, most = facts.sizes.get(name, (value, value))
            if not least <= value <= most:
                raise ExportError(
                    "a warm-up is outside of the bounds", where=name, found=value, expected=f"{least} to {most}"
                )


def describe(artifact: str | os.PathLike[str], output: str | os.PathLike[str], facts: Facts) -> Manifest:
    """Write an artifact with these facts in it; its code and its numbers stay as they are.

    Nothing of the artifact is loaded, so that no plugin need be installed. Returns the manifest of the new file.
    Raises: as `read_manifest`; ArtifactError when the place cannot be written.
    """
    contents = read_container(artifact)
    if contents.library is not None:
        raise ExportError("libraries keep no facts", where=str(artifact), expected="a .kyar file")
    _check_facts(replace(read_manifest(artifact), facts=facts))
    manifest: Mapping[str, Any] = {key: value for key, value in contents.manifest.value.items() if key != "members"}
    metadata = {**contents.manifest.strings("metadata"), KEY: facts.to_text()}
    members: Sequence[Member] = [Member(name, [array.data]) for name, array in contents.members.items()]
    write_container(output, {**manifest, "metadata": metadata}, members)
    return read_manifest(output)
