"""FuseOpsByPattern: what becomes a composite, in which order patterns win, and what each refusal says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.errors import IRError, PatternError
from kernelyard.ir import Call, Function, FunctionBuilder, GlobalVar, IRModule, Var
from kernelyard.ir.printer import to_text
from kernelyard.ir.verify import verify
from kernelyard.patterns import Accept, Decline, FusionPattern, is_const, is_op, wildcard
from kernelyard.patterns.composite import captured_operands, op_names
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern

WEIGHT = np.linspace(-1, 1, 4 * 4 * 3 * 3, dtype=np.float32).reshape(4, 4, 3, 3)
X = np.random.default_rng(0).standard_normal((1, 4, 6, 6), dtype=np.float32)


def conv(b: FunctionBuilder, x: Var, weight: np.ndarray = WEIGHT) -> Var:
    return b.op("nn.conv2d", x, weight, strides=(1, 1), padding=(1, 1, 1, 1))


def conv_pattern() -> Any:
    return is_op("nn.conv2d")(wildcard().capture("data"), wildcard().capture("weight"))


CONV = FusionPattern("acme.conv", conv_pattern())
CONV_RELU = FusionPattern("acme.conv_relu", is_op("nn.relu")(conv_pattern()))
RELU = FusionPattern("acme.relu", is_op("nn.relu")(wildcard()))


class Log:
    """Records what the pass says."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str]] = []
        self.refused: list[tuple[str, str, str]] = []

    def record_match(self, pattern: FusionPattern, match: Any, function: str, composite: str) -> None:
        self.taken.append((pattern.name, function, composite))

    def record_decline(self, pattern: FusionPattern, match: Any, function: str, decline: Decline) -> None:
        self.refused.append((pattern.name, decline.code, match.ops[-1]))


def composites(module: IRModule) -> dict[str, tuple[str, ...]]:
    """Ops of each composite, by its pattern's name."""
    return {f.attrs["Composite"]: op_names(f) for f in module.graph_functions().values() if "Composite" in f.attrs}


def check(module: IRModule, fused: IRModule, *inputs: np.ndarray) -> None:
    verify(fused)
    assert_same_meaning(module, fused, inputs or [X])


def module_of(b: FunctionBuilder, *results: Var) -> IRModule:
    return verify(IRModule({"main": b.function(*results)}))


def test_conv_relu_becomes_a_composite() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    log = Log()
    fused = FuseOpsByPattern([CONV_RELU], recorder=log)(module)
    check(module, fused)
    assert composites(fused) == {"acme.conv_relu": ("nn.conv2d", "nn.relu")}
    (binding,) = fused.graph_functions()["main"].bindings
    assert isinstance(binding.value, Call)
    assert isinstance(binding.value.op, GlobalVar)
    assert log.taken == [("acme.conv_relu", "main", "fused_nn_conv2d_nn_relu")]


def test_captures_name_the_operands_inside() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    pattern = FusionPattern("acme.c", is_op("nn.relu")(conv_pattern().capture("convolution")).capture("result"))
    fused = FuseOpsByPattern([pattern])(module)
    composite = fused.graph_functions()["fused_nn_conv2d_nn_relu"]
    found = captured_operands(composite)
    assert found["data"] is composite.params[0]
    assert np.array_equal(found["weight"].data, WEIGHT)
    assert found["convolution"] is composite.bindings[0].var
    assert found["result"] is composite.bindings[1].var


def test_attributes_come_from_the_getter() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", b.input("x", (2,))))
    attrs = {"activation": "relu", "sizes": (1, dims.symbol("n")), "nested": {"alpha": 0.5}}
    pattern = FusionPattern("acme.relu", is_op("nn.relu")(wildcard()), attrs_getter=lambda match: attrs)
    composite = FuseOpsByPattern([pattern])(module).graph_functions()["fused_nn_relu"]
    assert {name: composite.attrs[name] for name in attrs} == attrs


def test_the_longest_chain_wins_whatever_the_order() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    for patterns in ([CONV, CONV_RELU], [CONV_RELU, CONV]):
        assert composites(FuseOpsByPattern(patterns)(module)) == {"acme.conv_relu": ("nn.conv2d", "nn.relu")}


def test_at_one_root_the_earlier_pattern_wins() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    again = FusionPattern("other.conv_relu", CONV_RELU.pattern.dup())
    assert set(composites(FuseOpsByPattern([again, CONV_RELU])(module))) == {"other.conv_relu"}
    assert set(composites(FuseOpsByPattern([RELU, CONV_RELU, CONV])(module))) == {"acme.relu", "acme.conv"}


def test_branch_is_declined_as_leaking_and_the_parts_are_taken() -> None:
    b = FunctionBuilder()
    c = conv(b, b.input("x", X.shape))
    module = module_of(b, b.op("nn.relu", c), b.op("nn.gelu", c))
    log = Log()
    fused = FuseOpsByPattern([CONV_RELU, CONV], recorder=log)(module)
    check(module, fused)
    assert log.refused == [("acme.conv_relu", "leaking-intermediate", "nn.relu")]
    assert composites(fused) == {"acme.conv": ("nn.conv2d",)}


def test_a_cyclic_match_is_declined_and_nothing_else() -> None:
    b = FunctionBuilder()
    c = conv(b, b.input("x", X.shape))
    y = b.op("add", b.op("nn.relu", c), b.op("nn.gelu", c))
    module = module_of(b, b.op("nn.relu", conv(b, y)))
    log = Log()
    cyclic = FusionPattern("acme.cyclic", is_op("add")(is_op("nn.relu")(conv_pattern()), wildcard()))
    fused = FuseOpsByPattern([cyclic, CONV_RELU], recorder=log)(module)
    check(module, fused)
    assert ("acme.cyclic", "cycle", "add") in log.refused
    assert composites(fused) == {"acme.conv_relu": ("nn.conv2d", "nn.relu")}


def test_residual_takes_the_convolution_that_nothing_else_reads() -> None:
    """Both operands of the add are convolutions; the first leaks, so the other order is what the backend gets."""
    b = FunctionBuilder()
    shared = conv(b, b.input("x", X.shape))
    y = b.op("add", shared, conv(b, shared, WEIGHT * 2))
    module = module_of(b, y)
    log = Log()
    pattern = FusionPattern("acme.conv_sum", is_op("add")(conv_pattern(), wildcard().capture("residual")))
    fused = FuseOpsByPattern([pattern, CONV], recorder=log)(module)
    check(module, fused)
    assert composites(fused) == {"acme.conv_sum": ("nn.conv2d", "add"), "acme.conv": ("nn.conv2d",)}
    composite = fused.graph_functions()["fused_nn_conv2d_add"]
    assert captured_operands(composite)["residual"] in composite.params
    assert len(composite.params) == 1  # the shared convolution is both data and residual


def test_matmul_bias_and_residual() -> None:
    b = FunctionBuilder()
    x, w1, w2 = b.input("x", (4, 8)), np.ones((8, 8), np.float32), np.eye(8, dtype=np.float32)
    y = b.op("add", b.op("add", b.op("matmul", x, w1), np.ones(8, np.float32)), b.op("matmul", x, w2))
    module = module_of(b, b.op("add", y, x))
    with_bias = is_op("add")(is_op("matmul")(wildcard(), is_const()), is_const().capture("bias"))
    residual = FusionPattern("acme.matmul_bias_residual", is_op("add")(with_bias, wildcard().capture("residual")))
    plain = FusionPattern("acme.matmul", is_op("matmul")(wildcard(), wildcard()))
    fused = FuseOpsByPattern([residual, plain])(module)
    check(module, fused, np.random.default_rng(1).standard_normal((4, 8), dtype=np.float32))
    assert composites(fused) == {
        "acme.matmul_bias_residual": ("matmul", "add", "add"),
        "acme.matmul": ("matmul",),
    }


def test_a_check_that_declines_leaves_the_module_as_it_is() -> None:
    b = FunctionBuilder()
    c = conv(b, b.input("x", X.shape))
    module = module_of(b, b.op("nn.relu", c))
    asked = []

    def check_(match: Any) -> Decline:
        asked.append((match["data"], match["weight"], match.call.op_name, match.ops))
        return Decline("dtype", "float32 is not for us", at=c)

    log = Log()
    assert FuseOpsByPattern([FusionPattern("acme.c", CONV_RELU.pattern, check_)], recorder=log)(module) is module
    (seen,) = asked
    assert seen[0] is module.graph_functions()["main"].params[0]
    assert np.array_equal(seen[1].data, WEIGHT)
    assert seen[2:] == ("nn.relu", ("nn.conv2d", "nn.relu"))
    assert log.refused == [("acme.c", "dtype", "nn.relu")]


def test_a_declined_long_chain_is_offered_shorter() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    fused = FuseOpsByPattern([FusionPattern("acme.long", CONV_RELU.pattern, lambda m: Decline("no", "no")), CONV])(
        module
    )
    assert composites(fused) == {"acme.conv": ("nn.conv2d",)}


@pytest.mark.parametrize(
    ("check_", "getter", "message"),
    [
        (lambda match: 1 / 0, None, "ZeroDivisionError"),
        (lambda match: True, None, "must return"),
        (lambda match: None, None, "must return"),
        (None, lambda match: {"Composite": "x"}, "is the core's"),
        (None, lambda match: {"weights": np.ones(3)}, "no text form"),
        (None, lambda match: {}["missing"], "KeyError"),
    ],
)
def test_a_broken_check_declines_its_match_only(check_: Any, getter: Any, message: str) -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", conv(b, b.input("x", X.shape))))
    reasons: list[str] = []

    class Reasons(Log):
        def record_decline(self, pattern: FusionPattern, match: Any, function: str, decline: Decline) -> None:
            assert decline.code == "check-error"
            reasons.append(decline.message)

    broken = FusionPattern("broken.relu", RELU.pattern, check_, getter)
    fused = FuseOpsByPattern([broken, CONV], recorder=Reasons())(module)
    assert composites(fused) == {"acme.conv": ("nn.conv2d",)}
    assert len(reasons) == 1
    assert message in reasons[0]


def test_no_match_no_change() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("tanh", b.input("x", (2,))))
    assert FuseOpsByPattern([CONV, RELU])(module) is module
    assert FuseOpsByPattern([])(module) is module


def test_constants_stay_inside_or_become_arguments() -> None:
    b = FunctionBuilder()
    module = module_of(b, conv(b, b.input("x", X.shape)))
    bound = FuseOpsByPattern([CONV])(module)
    lifted = FuseOpsByPattern([CONV], bind_constants=False)(module)
    check(module, bound)
    check(module, lifted)
    assert len(bound.graph_functions()["fused_nn_conv2d"].params) == 1
    composite = lifted.graph_functions()["fused_nn_conv2d"]
    assert len(composite.params) == 2
    assert captured_operands(composite)["weight"] is composite.params[1]


def test_equal_groups_share_a_function_and_other_constants_do_not() -> None:
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    y = conv(b, conv(b, conv(b, x), WEIGHT.copy()), WEIGHT * 2)
    module = module_of(b, y)
    fused = FuseOpsByPattern([CONV])(module)
    check(module, fused)
    assert [f for f in fused.functions if f != "main"] == ["fused_nn_conv2d", "fused_nn_conv2d_1"]


def test_equal_groups_with_other_attributes_do_not_share() -> None:
    b = FunctionBuilder()
    x = b.input("x", (3,))
    module = module_of(b, b.op("clip", x, min=0.0, max=6.0), b.op("clip", x, min=0.0, max=1.0))
    fused = FuseOpsByPattern([FusionPattern("acme.clip", is_op("clip")(wildcard()))])(module)
    check(module, fused, np.float32([-1, 0.5, 7]))
    assert len(fused.functions) == 3


def test_regions_of_their_own() -> None:
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    module = module_of(b, b.op("nn.relu", conv(b, b.op("tanh", b.op("nn.relu", x)))))
    fused = FuseOpsByPattern([CONV_RELU, RELU], annotate_codegen=True)(module)
    check(module, fused)
    regions = {n: f.attrs for n, f in fused.graph_functions().items() if "Codegen" in f.attrs}
    assert regions == {
        "acme_0": {"Codegen": "acme", "global_symbol": "acme_0"},
        "acme_1": {"Codegen": "acme", "global_symbol": "acme_1"},
    }
    again = FuseOpsByPattern([CONV_RELU, RELU], annotate_codegen=True)(fused)
    assert again is fused


def test_two_backends_one_after_the_other() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", b.op("tanh", conv(b, b.input("x", X.shape)))))
    first = FuseOpsByPattern([CONV], annotate_codegen=True)(module)
    tanh_relu = FusionPattern("other.tanh_relu", is_op("nn.relu")(is_op("tanh")(wildcard())))
    both = FuseOpsByPattern([CONV, tanh_relu], annotate_codegen=True)(first)
    check(module, both)
    assert composites(both) == {"acme.conv": ("nn.conv2d",), "other.tanh_relu": ("tanh", "nn.relu")}


def test_several_entries_share_and_can_be_chosen() -> None:
    def entry() -> Function:
        b = FunctionBuilder()
        return b.function(conv(b, conv(b, b.input("x", X.shape))))

    module = verify(IRModule({"main1": entry(), "main2": entry()}))
    fused = FuseOpsByPattern([CONV], annotate_codegen=True)(module)
    assert list(fused.functions) == ["main1", "main2", "fused_nn_conv2d", "acme_0"]
    one = FuseOpsByPattern([CONV], entry_functions=["main2"])(module)
    assert one["main1"] is module["main1"]
    with pytest.raises(IRError, match="no entry function"):
        FuseOpsByPattern([CONV], entry_functions=["main3"])(module)


def test_split_alone_and_with_its_items() -> None:
    b = FunctionBuilder()
    parts = b.op("split", b.input("x", (4, 2)), axis=0, sections=(2, 2))
    first, second = b.get(parts, 0), b.get(parts, 1)
    module = module_of(b, b.op("add", first, second))
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    alone = FuseOpsByPattern([FusionPattern("acme.split", is_op("split")(wildcard()))])(module)
    check(module, alone, data)
    split = is_op("split")(wildcard())
    whole = FuseOpsByPattern([FusionPattern("acme.split_add", is_op("add")(split[0], split[1]))])(module)
    check(module, whole, data)
    assert composites(whole) == {"acme.split_add": ("split", "add")}


def test_renamed_values_do_not_stop_a_match() -> None:
    b = FunctionBuilder()
    c = b.bind(conv(b, b.input("x", X.shape)))
    module = module_of(b, b.bind(b.op("nn.relu", c)))
    fused = FuseOpsByPattern([CONV_RELU])(module)
    check(module, fused)
    assert composites(fused) == {"acme.conv_relu": ("nn.conv2d", "nn.relu")}


def test_an_unrelated_dead_op_is_kept() -> None:
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    b.op("tanh", x)
    module = module_of(b, b.op("nn.relu", conv(b, x)))
    fused = FuseOpsByPattern([CONV_RELU])(module)
    check(module, fused)
    assert [getattr(binding.value, "op_name", "") for binding in fused.graph_functions()["main"].bindings] == [
        "tanh",
        "fused_nn_conv2d_nn_relu",
    ]


def test_symbolic_shapes_keep_their_names() -> None:
    n = dims.symbol("n")
    b = FunctionBuilder()
    x = b.input("x", (n, 4))
    y = b.op("reshape", b.op("matmul", x, np.eye(4, dtype=np.float32)), shape=(n * 4,))
    module = module_of(b, y)
    pattern = FusionPattern("acme.flat", is_op("reshape")(is_op("matmul")(wildcard(), is_const())))
    fused = FuseOpsByPattern([pattern])(module)
    check(module, fused, np.ones((3, 4), np.float32))
    assert fused.graph_functions()["fused_matmul_reshape"].params[0].type == x.type


def test_printed_form_of_a_partition_is_the_same_every_time() -> None:
    texts = set()
    for _ in range(2):
        b = FunctionBuilder()
        x = b.input("x", X.shape)
        module = module_of(b, b.op("nn.relu", conv(b, b.op("nn.relu", conv(b, x)), WEIGHT * 3)))
        texts.add(to_text(FuseOpsByPattern([CONV_RELU], annotate_codegen=True)(module)))
    assert len(texts) == 1


def test_accept_is_an_answer_and_wrong_patterns_are_refused() -> None:
    b = FunctionBuilder()
    module = module_of(b, b.op("nn.relu", b.input("x", (2,))))
    fused = FuseOpsByPattern([("acme.relu", is_op("nn.relu")(wildcard()), lambda match: Accept())])(module)
    assert composites(fused) == {"acme.relu": ("nn.relu",)}
    with pytest.raises(PatternError):
        FuseOpsByPattern([is_op("nn.relu")(wildcard())])
