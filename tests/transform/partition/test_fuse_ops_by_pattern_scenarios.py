"""FuseOpsByPattern: the scenarios of TVM's test_transform_fuse_ops_by_pattern.py, by their names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.errors import PerformanceWarning, VerifyError
from kernelyard.ir import Binding, Call, Constant, Function, FunctionBuilder, IRModule, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns import Accept, Decline, FusionPattern, Match, is_const, is_op, is_tuple_get_item, wildcard
from kernelyard.patterns.composite import op_names
from kernelyard.placement.recorder import Recorder
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.interprocedural.bind_params import BindParams
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.merge_composite_functions import MergeCompositeFunctions
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.canonicalize_bindings import CanonicalizeBindings
from kernelyard_tvm_compat.merge_composite import MergeComposite

SHAPE = (1, 4, 6, 6)
WEIGHT = np.linspace(-1, 1, 4 * 4 * 3 * 3, dtype=np.float32).reshape(4, 4, 3, 3)
CONV = is_op("nn.conv2d")(wildcard(), wildcard())
CONV_RELU = ("dnnl.conv2d_relu", is_op("nn.relu")(CONV))


def conv(b: FunctionBuilder, x: Var, weight: Any = WEIGHT) -> Var:
    return b.op("nn.conv2d", x, weight, strides=(1, 1), padding=(1, 1, 1, 1))


def module_of(
    build: Callable[[FunctionBuilder, Var], Var | Sequence[Var]], shape: Sequence[dims.Dim] = SHAPE
) -> IRModule:
    b = FunctionBuilder()
    results = build(b, b.input("x", shape))
    return verify(IRModule({"main": b.function(*([results] if isinstance(results, Var) else results))}))


def fused(module: IRModule, patterns: Sequence[Any], **options: Any) -> IRModule:
    """The module after the pass: well-formed, with the same meaning."""
    after = verify(FuseOpsByPattern(patterns, **options)(module))
    sizes = {"n": 3, "m": 2}
    main = module.entry_functions()[next(iter(module.entry_functions()))]
    shapes = [[dims.evaluate(d, sizes) for d in param.tensor_type.shape] for param in main.params]
    inputs = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    if "main" in module:
        assert_same_meaning(module, after, inputs)
    return after


def composites(module: IRModule) -> dict[str, tuple[str, ...]]:
    return {f.attrs["Composite"]: op_names(f) for f in module.graph_functions().values() if "Composite" in f.attrs}


def outside(module: IRModule, function: str = "main") -> list[str]:
    """What a function calls: operators by name, "-" for functions."""
    calls = [b.value for b in module.graph_functions()[function].bindings if isinstance(b.value, Call)]
    return ["-" if call.op_name in module else call.op_name for call in calls]


def test_partition_conv2d_relu():
    after = fused(module_of(lambda b, x: b.op("nn.relu", conv(b, x))), [CONV_RELU])
    assert composites(after) == {"dnnl.conv2d_relu": ("nn.conv2d", "nn.relu")}


def test_partition_multiple_patterns():
    module = module_of(lambda b, x: conv(b, b.op("nn.relu", conv(b, x))))
    after = fused(module, [("cutlass.conv2d", CONV.dup()), CONV_RELU])
    assert composites(after) == {"dnnl.conv2d_relu": ("nn.conv2d", "nn.relu"), "cutlass.conv2d": ("nn.conv2d",)}


def test_partition_order():
    """Of two patterns that match the same, the earlier in the list wins."""
    module = module_of(lambda b, x: b.op("nn.relu", conv(b, x)))
    other = ("cutlass.conv2d_relu", is_op("nn.relu")(CONV))
    assert list(composites(fused(module, [CONV_RELU, other]))) == ["dnnl.conv2d_relu"]
    assert list(composites(fused(module, [other, CONV_RELU]))) == ["cutlass.conv2d_relu"]


def test_branch_tuple_output():
    """conv feeds relu and an outside gelu. TVM fuses and returns a tuple, unless each backend's check forbids it.

    Here a value that leaks is declined by the core, with a reason, before any check; the parts are still taken.
    """

    def build(b, x):
        c = conv(b, x)
        return b.op("add", b.op("nn.relu", c), b.op("nn.gelu", c))

    recorder = Recorder()
    after = fused(module_of(build), [CONV_RELU, ("dnnl.conv2d", CONV.dup())], recorder=recorder)
    assert composites(after) == {"dnnl.conv2d": ("nn.conv2d",)}
    assert [declined.code for declined in recorder.list_declined_matches()] == ["leaking-intermediate"]


def test_cyclic_dependency():
    """Guards against a defect of TVM: a cyclic match failed the whole module instead of being declined alone."""

    def build(b, x):
        c = conv(b, x)
        return b.op("nn.relu", conv(b, b.op("add", b.op("nn.relu", c), b.op("nn.gelu", c))))

    recorder = Recorder()
    cyclic = ("dnnl.conv2d_relu_add", is_op("add")(CONV_RELU[1], wildcard()))
    after = fused(module_of(build), [cyclic, ("dnnl.last", is_op("nn.relu")(CONV.dup()))], recorder=recorder)
    assert "cycle" in [declined.code for declined in recorder.list_declined_matches()]
    assert list(composites(after)) == ["dnnl.last"]


def test_bind_params():
    b = FunctionBuilder()
    x, weight = b.input("x", SHAPE), b.input("weight", WEIGHT.shape)
    module = verify(IRModule({"main": b.function(b.op("nn.relu", conv(b, x, weight)))}))
    bound = BindParams("main", {"weight": WEIGHT})(module)
    after = fused(bound, [("dnnl.c", is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), is_const())))])
    (composite,) = [f for f in after.graph_functions().values() if "Composite" in f.attrs]
    assert [param.name for param in composite.params] == ["x"]
    assert FuseOpsByPattern([("dnnl.c", is_op("nn.conv2d")(wildcard(), is_const()))])(module) is module


def test_annotate_codegen():
    after = fused(module_of(lambda b, x: b.op("nn.relu", conv(b, x))), [CONV_RELU], annotate_codegen=True)
    (region,) = [f for f in after.graph_functions().values() if "Codegen" in f.attrs]
    assert dict(region.attrs) == {"Codegen": "dnnl", "global_symbol": "dnnl_0"}
    (call,) = region.bindings
    assert after[call.value.op_name].attrs["Composite"] == "dnnl.conv2d_relu"


def test_annotate_codegen_takes_the_backend_before_the_dot_only():
    """Guards against a defect of TVM: a prefix such as "cublas" also caught "cublaslt"."""
    module = module_of(lambda b, x: b.op("nn.relu", b.op("tanh", x)))
    patterns = [("cublas.relu", is_op("nn.relu")(wildcard())), ("cublaslt.tanh", is_op("tanh")(wildcard()))]
    after = MergeCompositeFunctions(["cublas"])(fused(module, patterns))
    assert [f.attrs["Codegen"] for f in after.graph_functions().values() if "Codegen" in f.attrs] == ["cublas"]


def test_no_op_if_no_patterns_match_1():
    module = module_of(lambda b, x: b.op("tanh", x))
    assert FuseOpsByPattern([CONV_RELU])(module) is module
    assert FuseOpsByPattern([])(module) is module


def test_no_op_if_no_patterns_match_2():
    module = module_of(lambda b, x: conv(b, b.op("nn.relu", x)))
    assert FuseOpsByPattern([CONV_RELU], annotate_codegen=True)(module) is module


def _calls_a_function(tail: str) -> IRModule:
    inner = FunctionBuilder()
    part = inner.function(inner.op("exp", inner.input("y", SHAPE)), attrs={"Composite": "other.exp"})
    b = FunctionBuilder()
    x = b.input("x", SHAPE)
    return verify(IRModule({"main": b.function(b.op(tail, b.call_function("part", [x], x.type))), "part": part}))


def test_unmatched_calls_may_include_lambda_functions_1():
    """Functions of this IR are the module's; calls of them are passed over."""
    module = _calls_a_function("tanh")
    assert FuseOpsByPattern([CONV_RELU])(module) is module


def test_unmatched_calls_may_include_lambda_functions_2():
    after = fused(_calls_a_function("nn.relu"), [("dnnl.relu", is_op("nn.relu")(wildcard()))])
    assert composites(after) == {"other.exp": ("exp",), "dnnl.relu": ("nn.relu",)}


def test_compare_with_merge_composite_path():
    """Three ways to two-level functions with the same interface."""
    module = module_of(lambda b, x: b.op("nn.relu", conv(b, x)))
    annotated = fused(module, [CONV_RELU], annotate_codegen=True)
    merged = MergeCompositeFunctions()(fused(module, [CONV_RELU]))
    relay = AnnotateTarget("dnnl")(MergeComposite([CONV_RELU])(module))
    found = []
    for after in (annotated, merged, relay):
        (region,) = [f for f in verify(after).graph_functions().values() if "Codegen" in f.attrs]
        composite = after[region.bindings[0].value.op_name]
        found.append(([p.type for p in region.params], region.result_type, dict(region.attrs), op_names(composite)))
    assert found[0] == found[1] == found[2]


def test_multiple_entries_multiple_calls_same_extern():
    def entry() -> Function:
        b = FunctionBuilder()
        return b.function(b.op("nn.relu", conv(b, b.op("nn.relu", conv(b, b.input("x", SHAPE))))))

    after = fused(IRModule({"main1": entry(), "main2": entry()}), [CONV_RELU], annotate_codegen=True)
    assert list(after.functions) == ["main1", "main2", "fused_nn_conv2d_nn_relu", "dnnl_0"]


def test_ignore_call_tir():
    module = module_of(lambda b, x: b.op("nn.relu", conv(b, x)))
    legal = LegalizeOps(skip=["nn.conv2d"])(module)
    after = fused(legal, [CONV_RELU, ("dnnl.conv2d", CONV.dup())])
    assert outside(after) == ["-", "call_tir"]
    assert composites(after) == {"dnnl.conv2d": ("nn.conv2d",)}


def test_a_legalized_module_is_told_apart_from_one_without_matches():
    """Guards against a defect of TVM: a partition that comes too late finds nothing, and says nothing."""
    legal = LegalizeOps()(module_of(lambda b, x: b.op("nn.relu", conv(b, x))))
    with pytest.warns(
        PerformanceWarning, match=r"nn\.conv2d, nn\.relu are loop-level functions already: partition before"
    ):
        assert FuseOpsByPattern([CONV_RELU, ("dnnl.conv2d", CONV.dup())])(legal) is legal
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FuseOpsByPattern([("dnnl.tanh", is_op("tanh")(wildcard()))])(legal) is legal


def test_unused():
    """An unrelated dead operator does not disturb the match, and is kept."""

    def build(b, x):
        b.op("tanh", x)
        return b.op("nn.relu", conv(b, x))

    assert outside(fused(module_of(build), [CONV_RELU])) == ["tanh", "-"]


def test_check_pattern():
    seen: list[Match] = []

    def check(match: Match) -> Decline:
        seen.append(match)
        return Decline("no", "never")

    pattern = is_op("nn.conv2d")(wildcard().capture("lhs"), wildcard().capture("rhs")).capture("root")
    b = FunctionBuilder()
    x, weight = b.input("x", SHAPE), b.input("weight", WEIGHT.shape)
    module = verify(IRModule({"main": b.function(b.op("nn.relu", conv(b, x, weight)))}))
    assert FuseOpsByPattern([FusionPattern("dnnl.c", pattern, check)])(module) is module
    (match,) = seen
    assert match["lhs"] is x
    assert match["rhs"] is weight
    assert match.call_of("root").op_name == "nn.conv2d"


def test_check_that_raises():
    """Guards against a defect of TVM: an exception in a check aborted the whole partition."""

    def check(match: Match) -> Accept:
        raise AttributeError("'NoneType' object has no attribute 'shape'")

    recorder = Recorder()
    module = module_of(lambda b, x: b.op("tanh", b.op("nn.relu", x)))
    broken = FusionPattern("broken.relu", is_op("nn.relu")(wildcard()), check)
    after = fused(module, [broken, ("dnnl.tanh", is_op("tanh")(wildcard()))], recorder=recorder)
    assert list(composites(after)) == ["dnnl.tanh"]
    assert [declined.code for declined in recorder.list_declined_matches()] == ["check-error"]


@pytest.mark.parametrize(("bind", "count"), [(True, 1), (False, 2)])
def test_bind_constants(bind, count):
    after = fused(module_of(conv), [("dnnl.conv2d", CONV)], bind_constants=bind)
    assert len(after["fused_nn_conv2d"].params) == count


def test_split():
    def build(b, x):
        parts = b.op("split", x, axis=1, sections=(2, 2))
        return b.op("add", b.get(parts, 0), b.get(parts, 1))

    module = module_of(build, (4, 4))
    alone = fused(module, [("x.split", is_op("split")(wildcard()))])
    assert outside(alone) == ["-", "add"]
    split = is_op("split")(wildcard())
    whole = fused(module, [("x.split_add", is_op("add")(is_tuple_get_item(split, 0), is_tuple_get_item(split, 1)))])
    assert outside(whole) == ["-"]


def test_clip():
    """Bounds are attributes, so they are inside; other bounds make another function."""
    module = module_of(
        lambda b, x: b.op("clip", b.op("clip", b.op("clip", x, min=0, max=4), min=1, max=3), min=0, max=4)
    )
    after = fused(module, [("x.clip", is_op("clip")(wildcard()))])
    assert outside(after) == ["-", "-", "-"]
    assert len(after.functions) == 3


def test_concat():
    module = module_of(lambda b, x: b.op("concat", b.op("nn.relu", x), b.op("nn.relu", b.op("tanh", x)), axis=1))
    relu = is_op("nn.relu")
    producers = fused(module, [("x.relu_concat", is_op("concat")(relu(wildcard()), relu(wildcard())))])
    assert outside(producers) == ["tanh", "-"]
    operands = fused(module, [("x.concat", is_op("concat")(wildcard(), varargs=True))])
    assert outside(operands) == ["nn.relu", "tanh", "nn.relu", "-"]
    assert len(operands["fused_concat"].params) == 2


def test_matmul_add3():
    """A product with bias and residual is one composite, though the residual's sum takes another product first."""
    rng = np.random.default_rng(0)
    w1, w2 = (rng.standard_normal((8, 8), dtype=np.float32) for _ in range(2))

    def build(b, x):
        with_bias = b.op("add", b.op("matmul", x, w1), np.ones(8, np.float32))
        return b.op("add", b.op("add", with_bias, b.op("matmul", x, w2)), x)

    matmul = is_op("matmul")(wildcard(), is_const())
    bias = is_op("add")(matmul, is_const())
    patterns = [
        ("cutlass.matmul_bias_residual_add", is_op("add")(bias, wildcard())),
        ("cutlass.matmul_bias", bias),
        ("cutlass.matmul", matmul),
    ]
    after = fused(module_of(build, (4, 8)), patterns)
    assert composites(after) == {
        "cutlass.matmul_bias_residual_add": ("matmul", "add", "add"),
        "cutlass.matmul": ("matmul",),
    }


def test_intermediate_var_to_var_binding():
    """TVM documents that `y = x` between two operators stops the fusion; here renamings are looked through."""
    module = module_of(lambda b, x: b.op("nn.relu", b.bind(b.bind(conv(b, x)))))
    assert outside(fused(module, [CONV_RELU])) == ["-"]
    assert outside(fused(CanonicalizeBindings()(module), [CONV_RELU])) == ["-"]


def test_multple_runs():
    module = module_of(lambda b, x: b.op("nn.relu", conv(b, x)))
    once = fused(module, [CONV_RELU], annotate_codegen=True)
    assert FuseOpsByPattern([CONV_RELU, ("dnnl.conv2d", CONV.dup())], annotate_codegen=True)(once) is once


def test_error_on_repeated_variable_definitions():
    module = module_of(lambda b, x: b.op("nn.relu", conv(b, x)))
    main = module.graph_functions()["main"]
    twice = Function(main.params, [*main.bindings, Binding(main.bindings[0].var, main.bindings[0].value)], main.result)
    with pytest.raises(VerifyError, match="bound"):
        verify(IRModule({"main": twice}))


def test_matmul_symbolic_var():
    """Symbols are the caller's inside too; no further parameter is needed for them."""
    n, m = dims.symbol("n"), dims.symbol("m")
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (n, m)), b.input("w", (m, n)))
    after = fused(
        verify(IRModule({"main": b.function(product)})), [("x.matmul", is_op("matmul")(wildcard(), wildcard()))]
    )
    composite = after["fused_matmul"]
    assert [param.type.shape for param in composite.params] == [(n, m), (m, n)]


def test_match_maximal_subgraph():
    """A larger match wins over a smaller one inside it, although the smaller pattern is named first."""
    module = module_of(
        lambda b, x: b.op("nn.relu", b.op("add", b.op("matmul", x, WEIGHT[0, 0]), WEIGHT[0, 0, 0])), (5, 3)
    )
    small = is_op("matmul")(wildcard(), wildcard())
    large = is_op("nn.relu")(is_op("add")(is_op("matmul")(wildcard(), wildcard()), wildcard()))
    assert list(composites(fused(module, [("x.small", small), ("x.large", large)]))) == ["x.large"]


def test_unique_boundary_output_precedes_last_group_binding():
    """Other bindings lie between and behind those of the group, and read what it does not own."""

    def build(b, x):
        c = conv(b, x)
        between = b.op("exp", x)
        y = b.op("nn.relu", c)
        return [y, b.op("tanh", between)]

    after = fused(module_of(build), [CONV_RELU])
    assert sorted(outside(after)) == ["-", "exp", "tanh"]


def test_dead_item_inside_a_group():
    """TVM drops a dead binding of the group with a warning; here it counts as a reader until it is eliminated."""

    def build(b, x):
        parts = b.op("split", x, axis=1, sections=(2, 2))
        first, _ = b.get(parts, 0), b.get(parts, 1)
        return b.op("nn.relu", first)

    pattern = ("x.part", is_op("nn.relu")(is_tuple_get_item(is_op("split")(wildcard()), 0)))
    module = module_of(build)
    assert FuseOpsByPattern([pattern])(module) is module
    assert outside(fused(DeadCodeElimination()(module), [pattern])) == ["-"]


def test_inline_bound_static_shape_argument():
    """A shape is an attribute, however the model spelled it: it is inside the composite, which has one parameter."""
    module = module_of(lambda b, x: b.op("reshape", conv(b, x), shape=(4, 36)))
    after = fused(module, [("x.conv_reshape", is_op("reshape")(CONV))])
    (composite,) = [f for f in after.graph_functions().values() if "Composite" in f.attrs]
    assert len(composite.params) == 1
    assert composite.bindings[1].value.attrs["shape"] == (4, 36)


def branches(**functions: Function) -> IRModule:
    """main(x, flag): relu(conv(x)) goes to @then or @otherwise, and the branch's result through relu(conv(.)) again."""
    b = FunctionBuilder()
    x, flag = b.input("x", SHAPE), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [b.op("nn.relu", conv(b, x))], x.type)
    return verify(IRModule({"main": b.function(b.op("nn.relu", conv(b, chosen))), **functions}))


def branch(build: Callable[[FunctionBuilder, Var], Var]) -> Function:
    b = FunctionBuilder()
    return b.function(build(b, b.input("x", SHAPE)), attrs={"private": True})


@pytest.mark.parametrize("entry_functions", [None, ["main"]])
def test_dataflow_inside_branch(entry_functions):
    """Matches are found before, after and inside a branch, never across its border; equal groups are one composite."""
    same = branch(lambda b, x: b.op("nn.relu", conv(b, x)))
    other = branch(lambda b, x: b.op("nn.gelu", conv(b, b.op("nn.relu", x))))
    before = branches(then=same, otherwise=other)
    after = verify(FuseOpsByPattern([CONV_RELU], annotate_codegen=True, entry_functions=entry_functions)(before))
    assert outside(after) == ["-", "if", "-"]
    assert outside(after, "then") == ["-"]
    assert outside(after, "otherwise") == ["nn.relu", "nn.conv2d", "nn.gelu"]
    assert len([f for f in after.graph_functions().values() if "Codegen" in f.attrs]) == 1
    for choice in (True, False):
        assert_same_meaning(before, after, [np.ones(SHAPE, np.float32), np.array(choice)])


def test_a_value_that_a_branch_reads_too_leaks():
    """A branch reads its operands whether it uses them or not: the convolution is needed outside the group."""
    b = FunctionBuilder()
    x, flag = b.input("x", SHAPE), b.input("flag", (), "bool")
    made = conv(b, x)
    chosen = b.if_(flag, "then", "otherwise", [made], x.type)
    functions = {name: branch(lambda b, x, op=op: b.op(op, x)) for name, op in (("then", "exp"), ("otherwise", "tanh"))}
    module = verify(IRModule({"main": b.function(b.op("nn.relu", made), chosen), **functions}))
    recorder = Recorder()
    assert FuseOpsByPattern([CONV_RELU], recorder=recorder)(module) is module
    assert [declined.code for declined in recorder.list_declined_matches()] == ["leaking-intermediate"]


# --- test_fuse_pytorch_conv2d_bias_pattern.py: a bias that is reshaped before it is added -----------------------------
BIAS = np.arange(4, dtype=np.float32)


def conv_bias(allow_reshape: bool):
    bias = wildcard()
    return ("dnnl.conv2d_bias", is_op("add")(CONV, is_op("reshape")(bias) | bias if allow_reshape else is_const()))


def with_bias(b, x, bias_shape=(1, 4, 1, 1)):
    return b.op("add", conv(b, x), b.op("reshape", Constant(BIAS), shape=bias_shape))


def test_conv2d_bias_reshape_fused():
    after = fused(module_of(with_bias), [conv_bias(allow_reshape=True)])
    assert composites(after) == {"dnnl.conv2d_bias": ("nn.conv2d", "reshape", "add")}


def test_conv2d_bias_reshape_not_fused_without_allow_reshape():
    module = module_of(with_bias)
    assert FuseOpsByPattern([conv_bias(allow_reshape=False)])(module) is module


def test_conv2d_bias_reshape_that_is_no_bias():
    """Whether what is added is a bias is for the check to say."""

    def is_bias(match: Match) -> Accept | Decline:
        shape = match["bias"].tensor_type.shape
        return Accept() if shape == (1, 4, 1, 1) else Decline("bias", f"{shape} is no bias")

    pattern = is_op("add")(CONV, is_op("reshape")(wildcard()).capture("bias"))
    rows = Constant(np.ones(6, np.float32))
    module = module_of(lambda b, x: b.op("add", conv(b, x), b.op("reshape", rows, shape=(1, 1, 6, 1))))
    assert FuseOpsByPattern([FusionPattern("dnnl.conv2d_bias", pattern, is_bias)])(module) is module


SCENARIOS = {
    "FuseOpsByPattern: partition_conv2d_relu": test_partition_conv2d_relu,
    "FuseOpsByPattern: partition_multiple_patterns": test_partition_multiple_patterns,
    "FuseOpsByPattern: partition_order": test_partition_order,
    "FuseOpsByPattern: branch_tuple_output": test_branch_tuple_output,
    "FuseOpsByPattern: cyclic_dependency": test_cyclic_dependency,
    "FuseOpsByPattern: bind_params": test_bind_params,
    "FuseOpsByPattern: annotate_codegen": test_annotate_codegen,
    "FuseOpsByPattern: no_op_if_no_patterns_match_1": test_no_op_if_no_patterns_match_1,
    "FuseOpsByPattern: no_op_if_no_patterns_match_2": test_no_op_if_no_patterns_match_2,
    "FuseOpsByPattern: unmatched_calls_may_include_lambda_functions_1": test_unmatched_calls_may_include_lambda_functions_1,
    "FuseOpsByPattern: unmatched_calls_may_include_lambda_functions_2": test_unmatched_calls_may_include_lambda_functions_2,
    "FuseOpsByPattern: compare_with_merge_composite_path": test_compare_with_merge_composite_path,
    "FuseOpsByPattern: multiple_entries_multiple_calls_same_extern": test_multiple_entries_multiple_calls_same_extern,
    "FuseOpsByPattern: ignore_call_tir": test_ignore_call_tir,
    "FuseOpsByPattern: unused": test_unused,
    "FuseOpsByPattern: check_pattern": test_check_pattern,
    "FuseOpsByPattern: bind_constants": test_bind_constants,
    "FuseOpsByPattern: split": test_split,
    "FuseOpsByPattern: clip": test_clip,
    "FuseOpsByPattern: concat": test_concat,
    "FuseOpsByPattern: matmul_add3": test_matmul_add3,
    "FuseOpsByPattern: intermediate_var_to_var_binding": test_intermediate_var_to_var_binding,
    "FuseOpsByPattern: multple_runs": test_multple_runs,
    "FuseOpsByPattern: error_on_repeated_variable_definitions": test_error_on_repeated_variable_definitions,
    "FuseOpsByPattern: matmul_symbolic_var": test_matmul_symbolic_var,
    "FuseOpsByPattern: match_maximal_subgraph": test_match_maximal_subgraph,
    "FuseOpsByPattern: dataflow_inside_branch": test_dataflow_inside_branch,
    "FuseOpsByPattern: unique_boundary_output_precedes_last_group_binding": test_unique_boundary_output_precedes_last_group_binding,
    "FuseOpsByPattern: inline_bound_static_shape_argument": test_inline_bound_static_shape_argument,
    "FuseOpsByPattern: pytorch conv2d bias, allow_reshape": test_conv2d_bias_reshape_fused,
    "FuseOpsByPattern: pytorch conv2d bias, compared without allow_reshape": test_conv2d_bias_reshape_not_fused_without_allow_reshape,
    "FuseOpsByPattern: pytorch conv2d bias, not fusable": test_conv2d_bias_reshape_that_is_no_bias,
    "FuseOpsByPattern: a cyclic match fails alone (defect of TVM)": test_cyclic_dependency,
    "FuseOpsByPattern: a module that is legalized already (defect of TVM)": (
        test_a_legalized_module_is_told_apart_from_one_without_matches
    ),
    "FuseOpsByPattern: a check that raises (defect of TVM)": test_check_that_raises,
    "FuseOpsByPattern: cublas and cublaslt (defect of TVM)": test_annotate_codegen_takes_the_backend_before_the_dot_only,
}
