"""Predictors for the engines that spread work: what each wants to call, made of an artifact's path.

Ray Data, Ray Serve, Dask and `concurrent.futures` take a `Predictor` as it is; Spark and Beam have an interface of
their own. None of them is imported before it is used.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from kernelyard_deploy.predictor import Predictor


class SparkPredictFn:
    """Make the predict function of Spark's `predict_batch_udf`, in the Python worker that calls it."""

    def __init__(self, path: str | os.PathLike[str], threads: int | None = 1) -> None:
        self.predictor = Predictor(path, threads)

    def __call__(self) -> Callable[..., np.ndarray | dict[str, np.ndarray]]:
        """Load the artifact, and return the function of its inputs, in order, as batches of rows."""
        predictor = self.predictor
        names = [info.name for info in predictor.executable.inputs]

        def predict(*batches: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
            results = predictor(dict(zip(names, batches, strict=True)))
            return next(iter(results.values())) if len(results) == 1 else results

        # Spark counts the parameters, to tell columns from one column of tensors.
        parameters = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(names))]
        predict.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return predict


def spark_predict_fn(path: str | os.PathLike[str], threads: int | None = 1) -> SparkPredictFn:
    """Return the `make_predict_fn` of `pyspark.ml.functions.predict_batch_udf` for an artifact.

    It is pickled as the path, which workers read, and each Python worker loads the artifact once. One result is the
    column, several are the fields of a struct. threads: of a call; Spark runs a task per core.

    Example:
        udf = predict_batch_udf(kernelyard.spark_predict_fn("model.kyar"), return_type=ArrayType(FloatType()),
                                batch_size=1024, input_tensor_shapes=[[3, 32, 32]])
    """
    return SparkPredictFn(path, threads)


class _BeamHandler:
    """Serve Beam's `RunInference`: examples are feeds of one row, by name, or arrays for a model of one input."""

    def __init__(self, path: str | os.PathLike[str], threads: int | None = 1, max_batch: int = 256) -> None:
        super().__init__()
        self._predictor, self._max_batch = Predictor(path, threads), max_batch

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int | None, int]]:
        return beam_model_handler, (self._predictor.path, self._predictor.threads, self._max_batch)

    def load_model(self) -> Predictor:
        """Load the artifact, once per process. Raises: as `kernelyard.load`."""
        self._predictor.warm()
        return self._predictor

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Return how many examples become one batch."""
        return {"max_batch_size": self._max_batch}

    def run_inference(
        self, batch: Sequence[Any], model: Predictor, inference_args: Mapping[str, Any] | None = None
    ) -> Iterable[Any]:
        """Run a batch; yields a `PredictionResult` for each example, with its results by name."""
        result_of = import_module("apache_beam.ml.inference.base").PredictionResult
        names = [info.name for info in model.executable.inputs]
        feeds = [each if isinstance(each, Mapping) else {names[0]: each} for each in batch]
        results = model({name: np.stack([np.asarray(feed[name]) for feed in feeds]) for name in names})
        for row, example in enumerate(batch):
            yield result_of(example, {name: array[row] for name, array in results.items()}, model_id=model.path)


def beam_model_handler(path: str | os.PathLike[str], threads: int | None = 1, max_batch: int = 256) -> Any:
    """Return a `ModelHandler` of Apache Beam for an artifact; it is pickled as the path.

    Raises: ModuleNotFoundError without apache_beam.

    Example:
        rows | RunInference(beam_model_handler("model.kyar"))
    """
    base = import_module("apache_beam.ml.inference.base").ModelHandler
    return type("KernelyardModelHandler", (_BeamHandler, base), {})(path, threads, max_batch)
