"""Plans of the real library, without a device: made, saved, loaded, and made anew for another version."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_cudnn import planning
from kernelyard_cudnn.blobs import read_blob
from kernelyard_cudnn.devices import list_shipped_devices, read_properties
from kernelyard_cudnn.frontend import Builder
from kernelyard_cudnn.runtime import lower_graph

from .conftest import compiled, feeds_of, module_of, numbers

pytestmark = pytest.mark.cuda_libs


def block(b: Any) -> Any:
    x = b.input("x", (2, 8, 6, 6), "float16")
    y = b.op("add", b.op("nn.conv2d", x, numbers(8, 8, 3, 3, dtype="float16")), numbers(8, 1, 1, dtype="float16"))
    return b.op("nn.relu", y)


def described(build: Any = block, **options: Any) -> Any:
    (graph,) = compiled(module_of(build), **options).modules[0].graphs.values()
    return lower_graph(graph, {}).graph


@pytest.mark.parametrize("name", list_shipped_devices())
def test_plans_are_made_for_gpus_that_are_not_here(cudnn: ModuleType, name: str) -> None:
    made = planning.plan_for(cudnn, described(), read_properties(name))
    assert len(planning.save_plan(made)) > 100


def test_plans_are_saved_with_the_artifact(cudnn: ModuleType, machine: Any, tmp_path: Any) -> None:
    module = module_of(block)
    exe = compiled(module, plan_for=["a100", "h200"])
    assert_offloaded(exe, "cudnn", "cudnn.conv2d")
    exe.save(tmp_path / "block.kyar")
    loaded = ky.load(tmp_path / "block.kyar")
    (graph,) = loaded.modules[0].graphs.values()
    roles = {role: graph.nodes[entry[0]].digest for role, entry in graph.nodes[-1].inputs if role.startswith("plan")}
    blobs = [read_blob(loaded.modules[0].constants()[digest]) for digest in roles.values()]
    assert [blob.device.capability for blob in blobs] == [(8, 0), (9, 0)]
    assert {blob.version for blob in blobs} == {cudnn.backend_version()}
    assert {blob.graph for blob in blobs} == {repr(lower_graph(graph, {}).graph)}
    made = planning.restore_plan(cudnn, blobs[1].plan, planning.device_arguments(cudnn, blobs[1].device))
    assert made.get_workspace_size() >= 0
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(loaded)(*feeds).numpy()), evaluate(module, feeds)[0])


def test_the_graph_has_the_dims_and_strides_of_the_description(cudnn: ModuleType) -> None:
    """What NumPy reads on the emulator is what cuDNN is told."""
    graph = described()
    where = planning.device_arguments(cudnn, read_properties("h200"))
    made = Builder(cudnn, where).build(graph)
    made.validate()
    told = {
        tensor.uid: (tuple(tensor.dim), tuple(tensor.stride)) for tensor in (*made.get_inputs(), *made.get_outputs())
    }
    expected = {tensor.uid: (tensor.dims, tensor.strides) for tensor in graph.tensors if not tensor.is_virtual}
    assert {uid: told[uid] for uid in expected} == expected


def test_float32_is_not_rounded_unless_it_is_allowed(cudnn: ModuleType) -> None:
    """Engines on tensor cores are left out: another one is chosen, of another name."""

    def float32(b: Any) -> Any:
        return b.op("nn.conv2d", b.input("x", (2, 64, 14, 14)), numbers(64, 64, 3, 3))

    graph = described(float32)
    names = []
    for tf32 in (False, True):
        made = planning.plan_for(cudnn, replace(graph, tf32=tf32), read_properties("h200"))
        names.append(made.get_plan_name_at_index(made._plan_index))
    assert names[0] != names[1]


def test_what_cudnn_says_is_in_the_error(cudnn: ModuleType) -> None:
    def transposed(b: Any) -> Any:
        return b.op("nn.conv2d_transpose", b.input("x", (2, 8, 6, 6)), numbers(8, 8, 3, 3), strides=(2, 2))

    graph = described(transposed)
    (node,) = graph.nodes
    wrong = replace(node.x, dtype="int32"), replace(node.w, dtype="int32"), replace(node.y, dtype="int32")
    with pytest.raises(planning.NoPlanError, match="cuDNN has no plan"):
        planning.plan_for(
            cudnn, replace(graph, nodes=(replace(node, x=wrong[0], w=wrong[1], y=wrong[2]),)), read_properties("h200")
        )
