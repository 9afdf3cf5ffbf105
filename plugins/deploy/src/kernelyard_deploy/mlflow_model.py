"""MLflow: a model of the flavor `python_function`, and the loader that MLflow calls."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import InputNameError
from kernelyard.runtime.api import TensorInfo
from kernelyard_deploy.errors import ExportError
from kernelyard_deploy.manifest import Manifest
from kernelyard_deploy.predictor import Predictor
from kernelyard_deploy.text_formats import to_yaml

MODEL = "model.kyar"


def files(manifest: Manifest) -> dict[str, str]:
    """Return the files of a model's folder, by path. Raises: ExportError for a dtype that MLflow lacks."""
    requirements = [*map(str, manifest.requirements), "kernelyard-deploy"]
    python = platform.python_version()
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": ["mlflow", *requirements]}],
    }
    return {
        "MLmodel": to_yaml(_mlmodel(manifest, python)),
        "requirements.txt": "\n".join(["mlflow", *requirements, ""]),
        "conda.yaml": to_yaml(conda),
        "python_env.yaml": to_yaml({"python": python, "dependencies": ["-r requirements.txt"]}),
    }


def _mlmodel(manifest: Manifest, python: str) -> dict[str, Any]:
    flavor = {
        "loader_module": __name__,
        "data": MODEL,
        "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
        "python_version": python,
    }
    main = manifest.main
    return {
        "flavors": {"python_function": flavor},
        "model_uuid": manifest.sha256[:32],  # the same artifact is the same model
        "signature": {"inputs": _signature(main.inputs), "outputs": _signature(main.outputs), "params": None},
        "metadata": {"kernelyard": manifest.to_json()},
    }


def _signature(infos: tuple[TensorInfo, ...]) -> str:
    return json.dumps([{"name": info.name, "type": "tensor", "tensor-spec": _tensor(info)} for info in infos])


def _tensor(info: TensorInfo) -> dict[str, Any]:
    if dtypes.to_numpy(info.dtype).kind not in "biuf":  # NumPy has no name of its own for the others
        raise ExportError("MLflow has no such dtype", where=info.name, found=info.dtype, expected="a dtype of NumPy")
    return {"dtype": info.dtype, "shape": [dim if isinstance(dim, int) else -1 for dim in info.shape]}


class Model:
    """Serve MLflow's `predict`: arrays by name, a table of columns, or one array for a model of one input."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return the results by name. Raises: as `Predictor`."""
        return self._predictor(self._feed(model_input))

    def _feed(self, given: Any) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            return given
        if hasattr(given, "columns"):  # a pandas.DataFrame
            return {str(name): _column(given[name]) for name in given.columns}
        infos = self._predictor.executable.inputs
        if len(infos) != 1:
            names = ", ".join(info.name for info in infos)
            found = type(given).__name__
            raise InputNameError("a model of several inputs takes them by name", found=found, expected=names)
        return {infos[0].name: given}


def _column(series: Any) -> np.ndarray:
    array = np.asarray(series)
    return np.stack([np.asarray(item) for item in array]) if array.dtype == object and len(array) else array


def _load_pyfunc(data_path: str) -> Model:
    """Load the artifact of a model's folder; MLflow calls this by name."""
    predictor = Predictor(data_path)
    predictor.warm()
    return Model(predictor)
