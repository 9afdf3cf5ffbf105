"""One row made of a whole image, such as where to look, stays among the convolutions that it stands between."""

from __future__ import annotations

import numpy as np

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.testing import evaluate, relative_error

CHANNELS, SIZE = 32, 12


def context_block(b, x):
    """A sum of all places by how much each is looked at, which the image then gets more of (Cao et al. 2019)."""
    places = SIZE * SIZE
    looked_at = b.op("reshape", b.op("nn.conv2d", x, floats(1, CHANNELS, 1, 1)), shape=(1, 1, places, 1))
    share = b.op("reshape", b.op("nn.softmax", b.op("reshape", looked_at, shape=(1, 1, places)), axis=2), shape=(1, 1, places, 1))  # fmt: skip
    image = b.op("reshape", x, shape=(1, 1, CHANNELS, places))
    context = b.op("reshape", b.op("matmul", image, share), shape=(1, CHANNELS, 1, 1))
    return b.op("add", x, b.op("nn.conv2d", context, floats(CHANNELS, CHANNELS, 1, 1, seed=3)))


def test_a_context_block_is_one_region():
    b = FunctionBuilder()
    x = b.input("x", (1, CHANNELS, SIZE, SIZE))
    first = b.op("nn.relu", b.op("nn.conv2d", x, floats(CHANNELS, CHANNELS, 3, 3, seed=1), padding=(1, 1, 1, 1)))
    last = b.op("nn.conv2d", context_block(b, first), floats(CHANNELS, CHANNELS, 3, 3, seed=2), padding=(1, 1, 1, 1))
    module = IRModule({"main": b.function(last)})
    exe = ky.compile(module)
    assert {node.backend for node in exe.report.nodes} <= {"dnnl", "view"}, str(exe.report)
    assert len({region.function for region in exe.report.regions}) == 1
    given = np.random.default_rng(0).standard_normal((1, CHANNELS, SIZE, SIZE), dtype=np.float32)
    assert relative_error(exe(given).numpy(), evaluate(module, [given])[0]) < 1e-5


def test_rows_of_sequences_are_left_to_generated_kernels():
    b = FunctionBuilder()
    x = b.input("x", (1, 16, 64))
    made = b.op("nn.layer_norm", b.op("matmul", x, floats(64, 64)), floats(64), floats(64, seed=1), axes=(2,))
    exe = ky.compile(IRModule({"main": b.function(made)}))
    assert {node.backend for node in exe.report.nodes} == {"native-cpu"}
