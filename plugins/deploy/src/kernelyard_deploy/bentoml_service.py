"""BentoML: a service with one method, whose types are those of the model."""

from __future__ import annotations

import keyword
import re

from kernelyard import dtypes
from kernelyard.runtime.api import TensorInfo
from kernelyard_deploy.errors import ExportError
from kernelyard_deploy.manifest import Manifest
from kernelyard_deploy.text_formats import to_yaml

MODEL = "model.kyar"
SERVICE = '''"""The model {name} {version} as a BentoML service: `bentoml serve`."""

from pathlib import Path
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from kernelyard_deploy import Predictor

INPUTS = {names!r}  # parameters of `predict`, and the inputs that they are


@bentoml.service(name={service!r})
class Model:
    def __init__(self) -> None:
        self.predictor = Predictor(Path(__file__).with_name({model!r}))
        self.predictor.warm()

    @bentoml.api
    def predict(
        self,
{parameters}
    ) -> dict[str, np.ndarray]:
        values = locals()
        return self.predictor({{name: values[parameter] for parameter, name in INPUTS.items()}})
'''


def files(manifest: Manifest) -> dict[str, str]:
    """Return the files of a service's folder, by path. Raises: ExportError for a dtype that BentoML lacks."""
    facts = manifest.facts
    names = _parameters(manifest.main.inputs)
    parameters = [
        f"        {parameter}: Annotated[np.ndarray, Shape({_shape(info)}), DType({_dtype(info)!r})],"
        for parameter, info in zip(names, manifest.main.inputs, strict=True)
    ]
    service = SERVICE.format(
        name=facts.name,
        version=facts.version,
        names=names,
        service=service_name(facts.name),
        model=MODEL,
        parameters="\n".join(parameters),
    )
    requirements = ["bentoml>=1.4", *map(str, manifest.requirements), "kernelyard-deploy"]
    bentofile = {
        "service": "service:Model",
        "labels": {"version": facts.version, "digest": manifest.sha256[:12]},
        "include": ["service.py", MODEL],
        "python": {"requirements_txt": "requirements.txt"},
    }
    return {
        "service.py": service,
        "requirements.txt": "\n".join([*requirements, ""]),
        "bentofile.yaml": to_yaml(bentofile),
    }


def service_name(name: str) -> str:
    """Return a name in the letters that BentoML and Kubernetes take: a-z, 0-9 and dashes between them."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].strip("-")


def _parameters(infos: tuple[TensorInfo, ...]) -> dict[str, str]:
    """Return a Python name for each input."""
    names: dict[str, str] = {}
    for number, info in enumerate(infos):
        plain = re.sub(r"\W", "_", info.name, flags=re.ASCII)
        taken = not plain.isidentifier() or keyword.iskeyword(plain) or plain in names or plain in ("self", "values")
        names[f"input_{number}" if taken else plain] = info.name
    return names


def _shape(info: TensorInfo) -> str:
    return repr(tuple(dim if isinstance(dim, int) else -1 for dim in info.shape))


def _dtype(info: TensorInfo) -> str:
    if dtypes.to_numpy(info.dtype).kind not in "biuf":
        raise ExportError("BentoML has no such dtype", where=info.name, found=info.dtype, expected="a dtype of NumPy")
    return info.dtype
