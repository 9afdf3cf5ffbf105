"""KServe: a runtime that serves artifacts, a service of this one, and the image that brings it (a modelcar)."""

from __future__ import annotations

from kernelyard_deploy.bentoml_service import service_name
from kernelyard_deploy.manifest import Manifest
from kernelyard_deploy.text_formats import to_yaml

MODEL = "models/model.kyar"
MOUNTED = "/mnt/models/model.kyar"  # where KServe puts what `storageUri` names
PORT = 8080

# The image of the server; the requirements are those of the artifact.
SERVER = """FROM python:3.12-slim
RUN pip install --no-cache-dir {requirements} kernelyard-serve
USER 1000
ENTRYPOINT ["kernelyard", "serve", "{mounted}", "--port", "{port}"]
"""
# KServe runs a modelcar beside the server, and looks for /models in it; it needs a shell to stay alive.
MODELCAR = """FROM busybox:stable
COPY --chmod=0644 models/ /models/
RUN chmod 0775 /models
USER 1000
"""


def files(manifest: Manifest) -> dict[str, str]:
    """Return the files of the folder, by path."""
    facts = manifest.facts
    requirements = " ".join(f"'{each}'" for each in manifest.requirements)
    return {
        "serving-runtime.yaml": to_yaml(_runtime()),
        "inference-service.yaml": to_yaml(_service(manifest)),
        "server.Containerfile": SERVER.format(requirements=requirements, mounted=MOUNTED, port=PORT),
        "modelcar.Containerfile": f"{MODELCAR}LABEL org.opencontainers.image.version={facts.version}\n",
    }


def _runtime() -> dict[str, object]:
    container = {
        "name": "kserve-container",
        "image": "kernelyard-serve:latest",
        "args": ["serve", MOUNTED, "--port", str(PORT)],
        "command": ["kernelyard"],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": PORT}},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": "kernelyard"},
        "spec": {
            "supportedModelFormats": [{"name": "kernelyard", "version": "1", "autoSelect": True}],
            "protocolVersions": ["v2"],
            "containers": [container],
        },
    }


def _service(manifest: Manifest) -> dict[str, object]:
    name = service_name(manifest.facts.name)
    model = {
        "modelFormat": {"name": "kernelyard", "version": "1"},
        "protocolVersion": "v2",
        "runtime": "kernelyard",
        "storageUri": f"oci://registry.example.com/{name}:{manifest.facts.version}",
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "annotations": {"kernelyard/digest": f"sha256:{manifest.sha256}"}},
        "spec": {"predictor": {"model": model}},
    }
