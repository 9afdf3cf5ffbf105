"""Branches and loops that data decides: models compiled, run, and compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.ir import Call, Constant
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.runtime.program.flatten_control_flow import flatten_control_flow

from .conftest import function_of

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs or ["y"], **attrs)


def info(name: str, kind: int = FLOAT, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "inner", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    whole = helper.make_graph(nodes, "main", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], initializers)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def agree(model: onnx.ModelProto, *feeds: dict[str, np.ndarray], backends: list[str] | None = None) -> ky.Executable:
    """Compile once, and compare every feed with onnxruntime, twice: the second call is one of native code alone."""
    exe = ky.compile(model, backends=backends or [])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in (*feeds, *feeds):
        found = exe.run(feed)
        for output, expected in zip(exe.outputs, session.run(None, feed), strict=True):
            result = np.asarray(found[output.name])
            assert result.shape == np.shape(expected)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    return exe


def rng(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def sign_of_sum() -> list[onnx.NodeProto]:
    return [node("ReduceSum", ["x"], ["total"], keepdims=0), node("Greater", ["total", "zero"], ["positive"])]


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_a_branch_is_taken_by_data(backends: list[str]) -> None:
    nodes = [
        *sign_of_sum(),
        node("Relu", ["x"], ["r"]),
        node(
            "If",
            ["positive"],
            ["a", "b"],
            then_branch=graph([node("Exp", ["r"], ["t"]), node("MatMul", ["t", "w"], ["u"])], [], ["t", "u"]),
            else_branch=graph([node("MatMul", ["x", "w"], ["u"]), node("Tanh", ["u"], ["t"])], [], ["t", "u"]),
        ),
        node("Add", ["a", "b"]),
    ]
    weights = {"zero": np.array(0, np.float32), "w": rng(4, 4)}
    exe = agree(
        model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"], weights),
        {"x": np.abs(rng(3, 4))},
        {"x": -np.abs(rng(5, 4))},
        backends=backends,
    )
    assert [each.op for each in exe.report.placed if each.backend == "vm"] == ["if"]


def test_branches_may_give_different_sizes() -> None:
    nodes = [
        *sign_of_sum(),
        node(
            "If",
            ["positive"],
            ["a"],
            then_branch=graph([node("Concat", ["x", "x"], ["t"], axis=0)], [], ["t"]),
            else_branch=graph([node("Slice", ["x", "none", "none"], ["t"])], [], ["t"]),
        ),
        node("Shape", ["a"], ["s"]),
        node("Exp", ["a"], ["y"]),
    ]
    weights = {"zero": np.array(0, np.float32), "none": np.array([0])}
    model = model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y", "s"], weights)
    agree(model, {"x": np.abs(rng(3, 4))}, {"x": -np.abs(rng(3, 4))}, {"x": np.abs(rng(1, 4))})


def test_branches_inside_branches() -> None:
    inner = graph(
        [
            node("ReduceMax", ["x"], ["most"], keepdims=0),
            node("Greater", ["most", "one"], ["large"]),
            node(
                "If",
                ["large"],
                ["t"],
                then_branch=graph([node("Neg", ["x"], ["v"])], [], ["v"]),
                else_branch=graph([node("Exp", ["x"], ["v"])], [], ["v"]),
            ),
        ],
        [],
        ["t"],
    )
    nodes = [
        *sign_of_sum(),
        node("If", ["positive"], then_branch=inner, else_branch=graph([node("Abs", ["x"], ["t"])], [], ["t"])),
    ]
    weights = {"zero": np.array(0, np.float32), "one": np.array(1, np.float32)}
    model = model_of(nodes, [info("x", FLOAT, [2])], ["y"], weights)
    agree(model, *({"x": np.array(x, np.float32)} for x in ([2, 3], [0.5, 0.2], [-1, -2])))


def construct(*items: str) -> onnx.NodeProto:
    return node("SequenceConstruct", list(items), ["t"])


DIFFERING = {
    "ranks": ([node("Identity", ["x"], ["t"])], [node("ReduceSum", ["x", "i0"], ["t"], keepdims=0)]),
    "lengths of sequences": ([construct("x", "x")], [construct("row")]),
    "an optional that holds nothing": (
        [node("Optional", ["x"], ["t"])],
        [node("Optional", [], ["t"], type=helper.make_tensor_type_proto(FLOAT, ["n", 4]))],
    ),
}
FOLLOWING = {
    "ranks": [node("Exp", ["z"], ["e"]), node("ReduceSum", ["e"], ["r"], keepdims=0)],
    "lengths of sequences": [
        node("ConcatFromSequence", ["z"], ["e"], axis=0),
        node("ReduceSum", ["e", "i0"], ["r"], keepdims=0),
    ],
    "an optional that holds nothing": [node("OptionalHasElement", ["z"], ["has"]), node("Cast", ["has"], ["r"], to=1)],
}


@pytest.mark.parametrize("kind", DIFFERING)
def test_what_follows_branches_of_different_types_is_converted_in_both(kind: str) -> None:
    then, otherwise = DIFFERING[kind]
    nodes = [
        *sign_of_sum(),
        node("ReduceMean", ["x", "i0"], ["row"]),
        node(
            "If",
            ["positive"],
            ["z"],
            then_branch=graph(then, [], ["t"]),
            else_branch=graph(otherwise, [], ["t"]),
        ),
        node("Exp", ["row"], ["independent"]),
        *FOLLOWING[kind],
        node("Add", ["r", "independent"], ["y"]),
    ]
    weights = {"zero": np.array(0, np.float32), "i0": np.array([0])}
    model = model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y", "row"], weights)
    exe = agree(model, {"x": np.abs(rng(3, 4))}, {"x": -np.abs(rng(5, 4))})
    assert [each.op for each in exe.report.placed if each.backend == "vm"] == ["if"]


def test_branches_of_different_ranks_one_after_another() -> None:
    """The second decides over what the first one returns; both end where their results are reshaped."""

    def chosen(of: str, result: str) -> list[onnx.NodeProto]:
        unsqueezed = graph([node("Unsqueeze", [of, "i0"], ["t"])], [], ["t"])
        same = graph([node("Exp", [of], ["t"])], [], ["t"])
        return [
            node("ReduceMax", [of], [f"most_{result}"], keepdims=0),
            node("Greater", [f"most_{result}", "limit"], [f"large_{result}"]),
            node("If", [f"large_{result}"], [result], then_branch=unsqueezed, else_branch=same),
            node("Sub", [result, "limit"], [f"{result}_less"]),
        ]

    nodes = [*chosen("x", "a"), *chosen("a_less", "b"), node("Reshape", ["b_less", "shape"], ["r"]), node("Neg", ["r"])]
    weights = {"limit": np.array(1, np.float32), "i0": np.array([0]), "shape": np.array([-1, 2])}
    model = model_of(nodes, [info("x", FLOAT, ["n", 2])], ["y"], weights)
    agree(model, *({"x": np.full((n, 2), value, np.float32)} for n in (1, 3) for value in (0.5, 0.9, 1.5, 5)))


def loop_model(collect: bool = True, limit: bool = True) -> onnx.ModelProto:
    """Doubles v until its sum exceeds 100 or the turns are over; collects the sums and v itself."""
    body = graph(
        [
            node("Add", ["v", "v"], ["v2"]),
            node("ReduceSum", ["v2"], ["total"], keepdims=0),
            node("Less", ["total", "most"], ["go2"]),
            node("Cast", ["i"], ["fi"], to=FLOAT),
            node("Mul", ["v2", "fi"], ["scaled"]),
        ],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None)],
        ["go2", "v2", *(["total", "scaled"] if collect else [])],
    )
    outputs = ["last", *(["sums", "all"] if collect else [])]
    nodes = [node("Loop", ["turns" if limit else "", "", "x"], outputs, body=body)]
    inputs = [info("x", FLOAT, ["n"]), *([info("turns", INT64, [])] if limit else [])]
    return model_of(nodes, inputs, outputs, {"most": np.array(100, np.float32)})


@pytest.mark.parametrize("turns", [0, 1, 4, 50])
def test_a_loop_ends_by_its_turns_or_its_condition(turns: int) -> None:
    x = np.array([1, 2, 0.5], np.float32)
    model = loop_model()
    if turns:
        agree(model, {"x": x, "turns": np.array(turns)}, {"x": x[:1], "turns": np.array(turns)})
        return
    found = ky.compile(model, backends=[]).run({"x": x, "turns": np.array(0)})
    assert {name: np.asarray(value).shape for name, value in found.items()} == {
        "last": (3,),
        "sums": (0,),
        "all": (0, 3),
    }


def test_a_loop_without_a_limit() -> None:
    agree(
        loop_model(collect=False, limit=False), {"x": np.array([1, 2], np.float32)}, {"x": np.array([30], np.float32)}
    )


def test_a_loop_goes_on_where_data_decides_after_the_last_unrolled_turn() -> None:
    inputs = [info("turn", INT64, []), info("more", BOOL, []), info("v", FLOAT, [2])]
    body = graph(
        [
            node("Add", ["v", "x"], ["v_next"]),
            node("Less", ["turn", "last"], ["early"]),
            node(
                "If",
                ["early"],
                ["again"],
                then_branch=graph([node("Identity", ["early"], ["t"])], [], ["t"]),
                else_branch=graph(
                    [node("ReduceSum", ["v_next"], ["s"], keepdims=0), node("Less", ["s", "most"], ["t"])], [], ["t"]
                ),
            ),
        ],
        inputs,
        ["again", "v_next"],
    )
    weights = {"last": np.array(63), "most": np.array(300, np.float32)}
    model = model_of([node("Loop", ["", "", "x"], body=body)], [info("x", FLOAT, [2])], ["y"], weights)
    agree(model, {"x": np.array([1, 1], np.float32)}, {"x": np.array([9, 9], np.float32)})


def test_what_a_loop_carries_may_grow() -> None:
    body = graph(
        [node("Concat", ["v", "x"], ["v2"], axis=0), node("Identity", ["go"], ["go2"])],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None)],
        ["go2", "v2"],
    )
    nodes = [
        node("Loop", ["turns", "", "x"], ["grown"], body=body),
        node("ReduceSum", ["grown", "first"], ["y"]),
        node("Shape", ["grown"], ["s"]),
    ]
    model = model_of(
        nodes, [info("x", FLOAT, ["n", 2]), info("turns", INT64, [])], ["y", "s"], {"first": np.array([0])}
    )
    agree(model, *({"x": rng(n, 2), "turns": np.array(turns)} for n, turns in ((2, 3), (1, 0), (4, 70))))


@pytest.mark.parametrize("ends_early", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_placeholder_that_the_first_iteration_replaces(is_read: bool, ends_early: bool) -> None:
    """Exporters start a variable that has no value yet as a scalar."""
    body = graph(
        [
            node("Add", ["v", "step"], ["v2"]),
            node("Add", ["v2", "held"] if is_read else ["v2", "step"], ["held2"]),
            node("Cast", ["i"], ["number"], to=FLOAT),
            node("Add", ["held2", "number"], ["item"]),
            *(
                [node("ReduceMax", ["v2"], ["top"], keepdims=0), node("Less", ["top", "most"], ["go2"])]
                if ends_early
                else [node("Identity", ["go"], ["go2"])]
            ),
        ],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None), info("held", FLOAT, None)],
        ["go2", "v2", "held2", "item"],
    )
    weights = {
        "turns": np.array(100),
        "placeholder": np.array(0, np.float32),
        "step": np.array(1, np.float32),
        "most": np.array(7, np.float32),
    }
    outputs = ["last", "held_last", "items"]
    nodes = [node("Loop", ["turns", "", "x", "placeholder"], outputs, body=body)]
    model = model_of(nodes, [info("x", FLOAT, ["n", 2])], outputs, weights)
    agree(model, {"x": rng(3, 2)}, {"x": rng(1, 2) + 9})


def test_loops_inside_loops() -> None:
    inner = graph(
        [node("Add", ["w", "v"], ["w2"]), node("Identity", ["g"], ["g2"])],
        [info("j", INT64, []), info("g", BOOL, []), info("w", FLOAT, None)],
        ["g2", "w2"],
    )
    body = graph(
        [
            node("Add", ["i", "one"], ["more"]),
            node("Loop", ["more", "", "v"], ["v2"], body=inner),
            node("Identity", ["go"], ["go2"]),
        ],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None)],
        ["go2", "v2"],
    )
    nodes = [node("Loop", ["turns", "", "x"], ["y"], body=body)]
    model = model_of(nodes, [info("x", FLOAT, [2]), info("turns", INT64, [])], ["y"], {"one": np.array(1)})
    agree(model, {"x": rng(2), "turns": np.array(4)})


def is_one_program(exe: ky.Executable) -> bool:
    """Tell if the iterations of its loops are native code: what they collect has a size that inputs tell."""
    return flatten_control_flow(exe.vm_functions["main"], exe.vm_functions) is not None


@pytest.mark.parametrize("ends_early", [False, True])
def test_sizes_may_tell_the_number_of_iterations(ends_early: bool) -> None:
    go = node("Less", ["i", "many"], ["go2"]) if ends_early else node("Identity", ["go"], ["go2"])
    body = graph(
        [go, node("Add", ["v", "v"], ["v2"]), node("Tanh", ["v2"], ["item"])],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None)],
        ["go2", "v2", "item"],
    )
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "axis"], ["turns"]),
        node("ReduceSum", ["x", "axes"], ["start"], keepdims=0),
        node("Loop", ["turns", "", "start"], ["last", "items"], body=body),
    ]
    weights = {"axis": np.array(0), "axes": np.array([0]), "many": np.array(100)}
    model = model_of(nodes, [info("x", FLOAT, ["n", 3])], ["last", "items"], weights)
    exe = agree(model, *({"x": rng(n, 3) / 100} for n in (1, 2, 7)))
    assert is_one_program(exe) is not ends_early


def test_a_long_loop_stays_a_loop() -> None:
    body = graph(
        [node("Mul", ["v", "c"], ["v2"]), node("Identity", ["go"], ["go2"])],
        [info("i", INT64, []), info("go", BOOL, []), info("v", FLOAT, None)],
        ["go2", "v2"],
    )
    weights = {"turns": np.array(2000), "c": np.array(1.001, np.float32)}
    model = model_of([node("Loop", ["turns", "", "x"], ["y"], body=body)], [info("x", FLOAT, [2])], ["y"], weights)
    exe = agree(model, {"x": rng(2)})
    assert len(exe.report.placed) < 20


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_over_an_axis_of_any_length(direction: int, axis: int) -> None:
    body = graph(
        [node("Add", ["state", "item"], ["next"]), node("Identity", ["next"], ["out"])],
        [info("state", FLOAT, None), info("item", FLOAT, None)],
        ["next", "out"],
    )
    scan = node(
        "Scan",
        ["start", "x"],
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_axes=[axis],
        scan_output_directions=[direction],
    )
    shape: list[int | str] = ["n", 3] if axis == 0 else [3, "n"]
    model = model_of([scan], [info("start", FLOAT, [3]), info("x", FLOAT, shape)], ["last", "all"])
    feeds = [{"start": rng(3), "x": rng(*((n, 3) if axis == 0 else (3, n)))} for n in (1, 4, 9)]
    assert is_one_program(agree(model, *feeds))


def scanned_product(
    steps: int | str, left: str = "item", axis: int = 0, direction: int = 0, *, is_inside: bool = False
) -> onnx.ModelProto:
    """A state is replaced by the tanh of itself plus the product of `left` with a matrix."""
    weight = rng(3, 3)
    body = graph(
        [node("MatMul", [left, "w"], ["p"]), node("Add", ["p", "state"], ["sum"]), node("Tanh", ["sum"], ["next"])]
        + [node("Identity", ["next"], ["out"])],
        [info("state", FLOAT, None), info("item", FLOAT, None)],
        ["next", "out"],
    )
    if is_inside:
        body.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    scan = node(
        "Scan",
        ["start", "x"],
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_directions=[direction],
    )
    shape: list[int | str] = [steps, 2, 3] if axis == 0 else [2, steps, 3]
    inputs = [info("start", FLOAT, [2, 3]), info("x", FLOAT, shape)]
    return model_of([scan], inputs, ["last", "all"], {} if is_inside else {"w": weight})


def products(model: onnx.ModelProto) -> int:
    """How many there are outside of loops."""
    values = (binding.value for binding in function_of(model).bindings)
    return sum(isinstance(value, Call) and value.op_name == "matmul" for value in values)


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("steps", [5, "n"])
def test_inputs_of_all_steps_are_multiplied_at_once(
    steps: int | str, axis: int, direction: int, is_inside: bool
) -> None:
    model = scanned_product(steps, "item", axis, direction, is_inside=is_inside)
    assert products(model) == 1
    counts = (steps,) if isinstance(steps, int) else (1, 4, 9)
    agree(model, *({"start": rng(2, 3), "x": rng(*((n, 2, 3) if axis == 0 else (2, n, 3)))} for n in counts))


def test_states_are_multiplied_step_by_step() -> None:
    model = scanned_product("n", "state")
    assert products(model) == 0
    agree(model, {"start": rng(2, 3), "x": rng(4, 2, 3)})


def test_what_changes_with_the_step_is_no_weight() -> None:
    model = scanned_product("n")
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    body.node.insert(0, node("Exp", ["w"], ["v"]))  # computed inside of the loop
    body.node[1].input[1] = "v"
    assert products(model) == 0
    agree(model, {"start": rng(2, 3), "x": rng(4, 2, 3)})


def decoder() -> onnx.ModelProto:
    """Steps of attention as exporters write them: the weights, and what is attended to, are carried through the loop."""
    names = ("h", "seen", "w", "u", "count")
    body = graph(
        [
            node("MatMul", ["seen", "w"], ["keys"]),
            node("MatMul", ["h", "u"], ["query"]),
            node("Add", ["keys", "query"], ["sums"]),
            node("Tanh", ["sums"], ["high"]),
            node("ReduceMean", ["high", "axes"], ["h_next"], keepdims=1),
            node("Add", ["count", "one"], ["count_next"]),
            *(node("Identity", [name], [f"{name}_next"]) for name in ("seen", "w", "u")),
            node("ReduceSum", ["h_next"], ["total"], keepdims=0),
            node("Less", ["total", "enough"], ["goes_on"]),
        ],
        [info("i", INT64, []), info("cond", BOOL, []), *(info(name) for name in names)],
        ["goes_on", *(f"{name}_next" for name in names), "h_next"],
    )
    outputs = ["h_last", "seen_last", "w_last", "u_last", "count_last", "steps"]
    nodes = [node("Loop", ["most", "true", "h", "seen", "w", "u", "zero"], outputs, body=body)]
    weights = {
        "w": rng(3, 4),
        "u": rng(4, 4),
        "most": np.array(90),
        "true": np.array(True),
        "axes": np.array([0]),
        "zero": np.array(0.0, np.float32),
        "one": np.array(1.0, np.float32),
        "enough": np.array(9.0, np.float32),
    }
    return model_of(nodes, [info("h", FLOAT, [1, 4]), info("seen", FLOAT, ["n", 3])], outputs, weights)


def test_what_no_iteration_changes_is_not_carried() -> None:
    model = decoder()
    module = get_manager().get("onnx", "frontend").import_model(model, {})
    (body,) = (function for name, function in module.functions.items() if name.endswith("_body"))
    products = [b.value for b in body.bindings if isinstance(b.value, Call) and b.value.op_name == "matmul"]
    assert [isinstance(product.args[1], Constant) for product in products] == [True]  # of the state; u is a constant
    agree(model, {"h": rng(1, 4), "seen": rng(5, 3)}, {"h": rng(1, 4), "seen": rng(1, 3)})


def test_products_that_are_the_same_in_all_iterations_stand_before_the_loop() -> None:
    main = function_of(decoder())
    calls = [b.value for b in main.bindings if isinstance(b.value, Call)]
    (product,) = (call for call in calls if call.op_name == "matmul")
    assert product.args[0] is main.params[1]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_over_sequences_of_any_length(kind: str, gates: int, direction: str) -> None:
    count = 2 if direction == "bidirectional" else 1
    weights = {"w": rng(count, gates * 4, 3), "r": rng(count, gates * 4, 4), "b": rng(count, gates * 8)}
    layer = node(kind, ["x", "w", "r", "b", "lengths"], ["y", "h"], hidden_size=4, direction=direction)
    inputs = [info("x", FLOAT, ["n", 2, 3]), info("lengths", TensorProto.INT32, [2])]
    feeds = [{"x": rng(n, 2, 3), "lengths": np.array([n, max(n - 2, 1)], np.int32)} for n in (1, 5, 90)]
    agree(model_of([layer], inputs, ["y", "h"], weights), *feeds)
