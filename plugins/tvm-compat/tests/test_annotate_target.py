"""AnnotateTarget: the scenarios of Relay's test_pass_annotate_target.py, by their names.

`ref_create_read_write` has no form here: there are no references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, IRModule, TensorType, TupleType, Var
from kernelyard.ir.printer import to_text
from kernelyard.ir.verify import verify
from kernelyard.patterns import Accept, Decline, is_op, wildcard
from kernelyard.patterns.op_rules import accept_all, register_op_rule, unregister_op_rules
from kernelyard.placement.recorder import Recorder
from kernelyard.testing.reference import assert_same_meaning
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_composite import MergeComposite

X = np.random.default_rng(0).standard_normal((10, 4), dtype=np.float32)
TARGETS = ("A", "B", "test")


@pytest.fixture(autouse=True)
def _clean_rules() -> Iterator[None]:
    yield
    for target in TARGETS:
        unregister_op_rules(target)


def takes(target: str, *ops: str) -> None:
    for op in ops:
        register_op_rule(op, target, accept_all)


def module_of(build: Callable[[FunctionBuilder, Var], Sequence[Var]]) -> IRModule:
    b = FunctionBuilder()
    return verify(IRModule({"main": b.function(*build(b, b.input("x", X.shape)))}))


def annotated(module: IRModule, targets: str | Sequence[str] = "test") -> IRModule:
    after = verify(AnnotateTarget(targets)(module))
    assert_same_meaning(module, after, [X])
    return after


def marks(module: IRModule, function: str = "main") -> list[str]:
    """For each call of a function: the target that it is marked with, or its operator."""
    calls = [b.value for b in module.graph_functions()[function].bindings if isinstance(b.value, Call)]
    return [module[c.op_name].attrs["Codegen"] if c.op_name in module else c.op_name for c in calls]


def test_extern_dnnl() -> None:
    """Neighbouring calls are marked one by one; merging them is another pass's work."""
    takes("test", "nn.conv2d", "add")
    weight = np.ones((4, 1, 3, 3), np.float32)

    def build(b, x):
        data = b.op("reshape", x, shape=(1, 4, 5, 2))
        first = b.op("nn.conv2d", data, weight, strides=(1, 1), padding=(1, 1, 1, 1), groups=4)
        second = b.op("nn.conv2d", first, weight, strides=(1, 1), padding=(1, 1, 1, 1), groups=4)
        return [b.op("add", first, second)]

    after = annotated(module_of(build))
    assert marks(after) == ["reshape", "test", "test", "test"]
    regions = [f for f in after.graph_functions().values() if "Codegen" in f.attrs]
    assert [len(region.bindings) for region in regions] == [1, 1], "two equal convolutions share a function"


def test_multiple_ends() -> None:
    takes("test", "nn.relu")

    def build(b, x):
        relu = b.op("nn.relu", x)
        return [b.op("add", b.op("abs", relu), b.op("exp", relu))]

    assert marks(annotated(module_of(build))) == ["test", "abs", "exp", "add"]


def test_type_propagation() -> None:
    """A rule sees the types of calls behind others that were marked."""

    @register_op_rule("nn.relu", "test")
    def relu(call: Call) -> Accept | Decline:
        return Accept() if call.args[0].tensor_type.dtype == "float32" else Decline("dtype", "float32 alone")

    assert marks(annotated(module_of(lambda b, x: [b.op("nn.relu", b.op("nn.relu", x))]))) == ["test", "test"]


def test_tuple() -> None:
    """An operator of several operands takes them itself: there is no tuple to mark."""
    takes("test", "nn.relu", "concat")
    module = module_of(lambda b, x: [b.op("concat", b.op("nn.relu", x), b.op("abs", x), axis=1)])
    assert marks(annotated(module)) == ["test", "abs", "test"]


def test_ends_with_tuple() -> None:
    takes("test", "nn.relu", "split")

    def build(b, x):
        parts = b.op("split", b.op("nn.relu", x), axis=1, sections=(1, 3))
        return [b.get(parts, 0), b.get(parts, 1)]

    assert marks(annotated(module_of(build))) == ["test", "test"]


def test_empty_tuple() -> None:
    """A function that returns an operand as it stands, and computes nothing."""
    takes("test", "nn.relu")
    module = module_of(lambda b, x: [x])
    assert AnnotateTarget("test")(module) is module


def test_free_vars_zeros() -> None:
    """Calls without operands are like inputs: they are not marked."""
    takes("test", "arange", "add")
    module = module_of(
        lambda b, x: [b.op("add", x, b.op("arange", start=0, step=1, count=4, dtype="float32"))],
    )
    assert marks(annotated(module)) == ["arange", "test"]


def test_composite_function() -> None:
    """A composite belongs to its pattern's backend; the calls inside are not looked at."""
    takes("test", "nn.relu")
    pattern = ("test.add_relu", is_op("nn.relu")(is_op("add")(wildcard(), wildcard())))
    module = module_of(lambda b, x: [b.op("nn.relu", b.op("add", x, b.op("abs", x)))])
    composed = MergeComposite([pattern])(module)
    assert marks(annotated(composed)) == ["abs", "test"]
    assert AnnotateTarget("other")(composed) is composed


def test_multiple_runs() -> None:
    """One backend after another gives what both at once give; what is marked stays marked."""
    takes("A", "nn.relu")
    takes("B", "add", "nn.relu")

    def build(b, x):
        a_1 = b.op("nn.relu", x)
        return [b.op("add", b.op("abs", a_1), b.op("nn.relu", a_1))]

    module = module_of(build)
    one_by_one = annotated(annotated(module, "A"), "B")
    assert marks(one_by_one) == ["A", "abs", "A", "B"]
    assert to_text(one_by_one) == to_text(annotated(module, ["A", "B"]))
    assert AnnotateTarget(["A", "B"])(one_by_one) is one_by_one


def test_the_users_order_decides() -> None:
    takes("A", "nn.relu")
    takes("B", "nn.relu", "abs")
    module = module_of(lambda b, x: [b.op("abs", b.op("nn.relu", x))])
    assert marks(annotated(module, ["A", "B"])) == ["A", "B"]
    assert marks(annotated(module, ["B", "A"])) == ["B", "B"]


def test_default_entry_functions_alone_and_all() -> None:
    """Guards against a defect of TVM: every entry function is treated, not only main."""
    takes("test", "nn.relu")
    b = FunctionBuilder()
    other = b.function(b.op("nn.relu", b.input("y", (2,))))
    module = module_of(lambda b, x: [b.op("nn.relu", x)]).with_functions({"other": other})
    after = verify(AnnotateTarget("test")(module))
    assert all(function.bindings[0].value.op_name in after for function in after.entry_functions().values())


def test_what_a_rule_declines_is_reported() -> None:
    register_op_rule("exp", "test", lambda call: Decline("accuracy", "too coarse"))
    recorder = Recorder()
    module = module_of(lambda b, x: [b.op("exp", b.op("abs", x))])
    assert AnnotateTarget("test", recorder)(module) is module
    (declined,) = recorder.list_declined_matches()
    assert (declined.code, declined.message) == ("accuracy", "too coarse")


def private(build: Callable[..., Var | Sequence[Var]], *types: TensorType) -> Function:
    """A branch, or part of a loop."""
    b = FunctionBuilder()
    results = build(b, *(b.parameter(type_, f"x{i}") for i, type_ in enumerate(types)))
    return b.function(*([results] if isinstance(results, Var) else results), attrs={"private": True})


ROWS, COUNT = TensorType(X.shape, "float32"), TensorType((), "int64")


def test_if_else() -> None:
    """What a branch does is marked in the branch; the choice between the two is no target's."""
    takes("test", "tanh", "sigmoid", "add")
    b = FunctionBuilder()
    x, flag = b.input("x", X.shape), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [b.op("tanh", x)], ROWS)
    main = b.function(b.op("add", chosen, x))
    then = private(lambda b, x: b.op("sigmoid", x), ROWS)
    otherwise = private(lambda b, x: b.op("erf", x), ROWS)
    module = verify(IRModule({"main": main, "then": then, "otherwise": otherwise}))
    after = verify(AnnotateTarget("test")(module))
    assert marks(after) == ["test", "if", "test"]
    assert marks(after, "then") == ["test"]
    assert after["otherwise"] is otherwise
    for choice in (True, False):
        assert_same_meaning(module, after, [X, np.array(choice)])


def test_if_free_vars() -> None:
    """What a branch reads of its surroundings it is given; calls without operands are like inputs there too."""
    takes("test", "arange", "subtract", "equal", "max")
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    row = b.op("arange", start=0, step=1, count=4, dtype="float32")
    flag = b.op("equal", b.op("max", x), 0.0)
    main = b.function(b.if_(flag, "then", "otherwise", [x, row], ROWS))
    then = private(lambda b, x, row: b.op("subtract", x, row), ROWS, row.tensor_type)
    otherwise = private(lambda b, x, row: b.op("subtract", row, x), ROWS, row.tensor_type)
    module = verify(IRModule({"main": main, "then": then, "otherwise": otherwise}))
    after = annotated(module)
    assert marks(after) == ["arange", "test", "test", "if"]
    assert marks(after, "then") == marks(after, "otherwise") == ["test"]


def test_while_let() -> None:
    """The condition and the body of a loop are marked like any function; the loop is no target's."""
    takes("test", "less", "add", "multiply")
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    result = b.while_("goes_on", "turn", [Constant(np.array(0)), x], TupleType((COUNT, ROWS)))
    main = b.function(b.op("multiply", b.get(result, 1), x))
    goes_on = private(lambda b, i, x: b.op("less", i, 3), COUNT, ROWS)
    turn = private(lambda b, i, x: [b.op("add", i, 1), b.op("tanh", b.op("add", x, x))], COUNT, ROWS)
    module = verify(IRModule({"main": main, "goes_on": goes_on, "turn": turn}))
    after = annotated(module)
    assert marks(after) == ["while", "test"]
    assert marks(after, "goes_on") == ["test"]
    assert marks(after, "turn") == ["test", "test", "tanh"]


SCENARIOS = {
    "AnnotateTarget: if_else": test_if_else,
    "AnnotateTarget: if_free_vars": test_if_free_vars,
    "AnnotateTarget: while_let": test_while_let,
    "AnnotateTarget: extern_dnnl": test_extern_dnnl,
    "AnnotateTarget: multiple_ends": test_multiple_ends,
    "AnnotateTarget: type_propagation": test_type_propagation,
    "AnnotateTarget: tuple": test_tuple,
    "AnnotateTarget: ends_with_tuple": test_ends_with_tuple,
    "AnnotateTarget: empty_tuple": test_empty_tuple,
    "AnnotateTarget: free_vars_zeros": test_free_vars_zeros,
    "AnnotateTarget: composite_function": test_composite_function,
    "AnnotateTarget: multiple_runs": test_multiple_runs,
    "AnnotateTarget: the user's order of targets": test_the_users_order_decides,
}
