"""Clients that others wrote: Triton's, over HTTP and over gRPC."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from serve_models import save, scale
from served import serving

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
RELU = np.maximum(2 * X, 0)


class Triton(NamedTuple):
    """A client, and the module that has its types."""

    types: ModuleType
    client: Any

    def infer(self, x: np.ndarray, model: str = "net", **options: Any) -> np.ndarray:
        tensor = self.types.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return self.client.infer(model, [tensor], **options).as_numpy("output_0")


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    save(scale(2.0), folder / "net" / "1" / "model.kyar")
    with serving(str(folder), "--grpc-port", "0", *request.param) as each:
        yield each


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: Any) -> Iterator[Triton]:
    types = import_module(f"tritonclient.{request.param}")
    with types.InferenceServerClient(f"127.0.0.1:{server.ports[request.param]}") as client:
        yield Triton(types, client)


def facts(answer: Any) -> dict[str, Any]:
    """Return the answer to a client, the same for both protocols."""
    from google.protobuf.json_format import MessageToDict

    return answer if isinstance(answer, dict) else MessageToDict(answer, preserving_proto_field_name=True)


def test_the_server_and_the_model_are_described(triton: Triton) -> None:
    assert triton.client.is_server_live()
    assert triton.client.is_server_ready()
    assert triton.client.is_model_ready("net")
    assert triton.client.is_model_ready("net", "1")
    assert not triton.client.is_model_ready("none")
    assert facts(triton.client.get_server_metadata())["name"] == "kernelyard"
    model = facts(triton.client.get_model_metadata("net"))
    assert (model["name"], model["versions"], model["platform"]) == ("net", ["1"], "kernelyard")
    (described,) = model["inputs"]
    assert (described["name"], described["datatype"]) == ("x", "FP32")
    assert list(map(int, described["shape"])) == [-1, 8]


def test_an_inference(triton: Triton) -> None:
    np.testing.assert_array_equal(triton.infer(X), RELU)
    np.testing.assert_array_equal(triton.infer(X, model_version="1", request_id="seven"), RELU)
    output = triton.types.InferRequestedOutput("output_0")
    np.testing.assert_array_equal(triton.infer(X, outputs=[output], timeout=10_000_000), RELU)


def test_many_inferences_at_once(triton: Triton) -> None:
    tensor = triton.types.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    if triton.types.__name__.endswith("http"):
        results = [triton.client.async_infer("net", [tensor]).get_result() for _ in range(20)]
    else:
        answers: queue.Queue[Any] = queue.Queue()
        for _ in range(20):
            triton.client.async_infer("net", [tensor], lambda result, error: answers.put(error or result))
        results = [answers.get(timeout=30) for _ in range(20)]
    for each in results:
        np.testing.assert_array_equal(each.as_numpy("output_0"), RELU)


def test_errors_say_what_is_wrong(triton: Triton) -> None:
    from tritonclient.utils import InferenceServerException

    for x, model, code in ((X, "none", "KY805"), (X[:, :4], "net", "KY503")):
        with pytest.raises(InferenceServerException, match=code):
            triton.infer(np.ascontiguousarray(x), model)


def test_the_repository_is_controlled(triton: Triton, server: Any) -> None:
    client = triton.client
    index = facts(client.get_model_repository_index()) if triton.types.__name__.endswith("grpc") else None
    entries = index["models"] if index else client.get_model_repository_index()
    assert [(each["name"], each["version"], each["state"]) for each in entries] == [("net", "1", "READY")]
    client.unload_model("net")
    assert not client.is_model_ready("net")
    client.load_model("net")
    np.testing.assert_array_equal(triton.infer(X), RELU)


def test_numbers_are_taken_as_lists_too(triton: Triton) -> None:
    if triton.types.__name__.endswith("http"):
        tensor = triton.types.InferInput("x", list(X.shape), "FP32")
        tensor.set_data_from_numpy(X, binary_data=False)
        output = triton.types.InferRequestedOutput("output_0", binary_data=False)
        result = triton.client.infer("net", [tensor], outputs=[output])
        np.testing.assert_array_equal(result.as_numpy("output_0"), RELU)
        return
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="net")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=X.shape)
    tensor.contents.fp32_contents.extend(X.ravel().tolist())
    answer = triton.client._client_stub.ModelInfer(request)
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 8), RELU)
