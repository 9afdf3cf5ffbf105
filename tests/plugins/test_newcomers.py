"""An installation never changes a default placement: what is of unknown speed displaces nothing, whatever its priority."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_distribution import GOOD_PLUGIN, MANIFEST, install

# Libraries that state no cost; those that are installed here take part.
RIVALS = [name for name in ("onnxruntime", "openblas", "openvino") if find_spec(f"kernelyard_{name}")]

# Takes every operator there is, and would be asked before all others.
GREEDY = GOOD_PLUGIN.replace(
    "return []",
    "from kernelyard.plugins.api import FusionPattern, is_op\n"
    "            from kernelyard.ir import all_ops\n"
    "            return [FusionPattern(f'{name}.{op.name}', is_op(op.name)(varargs=True)) for op in all_ops()]",
)

PLACE = """
import json
import numpy as np
import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule

def weights(*shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)

def perceptron(b):
    x = b.input("x", (symbol("n"), 64))
    for _ in range(2):
        x = b.op("nn.relu", b.op("add", b.op("matmul", x, weights(64, 64)), weights(64)))
    return b.op("nn.softmax", x, axis=1)

def convolutional(b):
    x = b.input("x", (1, 3, 16, 16))
    x = b.op("nn.hard_swish", b.op("nn.conv2d", x, weights(8, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
    x = b.op("nn.conv2d", x, weights(8, 1, 3, 3), groups=8, padding=(1, 1, 1, 1))
    return b.op("mean", b.op("nn.max_pool2d", x, pool_size=(2, 2), strides=(2, 2)), axes=(2, 3), keepdims=False)

def attention(b):
    x = b.input("x", (2, symbol("n"), 4, 8))
    y = b.op("nn.attention", x, x, x)
    y = b.op("nn.layer_norm", y, weights(8), weights(8), axes=(3,))
    return b.op("add", x, b.op("nn.gelu", y))

def movement(b):
    x = b.input("x", (4, 6))
    y = b.op("concat", b.op("permute_dims", x, axes=(1, 0)), weights(6, 4), axis=0)
    return b.op("cumsum", b.op("exp", y), axis=0)

placements = {}
for model in (perceptron, convolutional, attention, movement):
    b = FunctionBuilder()
    report = ky.explain(IRModule({"main": b.function(model(b))}))
    placements[model.__name__] = [[each.backend, each.op, each.count] for each in report.placed]
    codes = sorted({(each.backend, each.code) for each in report.declined})
    placements[model.__name__ + " declined"] = codes
print(json.dumps(placements))
"""


def placed(plugins: list[str], site: Path | None = None) -> dict[str, list[list[object]]]:
    """Where the default places the models, in a process that has these plugins."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    path = os.pathsep.join(filter(None, [str(site) if site else "", kept.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "KERNELYARD_PLUGINS": ",".join(plugins), "KERNELYARD_PLUGIN_TRIAL": "0"}
    command = [sys.executable, "-c", PLACE]
    done = subprocess.run(command, env={**kept, **own}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OURS = ["dnnl", "native-cpu"]


@pytest.fixture(scope="module")
def without() -> dict[str, list[list[object]]]:
    """The placements without newcomers."""
    return {name: rows for name, rows in placed(OURS).items() if not name.endswith("declined")}


def check(found: dict[str, list[list[object]]], without: dict[str, list[list[object]]], names: list[str]) -> None:
    assert {name: found[name] for name in without} == without
    said = {tuple(row) for name, rows in found.items() if name.endswith("declined") for row in rows}
    assert {(name, "unmeasured") for name in names} <= said  # each was asked, and the report says why it got nothing


def test_the_libraries_of_this_repository(without: dict[str, list[list[object]]]) -> None:
    assert without["perceptron"]
    check(placed([*OURS, *RIVALS]), without, [name for name in RIVALS if name != "openblas"])


def test_a_priority_of_a_million(without: dict[str, list[list[object]]], tmp_path: Path) -> None:
    install(tmp_path, "greedy", plugin=GREEDY, manifest=MANIFEST + "priority = 1000000\n")
    check(placed([*OURS, "greedy"], tmp_path), without, ["greedy"])
