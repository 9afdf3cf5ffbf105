"""Cuts of the regions of a backend: operators that no pattern of it names, each tried."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from interpreted_backend import InterpretedBackend

from kernelyard.cli.main import main
from kernelyard.dims import symbol
from kernelyard.driver.region_cuts import RegionSizes, region_cuts
from kernelyard.errors import OptionError, UnknownBackendError
from kernelyard.ir import FunctionBuilder, IRModule


def chain(*ops: str, size=4) -> IRModule:
    """Elementwise operators, one after the other, of `size` x 8 numbers: 32 * `size` bytes."""
    b = FunctionBuilder()
    x = b.input("x", (size, 8))
    for op in ops:
        x = b.op(op, x)
    return IRModule({"main": b.function(x)})


def test_each_operator_is_tried_and_the_best_comes_first(install):
    install(InterpretedBackend("zeus", ["exp", "nn.relu"]))
    module = chain("exp", "tanh", "nn.relu", "tanh", "exp", "sin", "nn.relu", "exp")
    found = region_cuts(module, "zeus")
    assert found.sizes == RegionSizes(ops=5, regions=4, handover_bytes=8 * 128)
    assert [(cut.op, cut.count, cut.sizes) for cut in found.cuts] == [
        ("tanh", 2, RegionSizes(7, 2, 4 * 128)),
        ("sin", 1, RegionSizes(6, 3, 6 * 128)),
    ]
    assert found.together == RegionSizes(8, 1, 2 * 128)
    text = found.lines()
    assert text[0] == "zeus takes 5 ops in 4 regions, 1.02kB handed over"
    assert text[2].split() == ["tanh", "2", "2", "2", "512", "2"]


def test_an_operator_that_saves_nothing_is_no_cut(install):
    install(InterpretedBackend("zeus", ["exp"]))
    found = region_cuts(chain("sin", "exp", "exp"), "zeus")  # sin would be handed the same number of bytes
    assert (found.cuts, found.together) == ((), found.sizes)
    assert found.lines() == ["zeus takes 2 ops in 1 regions, 256B handed over; no operator without a pattern cuts them"]


def test_declined_operators_have_reasons_and_are_not_listed(install):
    install(InterpretedBackend("zeus", ["exp", "tanh"], declines={"tanh": "dtype"}))
    assert region_cuts(chain("exp", "tanh", "exp"), "zeus").cuts == ()


def test_symbolic_sizes_count_as_in_reports(install):
    install(InterpretedBackend("zeus", ["exp"]))
    found = region_cuts(chain("exp", "sin", "exp", size=symbol("n")), "zeus")
    assert (found.sizes.handover_bytes, found.together.handover_bytes) == (4 * 64 * 32, 2 * 64 * 32)


def test_backends_that_come_before_keep_their_share(install):
    install(InterpretedBackend("first", ["sin"]))
    install(InterpretedBackend("zeus", ["exp"]))
    assert region_cuts(chain("exp", "sin", "exp"), "zeus", backends=["first", "zeus"]).cuts == ()
    with pytest.raises(OptionError, match="zeus is not asked"):
        region_cuts(chain("exp"), "zeus", backends=["first"])
    with pytest.raises(UnknownBackendError):
        region_cuts(chain("exp"), "hera")


def test_the_command_shows_and_writes_them(install, tmp_path):
    from onnx import TensorProto, helper, save

    install(InterpretedBackend("zeus", ["exp"]))
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in (("Exp", "x", "a"), ("Sin", "a", "b"), ("Exp", "b", "y"))]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    path = str(tmp_path / "m.onnx")
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    def output(*options):
        done = CliRunner().invoke(main, ["explain", path, "--cuts", "zeus", *options], prog_name="kernelyard")
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "zeus takes 2 ops in 2 regions" in output()
    (cut,) = json.loads(output("--json"))["cuts"]
    assert cut == {"op": "sin", "count": 1, "sizes": {"ops": 3, "regions": 1, "handover_bytes": 48}}
    assert CliRunner().invoke(main, ["explain", path, "--cuts", "zeus", "--kernels"]).exit_code == 2
