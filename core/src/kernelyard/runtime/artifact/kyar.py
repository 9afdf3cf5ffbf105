"""The artifact: an Executable as one `.kyar` file, and back.

Manifest: programs, vm_functions, fallbacks, modules (kind, member, the distribution that loads them, digests of their
constants), metadata, report, target, precision; in `variants` the same, but for metadata, for further targets; in
`alternatives` for further placements, each with the `sizes` that it is taken near. Members:
one blob per module, a report for each placement, and `constants.safetensors`. Nothing in a file is executed, imported
or unpickled because the file says so: a module's kind only chooses among the loaders that are installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.errors import ArtifactError, BackendUnavailableError, DeviceError, KernelyardError, describe
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.runtime_halves import GROUP, Requirement, find_loader, requirement
from kernelyard.runtime.abi.spec import Fields, corrupted, is_digest, read_json, write_json
from kernelyard.runtime.artifact import safetensors_format
from kernelyard.runtime.artifact.container import (
    SCHEMA,
    Contents,
    Member,
    Source,
    open_container,
    pack_container,
    write_container,
)
from kernelyard.runtime.device.device import device
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.program.program import Program

if TYPE_CHECKING:
    from kernelyard.runtime.abi.runtime_halves import ModuleLoader
    from kernelyard.runtime.execute.compiled_model import ReportSource
    from kernelyard.runtime.program.vm_function import VMFunction

CONSTANTS = "constants.safetensors"
# Names and versions end up in a `pip install` line that people copy: nothing else may be in them.
_ALPHANUMERIC = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def write(executable: Executable, path: str | os.PathLike[str], variants: Sequence[Executable] = ()) -> None:
    """Save an executable; the file is complete or not there, and the same executable gives the same bytes.

    variants: the same model, compiled for other targets: the last one that runs on a machine is loaded there.
    Raises: ArtifactError when a module's kind has no installed loader, its loader does not take what was saved, a
    variant has other inputs and outputs, or the place cannot be written.
    """
    write_container(path, *_content(executable, variants))


def to_bytes(executable: Executable) -> bytes:
    """Return what `write` would put into a file. Raises: ArtifactError."""
    return pack_container(*_content(executable))


def _content(executable: Executable, variants: Sequence[Executable] = ()) -> tuple[dict[str, Any], list[Member]]:
    described, members = _describe(executable, 0)
    manifest = {"schema": SCHEMA, "metadata": executable.metadata, **described}
    constants = _collect_constants(executable)
    for variant in variants:
        if variant.interface != executable.interface:
            raise ArtifactError("a variant is another model", found=variant.interface, expected=executable.interface)
        described, more = _describe(variant, len(members))
        manifest.setdefault("variants", []).append(described)
        members += more
        constants.update(_collect_constants(variant))
    return manifest, [*members, Member(CONSTANTS, safetensors_format.to_parts(constants))]


def _describe(executable: Executable, first: int) -> tuple[dict[str, Any], list[Member]]:
    """Return an executable's own part of the manifest, and its modules, whose members are counted from `first`."""
    modules = [_module_entry(number, module) for number, module in enumerate(executable.modules, first)]
    report = f"reports/{first}"
    has_report = executable.report_json is not None
    manifest = {
        "target": executable.target,
        "precision": executable.precision,
        "report": {"member": report} if has_report else None,
        "programs": [program.to_json() for program in executable.programs.values()],
        "modules": [entry for entry, _ in modules],
    }
    if executable.vm_functions:
        manifest["routines"] = [vm_function.to_json() for vm_function in executable.vm_functions.values()]
    if executable.fallbacks:
        manifest["fallbacks"] = [fallback.to_json() for fallback in executable.fallbacks.values()]
    members = [member for _, members in modules for member in members]
    if has_report:
        members.append(Member(report, [write_json(executable.report_json)]))
    if executable.alternatives:
        manifest["sizes"] = [dict(sizes) for sizes in executable.sizes]
    for alternative in executable.alternatives:
        described, more = _describe(alternative, first + len(members))
        manifest.setdefault("alternatives", []).append({"sizes": [*map(dict, alternative.sizes)], **described})
        members += more
    return manifest, members


def _module_entry(number: int, module: RuntimeModule) -> tuple[dict[str, Any], list[Member]]:
    requires = requirement(module.kind)
    if requires is None:
        raise ArtifactError(
            f"a module of kind {module.kind!r} cannot be saved: nothing installed could load it again",
            hint=f"its distribution needs an entry point {module.kind!r} in the group {GROUP!r}",
        )
    if not _is_named(requires.distribution, requires.version):
        raise ArtifactError(
            f"a module of kind {module.kind!r} cannot be saved: the metadata of its distribution is damaged",
            found=f"name {requires.distribution!r}, version {requires.version!r}",
            hint="install its distribution again by pip",
        )
    name = f"modules/{number}-{module.kind}"
    try:
        return _save_module(module, name, requires)
    except KernelyardError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code
        raise ArtifactError(
            f"a module of kind {module.kind!r} cannot be saved",
            where=f"{requires.distribution} {requires.version}",
            found=describe(error),
            hint=f"pip install --upgrade {requires.distribution}, or compile the model without this backend",
        ) from error


def _save_module(module: RuntimeModule, name: str, requires: Requirement) -> tuple[dict[str, Any], list[Member]]:
    from kernelyard.runtime.artifact.blobs import describe_blobs  # loading does without

    data = module.save_to_bytes()
    _try_to_load(module, data, requires)
    described, blobs = describe_blobs(module, name)
    if not isinstance(module.needs, str):
        raise TypeError(f"its needs are {type(module.needs).__name__}, not a text")
    entry = {
        "kind": module.kind,
        "member": name,
        "requires": {"distribution": requires.distribution, "version": requires.version},
        "needs": module.needs,
        "constants": sorted(module.constants()),
        **described,
    }
    return entry, [Member(name, [data]), *blobs]


def _try_to_load(module: RuntimeModule, data: bytes, requires: Requirement) -> None:
    """Make sure that `load` takes what is saved: an error says more here than on another machine.

    A library that this machine lacks is none: the one that runs the artifact may have it.
    """
    constants = {digest: array.view() for digest, array in module.constants().items()}
    for array in constants.values():
        array.flags.writeable = False  # as those of a file are
    with suppress(BackendUnavailableError):
        find_loader(module.kind, requires)(data, constants)


def _collect_constants(executable: Executable) -> dict[str, np.ndarray]:
    functions = (*executable.programs.values(), *executable.vm_functions.values(), *executable.fallbacks.values())
    constants = {digest: executable.constants[digest] for function in functions for digest in function.digests()}
    for module in executable.modules:
        constants.update(module.constants())
    for alternative in executable.alternatives:
        constants.update(_collect_constants(alternative))
    for digest in constants:
        if not is_digest(digest):
            raise ArtifactError("a constant is not named by its digest", found=repr(digest))
    return constants


def load(path: Source, threads: int | None = None) -> Executable:
    """Load a saved executable, with the runtime halves of plugins that are installed.

    path: that of an artifact or a library, or the bytes of an artifact (`Executable.to_bytes`). threads: how many a run
    may use (None: the processors).

    Raises: ArtifactError (no such file), ArtifactCorruptedError, ArtifactVersionError (names the plugin to upgrade),
    MissingRuntimeError (names the plugin to install), BackendUnavailableError (its library cannot be loaded here).
    """
    contents = open_container(path)
    try:
        executable, manifest = _choose_variant(contents, threads)
    finally:
        contents.check()  # before anything is computed from it; damage is why, where something else was wrong
    loaded = list(_with_alternatives(executable, manifest))
    for module, fields in (pair for each, own in loaded for pair in zip(each.modules, _entries(own), strict=True)):
        if "blobs" in fields:
            from kernelyard.runtime.artifact.blobs import restore_blobs  # few artifacts have any

            restore_blobs(module, fields, contents, _owner(module.kind))
    for each, _ in loaded:
        if any(type(module).prepare is not RuntimeModule.prepare for module in each.modules):
            from kernelyard.runtime.execute.prepare_modules import prepare_modules  # few plugins have anything to do

            prepare_modules(each)
    return executable


def _owner(kind: str) -> str:
    """Return who runs modules of a kind here, for messages."""
    owner = requirement(kind)
    return f"{kind} of {owner.distribution} {owner.version}" if owner else kind


def _with_alternatives(executable: Executable, manifest: Fields) -> Iterator[tuple[Executable, Fields]]:
    """Yield an executable and its alternatives, each with its part of the manifest."""
    yield executable, manifest
    yield from zip(executable.alternatives, _alternatives(manifest), strict=True)


def _alternatives(manifest: Fields) -> tuple[Fields, ...]:
    return manifest.each("alternatives", Fields) if "alternatives" in manifest else ()


def _choose_variant(contents: Contents, threads: int | None) -> tuple[Executable, Fields]:
    """Return the last variant whose device is here and whose modules say that they run, and its part of the manifest.

    Raises: BackendUnavailableError if there is none.
    """
    manifest = contents.manifest
    if "variants" not in manifest:
        return _executable(contents, manifest, threads), manifest
    refused: list[KernelyardError] = []
    for variant in reversed((manifest, *manifest.each("variants", Fields))):
        try:
            device(variant.text("target").partition(" ")[0]).require()
            return _executable(contents, variant, threads), variant
        except (BackendUnavailableError, DeviceError) as error:
            refused.append(error)
    raise BackendUnavailableError(
        "the artifact was compiled for several kinds of machines, and this is none of them",
        where=refused[-1].where,
        found="; ".join(dict.fromkeys(str(error.found) for error in reversed(refused))),
        expected="; or ".join(dict.fromkeys(str(error.expected) for error in reversed(refused))),
        hint=refused[-1].hint,
    ) from refused[-1]


def _entries(manifest: Fields) -> tuple[Fields, ...]:
    return manifest.each("modules", lambda item, where: Fields(item, where))


def _executable(contents: Contents, manifest: Fields, threads: int | None) -> Executable:
    executable = _load_placement(contents, manifest, threads)
    if "alternatives" in manifest:
        from kernelyard.runtime.placement_decision import read_sets_of_sizes  # few artifacts have any

        placed = _alternatives(manifest)
        others = [(read_sets_of_sizes(each), _load_placement(contents, each, threads)) for each in placed]
        executable.add_alternatives(read_sets_of_sizes(manifest), others)
    return executable


def _load_placement(contents: Contents, manifest: Fields, threads: int | None) -> Executable:
    modules = _entries(manifest)
    loaders = [find_loader(fields.text("kind"), _requirement(fields)) for fields in modules]
    constants = safetensors_format.from_bytes(contents.member(CONSTANTS, "manifest"), CONSTANTS)
    programs = manifest.each("programs", Program.from_json)
    vm_functions = _vm_functions(manifest) if "routines" in manifest else ()
    fallbacks = manifest.each("fallbacks", Program.from_json) if "fallbacks" in manifest else ()
    names = [function.name for function in (*programs, *vm_functions)]
    if len(set(names)) != len(names):
        raise corrupted("manifest.programs", names, "names that differ")
    return Executable(
        programs={program.name: program for program in programs},
        modules=[_load_module(*each, contents, constants) for each in zip(modules, loaders, strict=True)],
        constants=constants,
        metadata=contents.manifest.strings("metadata"),
        report_json=_report(manifest, contents),
        target=manifest.text("target"),
        precision=manifest.text("precision"),
        threads=threads,
        vm_functions={vm_function.name: vm_function for vm_function in vm_functions},
        fallbacks={fallback.name: fallback for fallback in fallbacks},
    )


def _vm_functions(manifest: Fields) -> tuple[VMFunction, ...]:
    from kernelyard.runtime.program.vm_function import VMFunction  # few models have any

    return manifest.each("routines", VMFunction.from_json)


def _requirement(fields: Fields) -> Requirement:
    requires = Fields(fields.any("requires"), f"{fields.where}.requires")
    distribution, version = requires.text("distribution"), requires.text("version")
    if not _is_named(distribution, version):
        raise corrupted(requires.where, requires.value, "the name and version of a distribution")
    return Requirement(distribution, version)


def _is_named(distribution: str, version: str) -> bool:
    return _is_plain(distribution, "._-") and distribution[-1] not in "._-" and _is_plain(version, "._+!-")


def _is_plain(text: str, further: str) -> bool:
    """Return whether a text is of letters, digits and further characters; it begins with one of the former."""
    return len(text) <= 100 and text[:1] in _ALPHANUMERIC and _ALPHANUMERIC.union(further).issuperset(text)


def load_module(fields: Fields, contents: Contents) -> RuntimeModule:
    """Load one module of an artifact by its entry, without its blobs. Raises: as `load`."""
    loader = find_loader(fields.text("kind"), _requirement(fields))
    constants = safetensors_format.from_bytes(contents.member(CONSTANTS, "manifest"), CONSTANTS)
    return _load_module(fields, loader, contents, constants)


def _load_module(
    fields: Fields, loader: ModuleLoader, contents: Contents, constants: Mapping[str, np.ndarray]
) -> RuntimeModule:
    digests = fields.texts("constants")
    missing = [digest for digest in digests if digest not in constants]
    if missing:
        raise corrupted(f"{fields.where}.constants", missing[0], "a constant that is there")
    data = contents.member(fields.text("member"), fields.where).tobytes()
    module = loader(data, {digest: constants[digest] for digest in digests})
    if contents.library is not None:
        from kernelyard.runtime.modules.c_source import CSourceModule  # only libraries need it: it takes long to import

        if isinstance(module, CSourceModule):
            module.library = contents.library
    return module


def _report(manifest: Fields, contents: Contents) -> ReportSource:
    """Return what reads the report of a placement: it may be megabytes, and few runs look at it."""
    entry = manifest.any("report")
    if entry is not None and not isinstance(entry, dict):
        raise corrupted(f"{manifest.where}.report", entry, "an object or null")
    if entry is None or "member" not in entry:
        return entry  # earlier releases wrote it into the manifest
    name = Fields(entry, f"{manifest.where}.report").text("member")
    return partial(_parse_report, name, contents.member(name, f"{manifest.where}.report.member"))


def _parse_report(name: str, member: np.ndarray) -> dict[str, Any]:
    report = read_json(member.data, name)
    if not isinstance(report, dict):
        raise corrupted(name, report, "an object")
    return report


def read_report(contents: Contents) -> dict[str, Any] | None:
    """Return the report of an artifact as JSON data, None where it has none. Raises: ArtifactCorruptedError."""
    found = _report(contents.manifest, contents)
    return found() if callable(found) else found
