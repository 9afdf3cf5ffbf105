"""The forms: each is loaded by what it is for, or by a stub with its documented interface."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from deployed_model import FACTS, expected

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard_deploy import FORMS, ExportError, Facts, Predictor, describe, export, read_manifest
from kernelyard_deploy.mlflow_model import _load_pyfunc
from kernelyard_deploy.text_formats import to_yaml

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A Python file, as the other system imports it."""
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "exported", module)
    spec.loader.exec_module(module)
    return module


# --- all forms --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", FORMS)
def test_what_is_there_already_is_kept(form: str, artifact: Path, tmp_path: Path) -> None:
    written = export(artifact, form, tmp_path / "out", FACTS)
    files = {path: path.stat().st_mtime_ns for path in written.rglob("*")}
    with pytest.raises(ExportError) as error:
        export(artifact, form, tmp_path / "out", FACTS)
    assert error.value.message == "the place is taken"
    assert {path: path.stat().st_mtime_ns for path in written.rglob("*")} == files


@pytest.mark.parametrize("form", [form for form in FORMS if form != "c"])
def test_the_same_artifact_gives_the_same_files(form: str, artifact: Path, tmp_path: Path) -> None:
    first, second = (export(artifact, form, tmp_path / name, FACTS) for name in ("first", "second"))
    texts = [{p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()} for root in (first, second)]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 1


def test_a_form_that_fails_leaves_nothing(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path = compiled(lambda b: b.op("exp", b.input("x", (3,), "bfloat16")))
    for form in ("triton", "mlflow", "bentoml"):
        with pytest.raises(ExportError, match="no such dtype"):
            export(path, form, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir() if each.name != path.name] == ["out"][
        : (tmp_path / "out").exists()
    ]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_place_that_cannot_be_written_is_an_error(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        export(artifact, "oci", tmp_path / "file" / "below")


# --- Triton -----------------------------------------------------------------------------------------------------------
class Request(dict[str, np.ndarray]):
    """A request of the Python backend: tensors by name."""


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: Any = None) -> None:
        self._tensors, self._error = output_tensors, error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Any:
        return self._error


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], Any]:
    """The server's side: `triton_python_backend_utils`, and how the backend makes a model."""
    utils = ModuleType("triton_python_backend_utils")
    utils.__dict__.update(
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        TritonError=lambda message: SimpleNamespace(message=lambda: message),
        get_input_tensor_by_name=lambda request, name: Tensor(name, request[name]),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)

    def start(folder: Path, version: str = "1") -> Any:
        model = imported(folder / version / "model.py", monkeypatch).TritonPythonModel()
        model.initialize({"model_repository": str(folder), "model_version": version, "model_name": folder.name})
        return model

    return start


def answers(model: Any, *inputs: np.ndarray) -> list[InferenceResponse]:
    return model.execute([Request(x=x) for x in inputs])


def test_triton_serves_the_model(artifact: Path, tmp_path: Path, triton: Callable[..., Any]) -> None:
    folder = export(artifact, "triton", tmp_path / "repository", FACTS)
    assert folder == tmp_path / "repository" / "scorer"
    model = triton(folder)
    (answer,) = answers(model, X)
    (tensor,) = answer.output_tensors()
    assert tensor.name() == "output_0"
    np.testing.assert_allclose(tensor.as_numpy(), expected(X), rtol=1e-5)
    model.finalize()


def test_triton_puts_requests_together(
    artifact: Path, tmp_path: Path, triton: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = triton(export(artifact, "triton", tmp_path, FACTS))
    calls: list[int] = []
    call = Predictor.__call__
    monkeypatch.setattr(Predictor, "__call__", lambda self, feed: calls.append(len(feed["x"])) or call(self, feed))
    given = [X[:1], X, X[1:]]
    for answer, x in zip(answers(model, *given), given, strict=True):
        np.testing.assert_allclose(answer.output_tensors()[0].as_numpy(), expected(x), rtol=1e-5)
    assert calls == [6]


def test_a_bad_request_harms_no_other(artifact: Path, tmp_path: Path, triton: Callable[..., Any]) -> None:
    model = triton(export(artifact, "triton", tmp_path, FACTS))
    good, bad, late = answers(model, X, np.zeros((2, 5), np.float32), X[:1])
    assert bad.has_error()
    assert "KY503" in bad.error().message()
    for answer, x in ((good, X), (late, X[:1])):
        np.testing.assert_allclose(answer.output_tensors()[0].as_numpy(), expected(x), rtol=1e-5)


def test_requests_stay_apart_where_rows_may_depend_on_each_other(
    artifact: Path, tmp_path: Path, triton: Callable[..., Any]
) -> None:
    folder = export(artifact, "triton", tmp_path, Facts(name="scorer"))
    text = (folder / "config.pbtxt").read_text()
    assert "max_batch_size: 0" in text
    assert "dims: [ -1, 4 ]" in text
    assert "dynamic_batching" not in text
    assert [len(a.output_tensors()[0].as_numpy()) for a in answers(triton(folder), X, X[:1])] == [3, 1]


def test_triton_config_has_dims_without_the_batch(artifact: Path, tmp_path: Path) -> None:
    text = (export(artifact, "triton", tmp_path, FACTS) / "config.pbtxt").read_text()
    for line in ('name: "scorer"', 'backend: "python"', "max_batch_size: 64", "dims: [ 4 ]", "data_type: TYPE_FP32"):
        assert line in text
    assert "dynamic_batching" in text


def test_triton_config_of_scalars(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path = compiled(lambda b: b.op("add", b.input("x", (), "int64"), b.input("y", (2,), "int64")))
    text = (export(path, "triton", tmp_path) / "config.pbtxt").read_text()
    assert "dims: [ 1 ]\n  reshape {\n    shape: [  ]\n  }" in text
    assert text.count("TYPE_INT64") == 3


# --- MLflow -----------------------------------------------------------------------------------------------------------
def test_mlflow_gets_a_model(artifact: Path, tmp_path: Path) -> None:
    folder = export(artifact, "mlflow", tmp_path / "model", FACTS)
    described = yaml.safe_load((folder / "MLmodel").read_text())
    flavor = described["flavors"]["python_function"]
    assert flavor["loader_module"] == "kernelyard_deploy.mlflow_model"
    assert json.loads(described["signature"]["inputs"]) == [
        {"name": "x", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}
    ]
    assert described["metadata"]["kernelyard"]["digest"] == f"sha256:{read_manifest(folder / flavor['data']).sha256}"
    model = _load_pyfunc(str(folder / flavor["data"]))
    np.testing.assert_allclose(model.predict({"x": X})["output_0"], expected(X), rtol=1e-5)
    np.testing.assert_allclose(model.predict(X)["output_0"], expected(X), rtol=1e-5)


@pytest.mark.deploy_tools
def test_mlflow_itself_loads_and_predicts(artifact: Path, tmp_path: Path) -> None:
    folder = export(artifact, "mlflow", tmp_path / "model", FACTS)
    code = """
import sys
import mlflow.pyfunc
import numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
assert "Tensor('float32', (-1, 4))" in repr(model.metadata.get_input_schema())
np.save(sys.argv[2], model.predict({"x": np.load(sys.argv[3])})["output_0"])
"""
    np.save(tmp_path / "x.npy", X)
    arguments = [str(folder), str(tmp_path / "y.npy"), str(tmp_path / "x.npy")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(X), rtol=1e-5)


# --- BentoML ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def bentoml(monkeypatch: pytest.MonkeyPatch) -> None:
    """BentoML's names: a decorator of the class with options, one of its methods, and two annotations."""
    stub, validators = ModuleType("bentoml"), ModuleType("bentoml.validators")
    stub.__dict__.update(service=lambda **options: lambda cls: cls, api=lambda method: method, validators=validators)
    validators.__dict__.update(Shape=tuple, DType=str)
    monkeypatch.setitem(sys.modules, "bentoml", stub)
    monkeypatch.setitem(sys.modules, "bentoml.validators", validators)


@pytest.mark.usefixtures("bentoml")
def test_bentoml_serves_the_model(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(artifact, "bentoml", tmp_path / "service", FACTS)
    service = imported(folder / "service.py", monkeypatch).Model()
    np.testing.assert_allclose(service.predict(x=X)["output_0"], expected(X), rtol=1e-5)
    bento = yaml.safe_load((folder / "bentofile.yaml").read_text())
    assert bento["service"] == "service:Model"
    assert "kernelyard-native-cpu>=" in (folder / "requirements.txt").read_text()


BENTOML = """
import json, os, signal, socket, subprocess, sys, time, urllib.request

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
command = [sys.executable, "-m", "bentoml", "serve", ".", "--host", "127.0.0.1", "--port", str(port), "--api-workers", "1"]
server = subprocess.Popen(command, cwd=sys.argv[1], start_new_session=True, stdout=subprocess.DEVNULL)
try:
    until = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5)
            break
        except OSError:
            assert time.monotonic() < until and server.poll() is None
            time.sleep(0.2)
    body = json.dumps({"x": json.loads(sys.argv[2])}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
    print(urllib.request.urlopen(request, timeout=60).read().decode())
finally:
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(60)
"""


@pytest.mark.deploy_tools
def test_bentoml_itself_serves_the_model(artifact: Path, tmp_path: Path) -> None:
    folder = export(artifact, "bentoml", tmp_path / "service", FACTS)
    command = [sys.executable, "-c", BENTOML, str(folder), json.dumps(X.tolist())]
    environment = {**os.environ, "BENTOML_HOME": str(tmp_path / "home"), "BENTOML_DO_NOT_TRACK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout)["output_0"], expected(X), rtol=1e-5)


@pytest.mark.usefixtures("bentoml")
def test_bentoml_gets_python_names(
    compiled: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiled(lambda b: b.op("add", b.input("in/put:0", (2,)), b.input("class", (2,))))
    service = imported(export(path, "bentoml", tmp_path / "service") / "service.py", monkeypatch).Model()
    (result,) = service.predict(in_put_0=np.ones(2, np.float32), input_1=np.ones(2, np.float32)).values()
    assert result.tolist() == [2, 2]


# --- KServe -----------------------------------------------------------------------------------------------------------
def test_kserve_gets_a_runtime_and_a_service(artifact: Path, tmp_path: Path) -> None:
    folder = export(artifact, "kserve", tmp_path / "kserve", FACTS)
    runtime, service = (
        yaml.safe_load((folder / f"{n}.yaml").read_text()) for n in ("serving-runtime", "inference-service")
    )
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"  # KServe looks for it by this name
    assert [*container["command"], *container["args"]] == [
        *("kernelyard", "serve", "/mnt/models/model.kyar", "--port", "8080")
    ]
    (format_,) = runtime["spec"]["supportedModelFormats"]
    model = service["spec"]["predictor"]["model"]
    assert model["modelFormat"]["name"] == format_["name"]
    assert model["storageUri"] == "oci://registry.example.com/scorer:1.2"
    assert read_manifest(folder / "models/model.kyar").facts == FACTS


# --- OCI --------------------------------------------------------------------------------------------------------------
def blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    """The content of a descriptor, checked as OCI's rules demand."""
    algorithm, digest = descriptor["digest"].split(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    assert (hashlib.new(algorithm, data).hexdigest(), len(data)) == (digest, descriptor["size"])
    return data


def test_an_oci_layout_holds_a_model_pack(artifact: Path, tmp_path: Path) -> None:
    layout = export(artifact, "oci", tmp_path / "layout", FACTS)
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_text())
    (descriptor,) = index["manifests"]
    assert descriptor["annotations"]["org.opencontainers.image.ref.name"] == "1.2"
    manifest = json.loads(blob(layout, descriptor))
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    config = json.loads(blob(layout, manifest["config"]))
    assert config["descriptor"]["licenses"] == ["Apache-2.0"]
    assert config["modelfs"] == {"type": "layers", "diffIds": [layer["digest"] for layer in manifest["layers"]]}
    model, facts = manifest["layers"]
    assert model["annotations"]["org.cncf.model.filepath"] == "scorer.kyar"
    (tmp_path / "pulled.kyar").write_bytes(blob(layout, model))
    np.testing.assert_allclose(Predictor(tmp_path / "pulled.kyar")({"x": X})["output_0"], expected(X), rtol=1e-5)
    assert json.loads(blob(layout, facts))["digest"] == model["digest"]
    named = {each["digest"].split(":")[1] for each in (descriptor, manifest["config"], model, facts)}
    assert {path.name for path in (layout / "blobs/sha256").iterdir()} == named


@pytest.mark.deploy_tools
def test_skopeo_itself_copies_the_layout(artifact: Path, tmp_path: Path) -> None:
    """It checks every digest and size of what it copies."""
    layout = export(artifact, "oci", tmp_path / "layout", FACTS)
    assert shutil.which("skopeo"), "apt-get install skopeo"
    command = ["skopeo", "copy", "--quiet", f"oci:{layout}:1.2", f"oci:{tmp_path / 'copy'}:1.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [{path.name for path in (each / "blobs/sha256").iterdir()} for each in (layout, tmp_path / "copy")]
    assert names[0] == names[1]


# --- C ----------------------------------------------------------------------------------------------------------------
def test_c_gets_a_library_and_its_header(artifact: Path, tmp_path: Path) -> None:
    folder = export(artifact, "c", tmp_path / "c", FACTS)
    assert {path.name for path in folder.iterdir()} == {"libscorer.so", "kernelyard.h", "README.txt"}
    assert "ky_run" in (folder / "kernelyard.h").read_text()
    assert "main(x: float32 ['n', 4]) -> (output_0: float32 ['n', 3])" in (folder / "README.txt").read_text()
    np.testing.assert_allclose(ky.load(folder / "libscorer.so")(X).numpy(), expected(X), rtol=1e-5)


# --- the command ------------------------------------------------------------------------------------------------------
def test_the_command_exports_in_several_forms(artifact: Path, tmp_path: Path) -> None:
    places = {form: tmp_path / form for form in ("triton", "oci", "kserve")}
    arguments = [text for form, place in places.items() for text in (f"--{form}", str(place))]
    facts = [
        "--license",
        "MIT",
        "--batch",
        "n",
        "--size",
        "n=1:32",
        "--warm-up",
        "n=4",
        "--kyar",
        str(tmp_path / "m.kyar"),
    ]
    result = CliRunner().invoke(main, ["export", str(artifact), *arguments, *facts])
    assert result.exit_code == 0, result.output
    assert result.output.split() == [
        str(tmp_path / "m.kyar"),
        str(places["triton"] / "scorer"),
        *map(str, (places["kserve"], places["oci"])),
    ]
    said = read_manifest(tmp_path / "m.kyar").facts
    assert (said.license, said.sizes, said.warm_up) == ("MIT", {"n": (1, 32)}, ({"n": 4},))


def test_the_command_shows_the_manifest(artifact: Path) -> None:
    result = CliRunner().invoke(main, ["export", str(artifact), "--json"])
    assert json.loads(result.output) == read_manifest(artifact).to_json()


@pytest.mark.parametrize("arguments", [["--size", "n=3"], ["--warm-up", "n"], ["--warm-up", "n=x"]])
def test_a_malformed_option_is_a_usage_error(arguments: list[str], artifact: Path) -> None:
    assert CliRunner().invoke(main, ["export", str(artifact), *arguments]).exit_code == 2


def test_an_error_of_the_command_has_its_code(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    result = CliRunner().invoke(main, ["export", str(artifact), "--oci", str(tmp_path), "--json"])
    assert json.loads(result.output)["error"]["code"] == "KY760"


# --- texts ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [1, 2.5, None, True, "x: y\n- z", []]}, "c": {}, "d": [{"e": [[1], [2]]}, "f"]},
        [["a"], {"b": {"c": "ü"}}],
    ],
)
def test_yaml_is_read_back(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


def test_a_described_artifact_is_exported_as_it_is(artifact: Path, tmp_path: Path) -> None:
    describe(artifact, tmp_path / "described.kyar", FACTS)
    folder = export(tmp_path / "described.kyar", "kserve", tmp_path / "kserve")
    assert (folder / "models/model.kyar").read_bytes() == (tmp_path / "described.kyar").read_bytes()
