"""LegalizeOps: op calls become calls of loop-level functions."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from kernelyard import dims
from kernelyard.ir import Binding, Call, Function, FunctionBuilder, GlobalVar, IRModule, TensorType, Var, get_op, verify
from kernelyard.legalize import Rule
from kernelyard.legalize.registry import Operand, RuleBuilder
from kernelyard.ops.interpreter import run
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.lowering.annotate_tir_op_pattern import AnnotateTIROpPattern
from kernelyard.transform.lowering.legalize_ops import LegalizeOps


def legalized(builder: FunctionBuilder, *results, **options) -> IRModule:
    module = LegalizeOps(**options)(IRModule({"main": builder.function(*results)}))
    verify(module)
    return module


def calls(module: IRModule, function: str = "main") -> list[str]:
    return [b.value.op_name for b in module.graph_functions()[function].bindings if isinstance(b.value, Call)]


def primfuncs(module: IRModule) -> dict[str, PrimFunc]:
    return {name: f for name, f in module.functions.items() if isinstance(f, PrimFunc)}


def test_ops_become_call_tir_and_views_stay():
    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    module = legalized(b, b.op("nn.relu", b.op("reshape", b.op("exp", x), shape=(3, 4))))
    assert calls(module) == ["call_tir", "reshape", "call_tir"]
    assert list(primfuncs(module)) == ["exp", "relu"]


def test_skipped_ops_stay():
    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    assert calls(legalized(b, b.op("tanh", b.op("exp", x)), skip=("exp",))) == ["exp", "call_tir"]


def test_equal_calls_share_one_function():
    b = FunctionBuilder()
    y = b.input("x", (2, 6))
    for _ in range(5):
        y = b.op("tanh", y)
    z = b.op("tanh", b.op("strided_slice", y, axes=(1,), begin=(0,), end=(3,), strides=(1,)))
    assert list(primfuncs(legalized(b, z))) == ["tanh", "strided_slice", "tanh_1"]


def test_constants_of_one_element_become_literals():
    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    module = legalized(b, b.op("add", b.op("add", x, 2.0), np.full((1, 1), 3, np.float32)))
    assert len(primfuncs(module)) == 2, "different literals make different functions"
    for function in primfuncs(module).values():
        assert len(function.inputs) == 1
    (found,) = run(module, [np.zeros((2, 6), np.float32)])
    assert (found == 5).all()


def test_a_rule_of_ones_own():
    def doubled(b: RuleBuilder, x: Operand):
        return b.compute(x.shape, lambda *at: x[at] * 2)

    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    module = legalized(b, b.op("exp", x), rules={"exp": Rule(doubled, widen=False)})
    np.testing.assert_array_equal(run(module, [np.ones((2, 6), np.float32)])[0], 2)


def test_several_outputs_are_a_tuple():
    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    parts = b.op("split", x, axis=1, sections=(2, 4))
    module = legalized(b, b.get(parts, 0), b.get(parts, 1))
    array = np.arange(12, dtype=np.float32).reshape(2, 6)
    left, right = run(module, [array])
    np.testing.assert_array_equal(left, array[:, :2])
    np.testing.assert_array_equal(right, array[:, 2:])


def test_a_tuple_of_one_field():
    b = FunctionBuilder()
    x = b.input("x", (2, 6))
    module = legalized(b, b.get(b.op("split", x, axis=1, sections=(6,)), 0))
    array = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(run(module, [array])[0], array)


def test_what_a_backend_took_is_left_alone():
    type_ = TensorType((2,), "float32")
    p, q = Var("p", type_), Var("q", type_)
    inner = Function([p], [Binding(q, Call(get_op("exp"), [p]))], q, {"Composite": "acme.exp"})
    b = FunctionBuilder()
    y = b.op("tanh", b.bind(Call(GlobalVar("part"), [b.input("x", (2,))], type_=type_)))
    module = LegalizeOps()(IRModule({"main": b.function(y), "part": inner}))
    assert calls(module, "part") == ["exp"]
    assert calls(module) == ["part", "call_tir"]


def test_symbols_that_no_input_has():
    b = FunctionBuilder()
    n = dims.symbol("n")
    x = b.input("x", (n, 2))
    module = legalized(b, b.op("exp", x), b.op("shape_tensor", dims=(n * 2, 5)))
    (function,) = [f for f in primfuncs(module).values() if f.attrs["ops"] == ("shape_tensor",)]
    assert function.symbols == ("n",)
    assert run(module, [np.zeros((3, 2), np.float32)])[1].tolist() == [6, 5]


def test_kinds_are_annotated_once():
    b = FunctionBuilder()
    x, w = b.input("x", (4, 8)), np.ones((8, 8), np.float32)
    row = b.op("add", b.op("matmul", b.op("exp", x), w), np.ones(8, np.float32))
    y = b.op("nn.softmax", b.op("permute_dims", row, axes=(1, 0)), axis=1)
    module = AnnotateTIROpPattern()(legalized(b, b.op("concat", y, y, axis=0)))
    kinds = {name: function.attrs["op_pattern"] for name, function in primfuncs(module).items()}
    assert kinds == {
        "exp": "elementwise",
        "matmul": "out_elementwise_fusable",
        "add": "broadcast",
        "permute_dims": "injective",
        "softmax": "reduction",
        "concat": "opaque",
    }
    assert AnnotateTIROpPattern()(module).functions == module.functions


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=modules(max_ops=8, symbolic=True))
def test_legalization_keeps_the_meaning(program: RandomProgram):
    module = LegalizeOps()(program.module)
    verify(module)
    for found, expected in zip(run(module, program.inputs), run(program.module, program.inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_layers_of_different_scales_share_kernels():
    b = FunctionBuilder()
    y = b.input("x", (2, 6))
    for scale in (0.5, 0.25, 0.125):
        parameters = np.float32(scale), np.uint8(7)
        y = b.op("dequantize", b.op("quantize", y, *parameters, dtype="uint8"), *parameters)
    module = legalized(b, y)
    assert set(primfuncs(module)) == {"quantize", "dequantize"}
    np.testing.assert_array_equal(run(module, [np.ones((2, 6), np.float32)])[0], np.ones((2, 6)))


def test_a_zero_point_of_zero_is_left_out():
    b = FunctionBuilder()
    x = b.parameter(TensorType((2, 6), "int8"), "x")
    module = legalized(b, b.op("dequantize", x, np.float32(0.5), np.int8(0)))
    assert len(primfuncs(module)["dequantize"].inputs) == 2
