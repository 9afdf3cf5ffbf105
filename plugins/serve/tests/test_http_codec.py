"""Bodies of requests, good and bad."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard import dtypes
from kernelyard.errors import KernelyardError
from kernelyard.runtime.api import TensorInfo
from kernelyard_serve.datatypes import DATATYPES
from kernelyard_serve.http_codec import decode_request, encode_answer
from kernelyard_serve.inference import InferenceRequest

ALL = [name for name in DATATYPES if not name.startswith("float8")]


def decode(tensor: dict[str, Any], rest: bytes = b"", dtype: str = "float32", **members: Any) -> InferenceRequest:
    head = json.dumps({"inputs": [{"name": "x", **tensor}], **members}).encode()
    infos = {"x": TensorInfo("x", ("n", 2), dtype)}
    return decode_request(head + rest, str(len(head)) if rest else None, infos, ("y",))


@pytest.mark.parametrize("dtype", ALL)
def test_every_datatype_as_json_and_as_bytes(dtype: str) -> None:
    x = np.array([[0, 1], [1, 0]], dtypes.to_numpy(dtype))
    shared = {"shape": [2, 2], "datatype": DATATYPES[dtype]}
    data = x.astype(bool if dtype == "bool" else np.float64 if dtypes.is_float(dtype) else np.int64).ravel().tolist()
    for request in (
        decode({**shared, "data": data}, dtype=dtype),
        decode({**shared, "parameters": {"binary_data_size": x.nbytes}}, x.tobytes(), dtype),
    ):
        assert request.feeds["x"].dtype == x.dtype
        np.testing.assert_array_equal(request.feeds["x"], x)
    for binary in (frozenset({"y"}), frozenset[str]()):
        body, length = encode_answer("net", "1", request._replace(binary=binary), {"y": x})
        (output,) = json.loads(body[:length])["outputs"]
        assert (output["datatype"], output["shape"]) == (DATATYPES[dtype], [2, 2])
        assert (body[length:] == x.tobytes()) if binary else (output["data"] == data)


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        *(("uint8", [0, 256]), ("int8", [-129, 0]), ("uint64", [-1, 0]), ("int64", [1 << 63, 0]), ("int32", [0.5, 1])),
        *(("bool", [0, 1]), ("float32", [True, False]), ("float32", [[1], [2, 3]]), ("float32", "12"), ("float32", {})),
        *(("float32", [1e39, 0]), ("float16", [1, -7e4]), ("bfloat16", [1e39, 0]), ("float8_e5m2", [1e6, 0])),
    ],
)
def test_elements_that_the_dtype_has_not(dtype: str, data: Any) -> None:
    with pytest.raises(KernelyardError) as caught:
        decode({"shape": [1, 2], "datatype": DATATYPES[dtype], "data": data}, dtype=dtype)
    assert caught.value.code == "KY802"


def test_bytes_have_to_fit() -> None:
    shared = {"shape": [1, 2], "datatype": "FP32"}
    for size, rest in ((8, b"1234567"), (7, b"1234567"), (8, b"123456789"), (-1, b"12345678"), (True, b"1")):
        with pytest.raises(KernelyardError, match="KY802"):
            decode({**shared, "parameters": {"binary_data_size": size}}, rest)
    with pytest.raises(KernelyardError, match="KY802"):
        decode({"shape": [1, 2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}}, b"\x00\x02", "bool")


def test_infinite_results_are_not_json() -> None:
    request = decode({"shape": [1, 2], "datatype": "FP32", "data": [1, 2]})
    with pytest.raises(KernelyardError, match="KY809"):
        encode_answer("net", "1", request, {"y": np.array([np.inf], np.float32)})
    encode_answer("net", "1", request._replace(binary=frozenset({"y"})), {"y": np.array([np.inf], np.float32)})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "shape"]), inner, max_size=2),
    max_leaves=8,
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "datatype": st.sampled_from(["FP32", "INT8"]) | JSON,
        "data": st.lists(st.floats(width=32, allow_nan=False), max_size=6) | JSON,
        "parameters": st.dictionaries(st.just("binary_data_size"), st.integers(-1, 20) | JSON) | JSON,
    },
)


@given(
    st.dictionaries(st.sampled_from(["inputs", "id", "outputs", "parameters"]), st.lists(TENSOR, max_size=2) | JSON),
    st.binary(max_size=20),
    st.integers(-3, 3),
    st.sampled_from(["float32", "int8", "bool", "bfloat16"]),
)
def test_nothing_that_is_sent_breaks_the_server(body: dict[str, Any], rest: bytes, cut: int, dtype: str) -> None:
    head = json.dumps(body).encode()
    infos = {"x": TensorInfo("x", ("n", 2), dtype)}
    try:
        request = decode_request(head + rest, str(len(head) + cut), infos, ("y",))
    except KernelyardError:
        return
    assert request.feeds["x"].dtype == dtypes.to_numpy(dtype)


@given(st.binary(max_size=60), st.none() | st.text(max_size=5))
def test_no_bytes_break_the_server(body: bytes, length: str | None) -> None:
    with pytest.raises(KernelyardError):
        decode_request(body, length, {"x": TensorInfo("x", (2,), "float32")}, ("y",))


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(KernelyardError):
        decode_request(b"[" * 100_000, None, {"x": TensorInfo("x", (2,), "float32")}, ("y",))
    deep = b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":' + b"[" * 5000 + b"]" * 5000 + b"}]}"
    with pytest.raises(KernelyardError):
        decode_request(deep, None, {"x": TensorInfo("x", (2,), "float32")}, ("y",))
