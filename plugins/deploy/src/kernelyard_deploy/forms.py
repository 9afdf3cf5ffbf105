"""Export: one artifact, in the forms that other systems load."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelyard_deploy import bentoml_service, c_library, kserve, mlflow_model, oci, triton
from kernelyard_deploy.facts import Facts
from kernelyard_deploy.manifest import Manifest
from kernelyard_deploy.publish import Place, publish_artifact
from kernelyard_deploy.staging import stage


@dataclass(frozen=True)
class Form:
    """Describe a form that artifacts are exported in.

    summary: what another system finds in the folder. write: makes the folder, of a manifest and an artifact.
    inside: the folder is one of the model's name in the one that was given, which may hold other models.
    """

    summary: str
    write: Callable[[Manifest, Path, Path], None]
    inside: bool = False


def _texts_writer(files: Callable[[Manifest], dict[str, str]], model: str) -> Callable[[Manifest, Path, Path], None]:
    """Return what writes a folder of text files and the artifact."""

    def write(manifest: Manifest, artifact: Path, folder: Path) -> None:
        texts = files(manifest)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        (folder / model).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact, folder / model)

    return write


FORMS: dict[str, Form] = {
    "triton": Form(
        "a model of its Python backend, in a model repository", _texts_writer(triton.files, f"1/{triton.MODEL}"), True
    ),
    "mlflow": Form(
        "an MLflow model of the flavor python_function", _texts_writer(mlflow_model.files, mlflow_model.MODEL)
    ),
    "bentoml": Form("a BentoML service", _texts_writer(bentoml_service.files, bentoml_service.MODEL)),
    "kserve": Form("a KServe runtime and service, with their images", _texts_writer(kserve.files, kserve.MODEL)),
    "oci": Form("an OCI image layout with a CNCF ModelPack", oci.write),
    "c": Form("a shared library for C programs, with its header", c_library.write),
}


def export(artifact: Place, form: str, folder: Place, facts: Facts | None = None) -> Path:
    """Export an artifact in one of `FORMS` into a folder, which is written whole or not at all.

    facts: what the artifact is published with, instead of what it says itself. Returns the path of what was written.
    Raises: ExportError, ArtifactError and its kind; for "c" as `Executable.export_library`.

    Example:
        export("model.kyar", "triton", "repository", Facts(name="classifier", license="Apache-2.0"))
    """
    with publish_artifact(artifact, facts) as (manifest, path):
        return _export(manifest, path, form, Path(folder))


def export_all(artifact: Place, folders: Sequence[tuple[str, Place]], facts: Facts | None = None) -> list[Path]:
    """Export an artifact in several forms, each into its folder. Raises: as `export`."""
    with publish_artifact(artifact, facts) as (manifest, path):
        return [_export(manifest, path, form, Path(folder)) for form, folder in folders]


def _export(manifest: Manifest, artifact: Path, form: str, folder: Path) -> Path:
    target = folder / manifest.facts.name if FORMS[form].inside else folder
    with stage(target) as place:
        FORMS[form].write(manifest, artifact, place)
    return target
