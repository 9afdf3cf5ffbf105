"""KServe's client, over HTTP and over gRPC; it brings packages of 250 MB: `make test-kserve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serve_models import save, scale
from served import Server, serving

pytestmark = [pytest.mark.kserve, pytest.mark.filterwarnings("ignore")]  # theirs

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
RELU = np.maximum(2 * X, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(str(save(scale(2), tmp_path_factory.mktemp("models") / "net.kyar")), "--grpc-port", "0") as each:
        yield each


def request(*, binary: bool) -> Any:
    from kserve import InferInput, InferRequest

    tensor = InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return InferRequest("net", [tensor])


@pytest.mark.parametrize("binary", [False, True])
def test_over_http(server: Server, binary: bool) -> None:
    from kserve import InferenceRESTClient, RESTConfig

    url = f"http://127.0.0.1:{server.ports['http']}"

    async def ask() -> Any:
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        try:
            assert await client.is_server_live(url)
            assert await client.is_server_ready(url)
            assert await client.is_model_ready(url, "net")
            return await client.infer(url, request(binary=binary), model_name="net")
        finally:
            await client.close()

    answer = asyncio.run(ask())
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), RELU)


def test_over_grpc(server: Server) -> None:
    from kserve import InferenceGRPCClient

    async def ask() -> Any:
        async with InferenceGRPCClient(f"127.0.0.1:{server.ports['grpc']}") as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("net")
            return await client.infer(request(binary=True))

    answer = asyncio.run(ask())
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), RELU)
