"""Looking at compiled programs while they run: profiles, instruments, comparing two executables layer by layer."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from small_models import convolution, feeds_of, perceptron

import kernelyard as ky
from kernelyard import errors
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.runtime.execute.virtual_machine import VirtualMachine, VMInstrumentReturnKind
from kernelyard.runtime.profiling.profile import Profile, StepTime
from kernelyard.testing import assert_offloaded, compare_executables


@pytest.fixture(scope="module", params=["native-cpu", "dnnl"])
def executable(request: pytest.FixtureRequest) -> ky.Executable:
    """The convolution net, on our kernels alone or with oneDNN."""
    exe = ky.compile(convolution(), backends=["dnnl"] if request.param == "dnnl" else [])
    if request.param == "dnnl":
        assert_offloaded(exe, "dnnl")
    assert exe.modules[0].kind == request.param
    return exe


# --- profiles ---------------------------------------------------------------------------------------------------------
def test_a_profile_has_every_step(executable: ky.Executable) -> None:
    feeds = feeds_of(convolution())
    profile = executable.profile(feeds, calls=3)
    program = executable.programs["main"]
    assert [(step.label, step.symbol) for step in profile.steps] == [(s.label, s.symbol) for s in program.steps]
    assert all(step.seconds > 0 and step.nbytes > 0 and step.parts for step in profile.steps)
    assert {step.module for step in profile.steps} <= {module.kind for module in executable.modules}
    assert sum(profile.share(step) for step in profile.steps) == pytest.approx(1)
    assert profile.call_seconds > 0
    assert profile.calls == 3
    by_position = executable.profile([feeds["x"]], calls=1)
    assert [step.symbol for step in by_position.steps] == [step.symbol for step in profile.steps]


def test_work_is_the_reports(executable: ky.Executable) -> None:
    profile = executable.profile(feeds_of(convolution()), calls=1)
    known = [step.flops for step in profile.steps if step.flops is not None]
    assert sum(known) == sum(node.flops for node in executable.report.nodes)
    conv = next(step for step in profile.steps if any("conv" in part for part in step.parts))
    assert conv.flops is not None
    assert conv.flops >= 2 * 8 * 3 * 3 * 3 * 10 * 12


def test_regions_of_a_library_are_steps_with_their_patterns() -> None:
    exe = ky.compile(perceptron(), backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.matmul", count=2)
    (step,) = exe.profile(feeds_of(perceptron()), calls=1).steps
    assert step.module == "dnnl"
    assert step.parts.count("dnnl.matmul") == 2
    products = [part for part in step.inside if part.label.startswith("matmul")]
    assert len(products) == 2
    assert all(part.implementation and part.nbytes and part.flops and part.seconds > 0 for part in products)
    assert step.flops is not None
    assert 0.9 * step.flops < sum(part.flops for part in products if part.flops) <= step.flops
    assert sum(part.seconds for part in step.inside) == pytest.approx(step.seconds, rel=0.5)
    table = str(exe.profile(feeds_of(perceptron()), calls=1))
    assert all(part.label in table and part.implementation in table for part in products)
    assert "share" in table.splitlines()[0]


def test_a_profile_says_what_part_of_a_call_it_explains(executable: ky.Executable) -> None:
    profile = executable.profile(feeds_of(convolution()), calls=3)
    assert profile.overhead_seconds > 0
    assert profile.explained == (profile.seconds + profile.overhead_seconds) / profile.call_seconds
    facts = profile.to_json()
    assert facts["explained"] == profile.explained
    assert [len(step["inside"]) for step in facts["steps"]] == [len(step.inside) for step in profile.steps]
    lines = str(profile).splitlines()
    assert any("feeds in, results out" in line for line in lines[1:-1])
    assert lines[-1].endswith(f"explain {100 * profile.explained:.1f} % of a call")


def test_functions_with_branches_are_profiled_too() -> None:
    b = FunctionBuilder()
    x, flag = b.input("x", (64,)), b.input("flag", (), "bool")
    branches = {}
    for name, op in (("then", "exp"), ("otherwise", "tanh")):
        inner = FunctionBuilder()
        branches[name] = inner.function(inner.op(op, inner.input("x", (64,))), attrs={"private": True})
    main = b.function(b.if_(flag, "then", "otherwise", [x], TensorType((64,), "float32")))
    exe = ky.compile(IRModule({"main": main, **branches}), backends=[])
    for value, op in ((True, "exp"), (False, "tanh")):
        profile = exe.profile([np.zeros(64, np.float32), np.array(value)], calls=2)
        assert [step.label for step in profile.steps] == [op]
        assert profile.overhead_seconds == 0


def test_a_long_table_ends_somewhere() -> None:
    step = StepTime("node", "acme", "f", ("a", "a", "b"), 1e-3, 1000, None)
    table = Profile((step,) * 100, 0.2, 1).table.splitlines()
    assert table[1].split()[:4] == ["1", "ms", "0.5", "%"]
    assert "a×2 b" in table[1]
    assert "... and 40 more" in table
    assert table[-3:] == [
        "100 steps 100 ms; a whole call 200 ms; medians of 1 calls",
        "acme 100 ms (100.0 %)",
        "steps explain 50.0 % of a call",
    ]


def test_sizes_that_are_symbols_have_no_known_work() -> None:
    exe = ky.compile(perceptron("n"), backends=[])
    steps = exe.profile(feeds_of(perceptron("n"), 5), calls=1).steps
    assert steps
    assert all(step.flops is None for step in steps)
    assert all(step.nbytes > 0 for step in steps)


def test_an_op_that_others_were_composed_to_has_their_work() -> None:
    """Attention is one kernel, and two products with a softmax between them in the report."""
    b = FunctionBuilder()
    q, k, v = (b.input(name, (1, 2, 96, 32)) for name in "qkv")
    keys = b.op("permute_dims", k, axes=(0, 1, 3, 2), origin="keys")
    scores = b.op("multiply", b.op("matmul", q, keys, origin="scores"), np.float32(0.2), origin="scaled")
    weights = b.op("nn.softmax", scores, axis=3, origin="weights")
    exe = ky.compile(IRModule({"main": b.function(b.op("matmul", weights, v, origin="values"))}), backends=[])
    assert ["nn.attention" in kernel.ops for kernel in exe.report.kernels].count(True) == 1
    assert "nn.attention" not in {node.op for node in exe.report.nodes}
    feeds = [np.ones((1, 2, 96, 32), np.float32)] * 3
    (step,) = (step for step in exe.profile(feeds, calls=1).steps if "nn.attention" in step.parts)
    products = [node for node in exe.report.nodes if node.op == "matmul"]
    assert step.flops is not None
    assert step.flops >= sum(node.flops for node in products) == 2 * (2 * 2 * 96 * 96 * 32)


def test_parts_of_a_region_are_named_by_the_models_nodes() -> None:
    b = FunctionBuilder()
    x = b.input("x", (4, 64))
    for name in ("first", "second"):
        x = b.op("nn.relu", b.op("matmul", x, np.ones((64, 64), np.float32), origin=name), origin=f"{name} relu")
    exe = ky.compile(IRModule({"main": b.function(x)}), backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.matmul", count=2)
    (step,) = exe.profile([np.ones((4, 64), np.float32)], calls=1).steps
    named = [part.node for part in step.inside if part.label.startswith("matmul")]
    assert named == ["first relu", "second relu"]
    assert "second relu" in exe.profile([np.ones((4, 64), np.float32)], calls=1).table


def test_a_trace_can_be_opened(executable: ky.Executable, tmp_path) -> None:
    profile = executable.profile(feeds_of(convolution()), calls=2)
    profile.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    timed = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all({"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"} <= event.keys() for event in timed)
    calls = [event for event in timed if event["cat"] == "call"]
    parts = [event for event in timed if event["cat"].endswith(" part")]
    steps = [event for event in timed if event not in (*calls, *parts)]
    assert len(calls) == 2
    assert len(parts) == 2 * sum(len(step.inside) for step in profile.steps)
    assert [event["name"] for event in steps] == [step.label for step in profile.steps] * 2
    assert [event["cat"] for event in steps] == [step.module for step in profile.steps] * 2
    for before, after in itertools.pairwise(steps):
        assert before["ts"] + before["dur"] <= after["ts"] + 1
    for event in steps:
        assert any(call["ts"] <= event["ts"] <= call["ts"] + call["dur"] for call in calls)
        assert event["args"]["gbytes"] > 0
    rates = [event for event in trace["traceEvents"] if event["ph"] == "C" and event["name"] == "GFLOP/s"]
    assert len(rates) == len(steps) + len(calls)
    threads = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in timed} == threads
    assert json.loads(json.dumps(profile.to_json()))["steps"][0]["symbol"] == profile.steps[0].symbol


def test_nothing_is_not_measured(executable: ky.Executable) -> None:
    with pytest.raises(errors.ExecutionError, match="nothing to measure"):
        executable.profile(feeds_of(convolution()), calls=0)
    with pytest.raises(errors.InputNameError):
        executable.profile({"z": np.ones(3, np.float32)})


# --- instruments ------------------------------------------------------------------------------------------------------
def test_steps_may_be_skipped(executable: ky.Executable) -> None:
    """Every step but the last is left out: then the last one reads whatever lay in memory, and the others never ran."""
    feeds = feeds_of(convolution())
    machine = VirtualMachine(executable)
    steps = executable.programs["main"].steps
    seen: list[tuple[str, bool, bool]] = []

    def instrument(step, name, before_run, ret_value, *args):
        seen.append((name, before_run, ret_value is None))
        assert len(args) == len(step.inputs)
        if before_run:
            return VMInstrumentReturnKind.SKIP_RUN
        for tensor in ret_value:
            tensor.numpy()[...] = 7  # a result that only this can have made
        return VMInstrumentReturnKind.NO_OP

    machine.set_instrument(instrument)
    outputs = machine.run("main", feeds)
    np.testing.assert_array_equal(outputs["y"].numpy(), np.full((1, 8, 10, 12), 7, np.float32))
    assert seen == [(step.symbol, before, before) for step in steps for before in (True, False)]
    machine.set_instrument(None)
    assert not np.array_equal(machine.run("main", feeds)["y"].numpy(), outputs["y"].numpy())


def test_an_instrument_that_raises_is_heard_and_leaves_nothing_behind(executable: ky.Executable) -> None:
    feeds = feeds_of(convolution())
    machine = VirtualMachine(executable, contexts=1)
    expected = machine.run("main", feeds)["y"].numpy()

    def instrument(*args):
        raise LookupError("stop here")

    machine.set_instrument(instrument)
    with pytest.raises(LookupError, match="stop here"):
        machine.run("main", feeds)
    machine.set_instrument(None)
    np.testing.assert_array_equal(machine.run("main", feeds)["y"].numpy(), expected)


def test_saved_functions_are_timed(executable: ky.Executable) -> None:
    feeds = feeds_of(convolution())
    machine = VirtualMachine(executable)
    machine.save_function("main", "again", feeds["x"])
    np.testing.assert_array_equal(machine["again"]().numpy(), machine["main"](feeds["x"]).numpy())
    result = machine.time_evaluator("again", number=2, repeat=3)()
    assert len(result.results) == 3
    assert result.min > 0
    machine.save_function("main", "named", x=feeds["x"])
    np.testing.assert_array_equal(machine["named"]().numpy(), machine["again"]().numpy())


def test_wrong_arguments_are_not_saved(executable: ky.Executable) -> None:
    x = feeds_of(convolution())["x"]
    machine = VirtualMachine(executable)
    with pytest.raises(errors.InputNameError, match="takes 1 inputs"):
        machine.save_function("main", "wrong", x, x)
    with pytest.raises(errors.InputNameError, match="'y' is no input"):
        machine.save_function("main", "wrong", y=x)
    with pytest.raises(errors.InputNameError, match="'x' is no input"):
        machine.save_function("main", "wrong", x, x=x)
    with pytest.raises(errors.InputTypeError):
        machine.save_function("main", "wrong", x.astype(np.float64))
    with pytest.raises(errors.ExecutionError, match="no entry function 'wrong'"):
        machine["wrong"]


def test_arguments_are_saved_by_position_and_by_name() -> None:
    b = FunctionBuilder()
    x, y = b.input("name", (2,)), b.input("saved_name", (2,))
    exe = ky.compile(IRModule({"main": b.function(b.op("subtract", x, y))}), backends=[])
    machine = VirtualMachine(exe)
    five, three = np.float32([5, 5]), np.float32([3, 3])
    machine.save_function("main", "mixed", five, saved_name=three)
    machine.save_function("main", "named", saved_name=five, name=three)
    assert machine["mixed"]().numpy().tolist() == [2, 2]
    assert machine["named"]().numpy().tolist() == [-2, -2]


# --- layer by layer ---------------------------------------------------------------------------------------------------
def test_two_executables_are_compared_layer_by_layer(executable: ky.Executable) -> None:
    reference = ky.compile(convolution(), backends=[])
    steps = compare_executables(executable, reference, feeds_of(convolution()))
    assert steps[-1].label == "output 'y'"
    assert "node 'mul' (Mul)" in {step.label for step in steps}
    assert all(step.error < 1e-5 for step in steps)


def test_the_layer_that_differs_is_found() -> None:
    """The second layer's bias is wrong in one of them: what comes before agrees, what comes after does not."""
    right, wrong = perceptron(), perceptron()
    (bias,) = (tensor for tensor in wrong.graph.initializer if tensor.name == "b1")
    bias.raw_data = np.arange(8, dtype=np.float32).tobytes()
    exe, reference = (ky.compile(model, backends=[]) for model in (wrong, right))
    errors_by_label = {step.label: step.error for step in compare_executables(exe, reference, feeds_of(right))}
    assert errors_by_label["node 'relu' (Relu)"] == 0
    assert errors_by_label["output 'y'"] > 0
    first = next(label for label, error in errors_by_label.items() if error > 0)
    assert first in ("node 'dense_1' (Gemm)", "node 'softmax' (Softmax)")


SCENARIOS = {
    "vm_instrument: conv2d_cpu": test_steps_may_be_skipped,
    "vm_instrument: lib_comparator": test_two_executables_are_compared_layer_by_layer,
    "vm_instrument: lib_comparator, a layer that differs": test_the_layer_that_differs_is_found,
    "vm_build: time_evaluator": test_saved_functions_are_timed,
    "vm_build: save_function": test_wrong_arguments_are_not_saved,
    "vm_build: save_function kwargs": test_arguments_are_saved_by_position_and_by_name,
    "vm_build: save_function time_evaluator": test_saved_functions_are_timed,
}
