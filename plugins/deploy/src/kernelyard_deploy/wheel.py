"""A wheel of models: `pip install` brings them, the runtime halves that they need, and functions that run them."""

from __future__ import annotations

import base64
import hashlib
import keyword
import platform
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from kernelyard_deploy.errors import ExportError
from kernelyard_deploy.facts import Facts
from kernelyard_deploy.manifest import CORE, EntryFunction, Manifest
from kernelyard_deploy.publish import Place, publish_artifact
from kernelyard_deploy.staging import stage

INIT, MODELS = "__init__.py", "_models.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file has; the same content gives the same bytes
_FILE_MODE = 0o100644 << 16

INIT_TEXT = '''"""{title}

Inputs and results of `predict`: {signature}
"""

from {package}._models import load as load
from {package}._models import predict as predict
'''
MODELS_TEXT = '''"""The compiled models of this package; each is loaded once, when it is first asked for."""

from functools import cache
from pathlib import Path
from typing import Any

import kernelyard
import numpy as np

NAMES = {names!r}


@cache
def load(name: str = NAMES[0]) -> "kernelyard.Executable":
    """Return the model of that name."""
    return kernelyard.load(Path(__file__).parent / "models" / f"{{name}}.kyar")


def predict(inputs: dict[str, Any] | None = None, /, **named: Any) -> dict[str, np.ndarray]:
    """Run the first model on arrays by name; returns arrays by name."""
    return {{name: tensor.numpy() for name, tensor in load().run({{**(inputs or {{}}), **named}}).items()}}
'''


def export_wheel(
    artifacts: Place | Sequence[Place],
    folder: Place,
    facts: Facts | None = None,
    *,
    code: Sequence[Place] = (),
    requires: Sequence[str] = (),
) -> Path:
    """Write a wheel with one artifact or several, and return its path; the same content gives the same bytes.

    facts: of the wheel, and of its artifact where there is only one; those of the first artifact if they are not given.
    code: files and folders of Python that the package holds beside `_models.py`, which has `load(name)`; an
    `__init__.py` among them takes the place of the one that has `load` and `predict`. requires: what the code needs.
    Raises: ExportError, ArtifactError and its kind.

    Example:
        export_wheel("model.kyar", "dist", Facts(name="page-reader", version="1.0"))
    """
    paths = [artifacts] if isinstance(artifacts, str | Path) or not isinstance(artifacts, Sequence) else list(artifacts)
    models: dict[str, tuple[Manifest, bytes]] = {}
    for path in paths:
        with publish_artifact(path, facts if len(paths) == 1 else None) as (manifest, file):
            if Path(path).stem in models:
                raise ExportError("two artifacts of a wheel have the same name", found=Path(path).name)
            models[Path(path).stem] = manifest, file.read_bytes()
    if not models:
        raise ExportError("a wheel has at least one artifact")
    manifests = [manifest for manifest, _ in models.values()]
    facts = manifests[0].facts if facts is None else replace(facts, name=facts.name or manifests[0].facts.name)
    package = package_name(facts.name)
    files = {f"{package}/models/{name}.kyar": data for name, (_, data) in models.items()}
    files |= {f"{package}/{name}": data for name, data in _code(package, facts, list(models), manifests[0], code)}
    tag = f"py3-none-{_platform(manifests)}"
    target = Path(folder, f"{package}-{facts.version}-{tag}.whl")
    metadata = _metadata(facts, _requirements(manifests, requires))
    with stage(target) as place:
        _write(place, f"{package}-{facts.version}.dist-info", files, metadata, tag)
    return target


def package_name(name: str) -> str:
    """Return the name that the package is imported by: `Page-Reader` is `page_reader`."""
    plain = re.sub(r"[-_.]+", "_", name).lower()
    return plain if plain.isidentifier() and not keyword.iskeyword(plain) else f"model_{plain}"


# --- content ----------------------------------------------------------------------------------------------------------
def _code(
    package: str, facts: Facts, names: list[str], first: Manifest, code: Sequence[Place]
) -> Iterator[tuple[str, bytes]]:
    """Yield the package's Python, ours first; later files of a name take the place of earlier ones."""
    title = " ".join(filter(None, (f"{facts.name} {facts.version}", facts.description and f"- {facts.description}")))
    init = INIT_TEXT.format(title=_quote(title), signature=_quote(_signature(first.main)), package=package)
    yield INIT, init.encode()
    for root in map(Path, code):
        if not root.exists():
            raise ExportError("there is no such code", where=str(root), expected="a file or a folder of Python")
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            if name == MODELS:
                raise ExportError("this file is written by the export", where=str(path), hint="give it another name")
            yield name, path.read_bytes()
    yield MODELS, MODELS_TEXT.format(names=tuple(names)).encode()


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def _signature(function: EntryFunction) -> str:
    sides = (", ".join(f"{i.name}: {i.dtype} {list(i.shape)}" for i in s) for s in (function.inputs, function.outputs))
    return " -> ".join(sides)


def _platform(manifests: Sequence[Manifest]) -> str:
    """Return the platform that machine code in the artifacts is for; "any" where they have none."""
    if not any(manifest.needs for manifest in manifests):
        return "any"
    found = {_architecture(target) for manifest in manifests for target in (manifest.target, *manifest.variants)}
    if len(found) > 1:
        raise ExportError("the artifacts of a wheel are for several architectures", found=", ".join(sorted(found)))
    return f"manylinux_2_17_{found.pop()}"


def _architecture(target: str) -> str:
    named = [word.removeprefix("arch=") for word in target.split() if word.startswith("arch=")]
    return named[0] if named else platform.machine()


def _requirements(manifests: Sequence[Manifest], further: Sequence[str]) -> list[str]:
    """Return what pip is to install: each distribution at the newest of the versions that artifacts need."""
    versions: dict[str, str] = {CORE: ""}
    for each in (requirement for manifest in manifests for requirement in manifest.requirements):
        versions[each.distribution] = max(versions.get(each.distribution, ""), each.version, key=_order)
    try:
        return [
            *(f"{name}>={v}" if v else name for name, v in sorted(versions.items())),
            *map(str, map(Requirement, further)),
        ]
    except InvalidRequirement as error:
        raise ExportError("a requirement cannot be read", found=str(error), expected="such as pillow>=10") from error


def _order(version: str) -> Version:
    return Version(version or "0")


def _metadata(facts: Facts, requirements: Sequence[str]) -> str:
    fields: dict[str, Any] = {"Metadata-Version": "2.4", "Name": facts.name, "Version": facts.version}
    fields |= {"Summary": facts.description, "Author": facts.author, "License-Expression": facts.license}
    fields |= {"Project-URL": facts.source and f"Source, {facts.source}", "Requires-Python": ">=3.11"}
    lines = [f"{key}: {value}" for key, value in fields.items() if value]
    return "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requirements), ""])


# --- the file ---------------------------------------------------------------------------------------------------------
def _write(path: Path, info: str, files: Mapping[str, bytes], metadata: str, tag: str) -> None:
    pure = "true" if tag.endswith("-any") else "false"
    wheel = f"Wheel-Version: 1.0\nGenerator: kernelyard-deploy\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    content = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w") as archive:  # stored, as compressors differ from release to release
        for name, data in content.items():
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = _FILE_MODE
            archive.writestr(member, data)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
