"""OCI: an image layout whose one artifact is a model as CNCF's ModelPack describes it.

Layout: `oci-layout`, `index.json`, and blobs named by their SHA-256: the manifest, the model's configuration, and the
layers: the `.kyar` file as it is, and its manifest as JSON. `oras copy --from-oci-layout` and skopeo read it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from kernelyard_deploy.manifest import Manifest

IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MODEL_MANIFEST = "application/vnd.cncf.model.manifest.v1+json"
MODEL_CONFIG = "application/vnd.cncf.model.config.v1+json"
WEIGHTS = "application/vnd.cncf.model.weight.v1.raw"
WEIGHTS_CONFIG = "application/vnd.cncf.model.weight.config.v1.raw"
FILE_PATH, TITLE = "org.cncf.model.filepath", "org.opencontainers.image.title"


def write(manifest: Manifest, artifact: Path, folder: Path) -> None:
    """Write the layout of an artifact into a folder; the same artifact gives the same digests."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    shutil.copyfile(artifact, blobs / manifest.sha256)
    model = _with_name(_descriptor(WEIGHTS, manifest.sha256, manifest.nbytes), f"{manifest.facts.name}.kyar")
    facts = _with_name(_blob(blobs, WEIGHTS_CONFIG, manifest.to_json()), "manifest.json")
    config = _blob(blobs, MODEL_CONFIG, _config(manifest, [model, facts]))
    image = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": MODEL_MANIFEST,
        "config": config,
        "layers": [model, facts],
        "annotations": _annotations(manifest),
    }
    described = _blob(blobs, IMAGE_MANIFEST, image)
    reference = {"org.opencontainers.image.ref.name": manifest.facts.version}
    index = {
        "schemaVersion": 2,
        "mediaType": IMAGE_INDEX,
        "manifests": [{**described, "artifactType": MODEL_MANIFEST, "annotations": reference}],
    }
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _blob(blobs: Path, media_type: str, value: Any) -> dict[str, Any]:
    data = _json(value)
    sha256 = hashlib.sha256(data).hexdigest()
    (blobs / sha256).write_bytes(data)
    return _descriptor(media_type, sha256, len(data))


def _descriptor(media_type: str, sha256: str, nbytes: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": nbytes}


def _with_name(descriptor: dict[str, Any], name: str) -> dict[str, Any]:
    return {**descriptor, "annotations": {FILE_PATH: name, TITLE: name}}


def _config(manifest: Manifest, layers: list[dict[str, Any]]) -> dict[str, Any]:
    facts = manifest.facts
    descriptor = {"name": facts.name, "version": facts.version, "description": facts.description}
    descriptor |= {"sourceURL": facts.source, "title": facts.name}
    lists = {"authors": facts.author, "licenses": facts.license}
    return {
        "descriptor": {
            **{key: value for key, value in descriptor.items() if value},
            **{key: [value] for key, value in lists.items() if value},
        },
        "config": {"format": "kyar", "precision": manifest.precision},
        "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},  # raw: what a layer unpacks to
    }


def _annotations(manifest: Manifest) -> dict[str, str]:
    facts = manifest.facts
    values = {"title": facts.name, "version": facts.version, "licenses": facts.license, "source": facts.source}
    values |= {"authors": facts.author, "description": facts.description}
    return {f"org.opencontainers.image.{key}": value for key, value in values.items() if value}
