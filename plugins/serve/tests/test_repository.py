"""Find models in folders, and exchange them while requests run."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from serve_models import save, scale

from kernelyard_serve import BatchPolicy, ServeError, ServeOptions, find_artifacts
from kernelyard_serve.inference import InferenceRequest
from kernelyard_serve.metrics import ModelMetrics
from kernelyard_serve.served_model import ServedModel

X = np.ones((1, 8), np.float32)


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_files_folders_and_names(tmp_path: Path) -> None:
    file = touch(tmp_path / "a.kyar")
    one, two, ten = (touch(tmp_path / "models" / "b" / version / "x.kyar") for version in ("1", "2", "10"))
    touch(tmp_path / "models" / "notes" / "text.txt")
    assert find_artifacts([str(file)]) == {"a": {"1": file}}
    assert find_artifacts([f"c={file}"]) == {"c": {"1": file}}
    versions = {"1": one, "2": two, "10": ten}
    for argument, name in ((tmp_path / "models", "b"), (tmp_path / "models" / "b", "b")):
        assert find_artifacts([str(argument)]) == {name: versions}
        assert list(find_artifacts([str(argument)])[name]) == ["1", "2", "10"]
    assert find_artifacts([f"d={tmp_path / 'models' / 'b'}"]) == {"d": versions}


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    file = str(touch(tmp_path / "a.kyar"))
    (tmp_path / "empty").mkdir()
    touch(tmp_path / "twice" / "1" / "x.kyar")
    touch(tmp_path / "twice" / "1" / "y.kyar")
    for arguments in (
        ["none.kyar"],
        [file, file],
        [f"../x={file}"],
        [str(tmp_path / "empty")],
        [str(tmp_path / "twice")],
    ):
        with pytest.raises(ServeError) as caught:
            find_artifacts(arguments)
        assert caught.value.code == "KY801"


def factors(answers: list[tuple[int, dict]]) -> set[float]:
    return {answer["outputs"][0]["data"][0] for _, answer in answers}


def test_a_model_is_exchanged_without_a_lost_request(tmp_path: Path, serve) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    server = serve(path)
    answers: list[tuple[int, dict]] = []
    stop = threading.Event()

    def ask() -> None:
        with server.client() as client:
            while not stop.is_set():
                answers.append(client.infer(X))

    callers = [threading.Thread(target=ask) for _ in range(3)]
    for each in callers:
        each.start()
    with server.client() as client:
        for factor in (3, 4):
            save(scale(factor), path)
            assert client("/v2/repository/models/net/load", {})[0] == 200
            assert factors([client.infer(X)]) == {factor}
    stop.set()
    for each in callers:
        each.join()
    assert {status for status, _ in answers} == {200}
    assert factors(answers) <= {2, 3, 4}


def test_an_artifact_that_cannot_be_loaded_leaves_the_old_one(tmp_path: Path, serve) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    server = serve(path)
    (tmp_path / "damaged").write_bytes(path.read_bytes()[:-100])
    (tmp_path / "damaged").replace(path)
    with server.client() as client:
        status, answer = client("/v2/repository/models/net/load", {})
        assert (status, answer["code"]) == (500, "KY601")
        assert factors([client.infer(X)]) == {2}


def test_models_come_and_go(tmp_path: Path, serve) -> None:
    save(scale(2), tmp_path / "one" / "1" / "x.kyar")
    server = serve(tmp_path)
    with server.client() as client:
        assert client("/v2/repository/models/one/unload", {})[0] == 200
        status, answer = client.infer(X, "one")
        assert (status, answer["code"], client.answer.getheader("retry-after")) == (503, "KY806", "1")
        (entry,) = client("/v2/repository/index", {})[1]
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        assert client("/v2/repository/index", {"ready": True})[1] == []
        assert client("/v2/repository/models/one/load", {})[0] == 200
        assert factors([client.infer(X, "one")]) == {2}
        save(scale(5), tmp_path / "two" / "3" / "x.kyar")
        assert client("/v2/repository/models/two/load", {}) == (200, {"name": "two", "versions": ["3"]})
        assert factors([client.infer(X, "two")]) == {5}
        assert client("/v2/repository/models/three/load", {})[0] == 404
        assert client("/v2/repository/models/two/load", {"parameters": {"config": "{}"}})[0] == 400


def test_clients_may_be_kept_from_control(tmp_path: Path, serve) -> None:
    server = serve(save(scale(2), tmp_path / "net.kyar"), "--no-control")
    with server.client() as client:
        assert client("/v2/repository/models/net/unload", {})[0] == 404
        assert client.infer(X)[0] == 200


def test_a_server_that_is_asked_to_stop_answers_what_has_begun(tmp_path: Path, serve) -> None:
    # A request that waits for others has begun, and is not answered until its delay is over.
    server = serve(save(scale(2), tmp_path / "net.kyar"), "--max-batch", "8", "--max-delay", "1000")
    answers: list[tuple[int, dict]] = []

    def ask() -> None:
        with server.client() as client:
            answers.append(client.infer(X))

    caller = threading.Thread(target=ask)
    with server.client() as client:
        caller.start()
        while b'kernelyard_requests_waiting{model="net",version="1"} 1' not in client("/metrics")[1]:
            assert caller.is_alive()
    server.signal(signal.SIGTERM)
    assert server.end() == (0, "")
    caller.join()
    assert answers[0][0] == 200


def test_sighup_loads_what_is_new(tmp_path: Path, serve) -> None:
    path = save(scale(2), tmp_path / "net.kyar")
    server = serve(path)
    save(scale(7), path)
    server.signal(signal.SIGHUP)
    with server.client() as client:
        while factors([client.infer(X)]) == {2}:
            pass
        assert factors([client.infer(X)]) == {7}


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path, serve) -> None:
    (tmp_path / "net.kyar").write_bytes(b"no artifact")
    status, errors = serve(tmp_path / "net.kyar").end()
    assert status == 1
    assert errors.startswith("[KY601]")


def test_what_was_exchanged_is_freed_at_once(tmp_path: Path) -> None:
    """Without the collector of cycles: a model holds its weights."""
    from concurrent.futures import ThreadPoolExecutor

    path = save(scale(2), tmp_path / "net.kyar")

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            options = ServeOptions(BatchPolicy(max_rows=2, callers=1))
            served = ServedModel.load(path, ModelMetrics("net", "1"), options, threads)
            results = await asyncio.gather(*(served.infer(InferenceRequest({"x": X}, ("output_0",))) for _ in range(4)))
            assert all((each["output_0"] == 2).all() for each in results)
            freed = weakref.ref(served._exe)
            await asyncio.sleep(0.01)
            gc.disable()
            try:
                del served
                assert freed() is None
            finally:
                gc.enable()

    asyncio.run(main())
