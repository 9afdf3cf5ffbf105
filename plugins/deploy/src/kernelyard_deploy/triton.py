"""Triton: a model repository for its Python backend, and the model that the backend loads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kernelyard.errors import KernelyardError
from kernelyard.runtime.api import TensorInfo
from kernelyard_deploy.errors import ExportError
from kernelyard_deploy.manifest import Manifest
from kernelyard_deploy.predictor import Predictor
from kernelyard_deploy.text_formats import Enumerator, Message, to_pbtxt

MODEL = "model.kyar"
# Triton's Python backend hands these over as NumPy arrays; bfloat16 and what is narrower than a byte it does not.
DTYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
MODEL_PY = '''"""The model for Triton's Python backend; it needs {needs}."""

from kernelyard_deploy.triton import TritonPythonModel  # noqa: F401
'''


def files(manifest: Manifest) -> dict[str, str]:
    """Return the files of a model's folder in a repository, by path. Raises: ExportError for a dtype Triton lacks."""
    needs = ", ".join(map(str, (*manifest.requirements, "kernelyard-deploy")))
    return {"config.pbtxt": to_pbtxt(config(manifest)), "1/model.py": MODEL_PY.format(needs=needs)}


def config(manifest: Manifest) -> Message:
    """Return the model's configuration."""
    rows = _most_rows(manifest)
    tensors = Message()
    for side, infos in (("input", manifest.main.inputs), ("output", manifest.main.outputs)):
        tensors += [(side, _tensor(info, batched=bool(rows))) for info in infos]
    batching = [("dynamic_batching", Message([("max_queue_delay_microseconds", 500)]))] if rows else []
    facts = manifest.facts
    strings = {"version": facts.version, "license": facts.license, "digest": f"sha256:{manifest.sha256}"}
    parameters = [
        ("parameters", Message([("key", key), ("value", Message([("string_value", value)]))]))
        for key, value in strings.items()
    ]
    head = [("name", facts.name), ("backend", "python"), ("max_batch_size", rows)]
    group = Message([("count", 1), ("kind", Enumerator("KIND_CPU"))])
    return Message([*head, *tensors, *batching, ("instance_group", group), *parameters])


def _most_rows(manifest: Manifest) -> int:
    """Return how many rows Triton may put together; 0 where it is to hand requests on as they are."""
    batch, main = manifest.facts.batch, manifest.main
    is_first = all(info.shape and info.shape[0] == batch for info in (*main.inputs, *main.outputs))
    return manifest.facts.sizes[batch][1] if batch and is_first and batch in manifest.facts.sizes else 0


def _tensor(info: TensorInfo, batched: bool) -> Message:
    if info.dtype not in DTYPES:
        raise ExportError(
            "Triton's Python backend has no such dtype", where=info.name, found=info.dtype, expected=", ".join(DTYPES)
        )
    dims = [dim if isinstance(dim, int) else -1 for dim in info.shape[batched:]]
    shape = Message([("name", info.name), ("data_type", Enumerator(DTYPES[info.dtype])), ("dims", dims or [1])])
    return shape if dims else Message([*shape, ("reshape", Message([("shape", [])]))])  # dims may not be empty


class TritonPythonModel:
    """Serve Triton's Python backend: the artifact beside `model.py`, prepared before the model is ready."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact of this version, and prepare the sizes that it names. Raises: as `kernelyard.load`."""
        self._predictor = Predictor(os.path.join(args["model_repository"], args["model_version"], MODEL))
        self._predictor.warm()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, several in one call where their rows are independent; errors are answers, too."""
        triton = import_module("triton_python_backend_utils")  # a part of the server
        names = [info.name for info in self._predictor.executable.inputs]
        feeds = [{name: triton.get_input_tensor_by_name(each, name).as_numpy() for name in names} for each in requests]
        return [_response(triton, result) for result in self._predictor.run_together(feeds)]

    def finalize(self) -> None:
        """Release the artifact."""
        del self._predictor


def _response(triton: Any, result: Any) -> Any:
    if isinstance(result, KernelyardError):
        return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(str(result)))
    return triton.InferenceResponse(output_tensors=[triton.Tensor(name, array) for name, array in result.items()])
