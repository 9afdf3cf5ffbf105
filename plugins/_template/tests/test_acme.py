import numpy as np

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.plugins.api import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_conforms, assert_declined, assert_offloaded, evaluate, op_cases


def network(dtype):
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 4), dtype)
    for slope in (0.5, -0.5):
        x = b.op("nn.relu", b.op("add", b.op("matmul", x, np.full((4, 4), slope, dtype)), np.arange(4, dtype=dtype)))
    return IRModule({"main": b.function(x)})


def test_layers_are_offloaded_and_survive_saving(tmp_path):
    module, x = network("float32"), np.float32([[1, 2, 3, 4], [-1, 0, 1, 2]])
    exe = ky.compile(module, backends=["acme"])
    assert_offloaded(exe, "acme", "acme.linear", count=2)
    exe.save(tmp_path / "network.kyar")
    assert_allclose(ky.load(tmp_path / "network.kyar")(x), evaluate(module, [x])[0])


def test_other_dtypes_are_declined():
    assert_declined(ky.explain(network("float64"), backends=["acme"]), "acme", "dtype")


def test_every_sample_of_matmul():
    for case in op_cases(["matmul"]):
        assert_conforms(case, lambda module, inputs: [ky.compile(module, backends=["acme"])(*inputs)])
