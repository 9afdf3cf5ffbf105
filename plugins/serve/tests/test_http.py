"""The protocol over HTTP, as a server in a process of its own speaks it."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress

import numpy as np
import pytest
from prometheus_text import samples

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
RELU = np.maximum(3 * X, 0)


def result(answer: dict) -> np.ndarray:
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_health_and_metadata(client) -> None:
    assert client("/v2/health/live") == (200, {"live": True})
    assert client("/v2/health/ready") == (200, {"ready": True})
    status, server = client("/v2")
    assert (status, server["name"]) == (200, "kernelyard")
    assert "binary_tensor_data" in server["extensions"]
    assert client("/v2/models/net/ready")[0] == client("/v2/models/net/versions/1/ready")[0] == 200


def test_the_metadata_of_a_model_say_where_it_runs(client) -> None:
    status, model = client("/v2/models/net")
    assert (status, model["name"], model["versions"]) == (200, "net", ["1", "2"])
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
    assert sum(work["ops"] for work in model["placement"].values()) == 2
    assert sum(work["ops_fraction"] for work in model["placement"].values()) == 1
    assert "2/2 ops" in model["properties"]["placement"]


def test_rows_that_depend_on_one_another_are_not_joined(client) -> None:
    assert client("/v2/models/net")[1]["properties"]["batching"] == "yes"
    reason = client("/v2/models/mixed")[1]["properties"]["batching"]
    assert reason == "no: rows of 'output_0' depend on one another"


def test_an_inference_in_json(client) -> None:
    status, answer = client.infer(X, id="seven")
    assert (status, answer["id"], answer["model_version"]) == (200, "seven", "2")
    np.testing.assert_array_equal(result(answer), RELU)
    nested = {"name": "x", "datatype": "FP32", "shape": [2, 8], "data": X.tolist()}
    np.testing.assert_array_equal(result(client("/v2/models/net/infer", {"inputs": [nested]})[1]), RELU)


def test_a_version_is_chosen(client) -> None:
    answer = client.infer(X, "net/versions/1")[1]
    np.testing.assert_array_equal(result(answer), np.maximum(2 * X, 0))


def test_tensors_are_bytes_after_the_json(client) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 8], "parameters": {"binary_data_size": X.nbytes}}
    output = {"name": "output_0", "parameters": {"binary_data": True}}
    for members in ({"outputs": [output]}, {"parameters": {"binary_data_output": True}}):
        head = json.dumps({"inputs": [tensor], **members}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, content = client("/v2/models/net/infer", head + X.tobytes(), headers)
        assert status == 200
        length = int(client.answer.getheader("Inference-Header-Content-Length"))
        (shown,) = json.loads(content[:length])["outputs"]
        assert shown["parameters"]["binary_data_size"] == X.nbytes == len(content) - length
        np.testing.assert_array_equal(np.frombuffer(content[length:], np.float32).reshape(2, 8), RELU)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("net", b"{", 400, "KY802"),
        ("net", b'{"inputs": 3}', 400, "KY802"),
        ("net", {"inputs": []}, 400, "KY501"),
        ("none", {"inputs": []}, 404, "KY805"),
        ("net/versions/9", {"inputs": []}, 404, "KY805"),
        ("net", {"inputs": [{"name": "y", "datatype": "FP32", "shape": [0, 8], "data": []}]}, 400, "KY501"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP64", "shape": [0, 8], "data": []}]}, 400, "KY502"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [8], "data": [1] * 8}]}, 400, "KY503"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 9], "data": [1] * 9}]}, 400, "KY503"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1] * 9}]}, 400, "KY802"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": ["1"] * 8}]}, 400, "KY802"),
        ("net", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1e39] * 8}]}, 400, "KY802"),
        ("net", b"1" * (1 << 20) + b"1", 413, "KY803"),
    ],
)
def test_what_is_wrong_has_a_status_and_a_code(client, path: str, body: object, status: int, code: str) -> None:
    found, answer = client(f"/v2/models/{path}/infer", body)
    assert (found, answer["code"]) == (status, code)
    assert answer["error"].startswith(f"[{code}]")
    assert client("/v2/health/ready")[0] == 200


def test_other_methods_and_paths_are_refused(client) -> None:
    for path, method, status in (("/v2/models/net/infer", "GET", 405), ("/v2/nothing", "GET", 404)):
        found, facts = client(path, method=method)
        assert (found, facts["code"], facts["found"]) == (status, "KY811", f"{method} {path}")


@pytest.mark.parametrize("parameters", [{"config": "x"}, [1], 1, "x"])
def test_models_are_loaded_without_parameters(client, parameters: object) -> None:
    status, facts = client("/v2/repository/models/net/load", {"parameters": parameters})
    assert (status, facts["code"]) == (400, "KY802")


def test_a_deadline_of_a_request_is_kept(client) -> None:
    status, answer = client.infer(X, "mixed", parameters={"timeout": -1})
    assert (status, answer["code"]) == (400, "KY802")
    assert client.infer(X, "mixed", parameters={"timeout": 10_000_000})[0] == 200


def test_a_body_that_does_not_arrive_is_not_waited_for(server) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=30) as slow:
        slow.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = b""
        while part := slow.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"KY804" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", 408), (b"GET /v2 HT", 408), (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (1 << 17), 431)],
)
def test_a_head_that_does_not_end_is_not_waited_for(server, sent: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=30) as slow:
        slow.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):  # what was sent after the end of the connection
            while part := slow.recv(4096):
                answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_clients_that_leave_are_counted(server, client) -> None:
    before = samples(client("/metrics")[1]).get(('kernelyard_refused_total{status="499"}'), 0)
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as left:
        left.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.1)
    until = time.monotonic() + 10
    while samples(client("/metrics")[1]).get('kernelyard_refused_total{status="499"}', 0) == before:
        assert time.monotonic() < until


def test_counts_for_prometheus(client) -> None:
    labels = 'model="net",version="2"'
    name = f'kernelyard_answers_total{{{labels},protocol="http",status="200"}}'
    before = samples(client("/metrics")[1]).get(name, 0)
    client.infer(X)
    after = samples(client("/metrics")[1])
    assert after[name] == before + 1
    assert after[f"kernelyard_request_seconds_count{{{labels}}}"] >= after[name]
    assert after[f'kernelyard_call_rows_bucket{{{labels},le="+Inf"}}'] >= 1
    assert after["kernelyard_resident_bytes"] > 0
