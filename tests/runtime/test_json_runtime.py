"""JSON runtimes: graphs are read like foreign data, functions follow the destination-passing convention."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from kernelyard import errors
from kernelyard.runtime.device.tensor import Tensor
from kernelyard.runtime.lru import LRU
from kernelyard.runtime.modules.json_runtime import JSONGraph


@pytest.fixture
def module(executable):
    return executable.modules[0]


@pytest.fixture
def blob(module):
    return json.loads(module.save_to_bytes())


def test_a_module_comes_back_from_its_bytes(module, acme):
    data = module.save_to_bytes()
    again = acme.AcmeRuntime.load_from_bytes(data, module.constants())
    assert again.graphs == module.graphs
    assert again.save_to_bytes() == data
    assert again.symbols() == ("acme_0", "acme_1")


def test_inspect_shows_the_graphs(module):
    text = module.inspect()
    assert "acme_0(x: (n, 4) float32)" in text
    assert "%3 = scale(x=%2.0) {factor=2.0} -> (n, 3) float32" in text


def test_nodes_have_roles(module):
    node = module.graphs["acme_1"].nodes[2]
    assert (node.input("a"), node.input("b"), node.input("bias")) == ((0, 0), (1, 0), None)


def test_a_function_writes_its_outputs(module, weight):
    function = module.get_function("acme_0")
    for rows in (2, 3, 2):
        x, y = np.full((rows, 4), rows, np.float32), np.empty((rows, 3), np.float32)
        function(x, Tensor(y))
        np.testing.assert_array_equal(y, (x @ weight) * np.float32(2))


def test_a_function_speaks_the_foreign_abi(module, weight):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    x, y = np.ones((2, 4), np.float32), np.empty((2, 3), np.float32)
    tvm_ffi.convert(module.get_function("acme_0"))(x, y)
    np.testing.assert_array_equal(y, (x @ weight) * np.float32(2))


def test_wrong_arguments_of_a_function_are_refused(module):
    function = module.get_function("acme_0")
    x, y = np.ones((2, 4), np.float32), np.empty((2, 3), np.float32)
    with pytest.raises(errors.InputShapeError, match="inputs and then outputs"):
        function(x)
    with pytest.raises(errors.InputShapeError, match="axis 0"):
        function(x, np.empty((3, 3), np.float32))
    with pytest.raises(errors.InputTypeError, match="wrong dtype"):
        function(x, y.astype(np.float64))
    with pytest.raises(errors.ExecutionError, match="no function 'acme_9'"):
        module.get_function("acme_9")


def test_a_kernel_that_fails_is_named(acme, weight):
    from kernelyard.runtime.abi.spec import TensorSpec
    from kernelyard.runtime.modules.json_runtime import JSONNode

    x = TensorSpec((2,), "float32", "x")
    nodes = (JSONNode("input", (x,), index=0), JSONNode("kernel", (x,), "fail", (("x", (0, 0)),)))
    module = acme.AcmeRuntime([JSONGraph("broken", (x,), nodes, ((1, 0),))], {})
    with pytest.raises(errors.ExecutionError) as caught:
        module.get_function("broken")(np.ones(2, np.float32), np.ones(2, np.float32))
    assert (caught.value.where, caught.value.found) == ("broken, run by acme of acme-runtime 1.2", "status 7")


MALFORMED = [
    (("nodes", 0, "index"), 5),
    (("nodes", 0, "kind"), "python"),
    (("nodes", 1, "digest"), "short"),
    (("nodes", 1, "digest"), "f" * 64),
    (("nodes", 1, "shape"), [3, 4]),
    (("nodes", 1, "dtype"), "float64"),
    (("nodes", 2, "inputs", 0, "value"), [2, 0]),
    (("nodes", 2, "inputs", 0, "value"), [0, 1]),
    (("nodes", 2, "inputs", 0, "value"), [0]),
    (("nodes", 2, "inputs", 0, "value"), [-1, 0]),
    (("nodes", 2, "inputs", 0, "role"), 3),
    (("nodes", 2, "outputs", 0, "shape"), ["n +", 3]),
    (("nodes", 2, "outputs", 0, "shape"), ["*".join(["(a + b + c + d)"] * 200), 3]),
    (("nodes", 2, "outputs", 0, "shape"), ["n // 0", 3]),
    (("nodes", 2, "outputs", 0, "shape"), ["(" * 2000, 3]),
    (("nodes", 2, "outputs", 0, "shape"), [1 << 60, 3]),
    (("nodes", 2, "outputs", 0, "shape"), [1] * 40),
    (("nodes", 3, "attrs"), []),
    (("nodes", 3, "attrs"), {"a": [[[[[[[[[[1]]]]]]]]]]}),
    (("outputs", 0), [9, 0]),
    (("outputs",), {}),
    (("inputs",), None),
    (("symbol",), ["x"]),
    (("bounds",), [1, 8]),
    (("bounds",), {"n": [8, 1]}),
    (("bounds",), {"n": 8}),
    (("schema",), "1"),
    (("schema",), 0),
]


@pytest.mark.parametrize(("path", "value"), MALFORMED)
def test_malformed_graphs_are_refused(module, acme, blob, path, value):
    changed = copy.deepcopy(blob)
    place = changed["graphs"][0]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(errors.ArtifactCorruptedError) as caught:
        acme.AcmeRuntime.load_from_bytes(json.dumps(changed).encode(), module.constants())
    assert caught.value.where


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b'{"schema":1}', b'{"schema":1,"graphs":[1]}', b"[" * 100000]
)
def test_blobs_that_are_no_modules_are_refused(acme, data):
    with pytest.raises(errors.ArtifactCorruptedError):
        acme.AcmeRuntime.load_from_bytes(data, {})


def test_a_newer_schema_is_refused(module, acme, blob):
    with pytest.raises(errors.ArtifactVersionError, match="newer schema"):
        acme.AcmeRuntime.load_from_bytes(json.dumps({**blob, "schema": 2}).encode(), module.constants())


def test_two_graphs_of_one_name_are_refused(module, acme):
    graph = module.graphs["acme_0"]
    with pytest.raises(errors.ArtifactCorruptedError, match="malformed"):
        acme.AcmeRuntime([graph, graph], module.constants())


def test_an_lru_forgets_the_oldest():
    made = []
    squares = LRU(2)
    for n in (1, 2, 1, 3, 1, 2):
        assert squares.get_or_make(n, lambda n=n: made.append(n) or n * n) == n * n
    assert made == [1, 2, 3, 2]
    assert list(squares) == [1, 2]
    assert len(squares) == 2
