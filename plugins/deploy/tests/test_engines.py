"""Predictors in the engines that spread work: pickled, and called as each engine does."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from deployed_model import expected

import kernelyard as ky
from kernelyard_deploy import Predictor, beam_model_handler, predictor, spark_predict_fn

X = np.linspace(-1, 1, 12).reshape(3, 4)


def sent(value: Any) -> Any:
    """Return the arguments of a worker."""
    return pickle.loads(pickle.dumps(value))


# --- all engines ------------------------------------------------------------------------------------------------------
def test_predictors_of_a_process_share_one_executable(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "_loaded", {})
    loads: list[object] = []
    load = ky.load
    monkeypatch.setattr(predictor.ky, "load", lambda *a, **k: loads.append(a) or load(*a, **k))
    for _ in range(3):
        np.testing.assert_allclose(sent(Predictor(artifact))({"x": X})["output_0"], expected(X), rtol=1e-5)
    assert len(loads) == 1


def test_a_file_that_was_replaced_is_loaded_again(
    artifact: Path, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "served.kyar"
    path.write_bytes(artifact.read_bytes())
    served = Predictor(path)
    assert served({"x": X})["output_0"].shape == (3, 3)
    compiled(lambda b: b.op("exp", b.input("y", (2,))), "other").replace(path)
    assert served({"y": np.zeros(2)})["output_0"].tolist() == [1, 1]


def test_an_artifact_that_is_not_there_is_an_error_where_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(ky.errors.ArtifactError):
        sent(Predictor(tmp_path / "none.kyar"))({"x": X})


@pytest.mark.parametrize(("given", "right"), [(X, True), (X.tolist(), True), (X + 1j, False)])
def test_numbers_are_cast_as_numpy_allows_for_one_kind(given: Any, right: bool, artifact: Path) -> None:
    if right:
        np.testing.assert_allclose(Predictor(artifact)({"x": given})["output_0"], expected(X), rtol=1e-5)
        return
    with pytest.raises(ky.errors.InputTypeError):
        Predictor(artifact)({"x": given})


def test_columns_of_lists_are_arrays(artifact: Path) -> None:
    """Engines give what Parquet has as lists as an array of arrays."""
    rows = np.empty(3, object)
    for number, row in enumerate(X):
        rows[number] = row if number else row.tolist()
    np.testing.assert_allclose(Predictor(artifact)({"x": rows})["output_0"], expected(X), rtol=1e-5)
    rows[1] = X[1, :2]
    with pytest.raises(ky.errors.InputTypeError):
        Predictor(artifact)({"x": rows})


def test_a_batch_of_ray_data(artifact: Path) -> None:
    """Ray Data makes the class in an actor, of `fn_constructor_args`, and calls it with columns; others are left out."""
    actor = Predictor(*sent((str(artifact),)))
    (result,) = actor({"x": X, "id": np.arange(3)}).values()
    np.testing.assert_allclose(result, expected(X), rtol=1e-5)


# --- Spark ------------------------------------------------------------------------------------------------------------
def test_spark_gets_a_function_of_the_inputs(artifact: Path) -> None:
    predict = sent(ky.spark_predict_fn(artifact))()
    assert len(inspect.signature(predict).parameters) == 1
    np.testing.assert_allclose(predict(X), expected(X), rtol=1e-5)


def test_several_results_are_the_fields_of_a_struct(tmp_path: Path) -> None:
    from kernelyard import dims
    from kernelyard.ir import FunctionBuilder, IRModule

    b, n = FunctionBuilder(), dims.symbol("n")
    x, y = b.input("x", (n,)), b.input("y", (n,))
    path = tmp_path / "two.kyar"
    results = b.tuple(b.op("add", x, y), b.op("multiply", x, y))
    ky.compile(IRModule({"main": b.function(results)}), backends=[]).save(path)
    predict = spark_predict_fn(path)()
    assert len(inspect.signature(predict).parameters) == 2
    found = predict(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert isinstance(found, dict)
    assert [array.tolist() for array in found.values()] == [[4, 6], [3, 8]]


# --- Beam -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def beam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam's names: the base class of handlers, and what they yield."""

    @dataclass
    class PredictionResult:
        example: Any
        inference: Any
        model_id: str | None = None

    base = ModuleType("apache_beam.ml.inference.base")
    base.__dict__.update(ModelHandler=type("ModelHandler", (), {}), PredictionResult=PredictionResult)
    monkeypatch.setitem(sys.modules, "apache_beam", ModuleType("apache_beam"))
    monkeypatch.setitem(sys.modules, "apache_beam.ml", ModuleType("apache_beam.ml"))
    monkeypatch.setitem(sys.modules, "apache_beam.ml.inference", ModuleType("apache_beam.ml.inference"))
    monkeypatch.setitem(sys.modules, "apache_beam.ml.inference.base", base)


@pytest.mark.usefixtures("beam")
def test_beam_gets_a_handler(artifact: Path) -> None:
    handler = sent(beam_model_handler(artifact, max_batch=16))
    assert handler.batch_elements_kwargs() == {"max_batch_size": 16}
    model = handler.load_model()
    for examples in (list(X), [{"x": row} for row in X]):
        results = list(handler.run_inference(examples, model))
        np.testing.assert_allclose([r.inference["output_0"] for r in results], expected(X), rtol=1e-5)
        assert [r.model_id for r in results] == [str(artifact)] * 3


# --- the engines themselves -------------------------------------------------------------------------------------------
def run(code: str, *arguments: object) -> None:
    """Run a script of its own: engines spawn processes that import it."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deploy_tools
def test_dask_itself(artifact: Path, tmp_path: Path) -> None:
    """A client maps the predictor over batches, and its executor runs a batch job."""
    code = """
import sys
import numpy as np
from pathlib import Path
from distributed import Client, LocalCluster
from kernelyard_deploy import Predictor, predict_table

if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal((5000, 4))
    np.savez(sys.argv[2], x=x, id=np.arange(5000))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        found = client.gather(client.map(Predictor(sys.argv[1], 1), [{"x": x[i : i + 500]} for i in range(0, 5000, 500)]))
        report = predict_table(sys.argv[1], sys.argv[2], sys.argv[3], keep=["id"], executor=client.get_executor(), shard_rows=700)
    assert (report.rows, report.failures, len(report.parts)) == (5000, 0, 8), report
    mapped = np.concatenate([each["output_0"] for each in found])
    parts = [np.load(part) for part in report.parts]
    assert np.array_equal(np.concatenate([part["id"] for part in parts]), np.arange(5000))
    assert np.array_equal(np.concatenate([part["output_0"] for part in parts]), mapped)
    np.save(sys.argv[4], mapped)
"""
    script = tmp_path / "job.py"
    script.write_text(code)
    command = [sys.executable, script, artifact, tmp_path / "rows.npz", tmp_path / "out", tmp_path / "y.npy"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    x = np.random.default_rng(0).standard_normal((5000, 4))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.deploy_tools
def test_ray_data_itself(artifact: Path, tmp_path: Path) -> None:
    """Actors of Ray map the predictor over batches of a Parquet file."""
    code = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
from kernelyard_deploy import Predictor

x = np.random.default_rng(0).standard_normal((1000, 4)).astype(np.float32)
ray.init('local', num_cpus=3, include_dashboard=False)
pq.write_table(pa.table({"x": x.tolist()}), sys.argv[2])
rows = ray.data.read_parquet(sys.argv[2], override_num_blocks=4)
pool = ray.data.ActorPoolStrategy(size=2)
rows = rows.map_batches(Predictor, fn_constructor_args=(sys.argv[1], 1), compute=pool, batch_size=100)
found = np.stack([row["output_0"] for row in rows.take_all()])
ray.shutdown()
wanted = Predictor(sys.argv[1])({"x": x})["output_0"]
assert found.shape == wanted.shape
order = [np.lexsort(each.T) for each in (found, wanted)]
np.testing.assert_allclose(found[order[0]], wanted[order[1]], rtol=1e-5)
"""
    run(code, artifact, tmp_path / "rows.parquet")


@pytest.mark.deploy_tools
def test_ray_serve_itself(artifact: Path) -> None:
    """A deployment of Ray Serve makes the predictor in its replica; a handle sends it feeds."""
    code = """
import sys
import numpy as np
import ray
from ray import serve
from kernelyard_deploy import Predictor

x = np.random.default_rng(0).standard_normal((5, 4))
ray.init('local', num_cpus=2, include_dashboard=False)
handle = serve.run(serve.deployment(Predictor).bind(sys.argv[1]), route_prefix=None)
found = [handle.remote({"x": x[: i + 1]}) for i in range(5)]
for i, response in enumerate(found):
    wanted = Predictor(sys.argv[1])({"x": x[: i + 1]})["output_0"]
    np.testing.assert_allclose(response.result(timeout_s=60)["output_0"], wanted, rtol=1e-5, atol=1e-6)
serve.shutdown()
ray.shutdown()
"""
    run(code, artifact)


@pytest.mark.deploy_tools
def test_spark_itself(artifact: Path) -> None:
    """Python workers of Spark run the model on batches of rows, and read columns of lists as rows."""
    code = """
import os
import sys
import numpy as np
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType
import kernelyard
from kernelyard_deploy import Predictor

x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
frame = session.createDataFrame([(i, row) for i, row in enumerate(x.tolist())], "id int, x array<float>").repartition(3)
predict = predict_batch_udf(
    kernelyard.spark_predict_fn(sys.argv[1]), return_type=ArrayType(FloatType()), batch_size=64, input_tensor_shapes=[[4]]
)
rows = sorted(frame.select("id", predict("x").alias("y")).collect())
session.stop()
assert [row.id for row in rows] == list(range(300))
wanted = Predictor(sys.argv[1])({"x": x})["output_0"]
np.testing.assert_allclose(np.array([row.y for row in rows], np.float32), wanted, rtol=1e-5, atol=1e-6)
"""
    run(code, artifact)


@pytest.mark.deploy_tools
def test_beam_itself(artifact: Path) -> None:
    code = """
import sys
import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference
from apache_beam.testing.util import assert_that
from kernelyard_deploy import Predictor, beam_model_handler

x = np.random.default_rng(0).standard_normal((100, 4))
wanted = {tuple(row): y for row, y in zip(x.tolist(), Predictor(sys.argv[1])({"x": x})["output_0"])}

def check(results):
    assert len(results) == 100
    for each in results:
        assert np.allclose(each.inference["output_0"], wanted[tuple(each.example.tolist())], atol=1e-5)

with beam.Pipeline() as pipeline:
    rows = pipeline | beam.Create(list(x)) | RunInference(beam_model_handler(sys.argv[1]))
    assert_that(rows, check)
"""
    run(code, artifact)
