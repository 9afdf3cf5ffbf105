"""The reference interpreter: functions, tuples, symbols, calls of what is no operator, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.errors import ExecutionError, InputNameError, InputShapeError, InputTypeError, ShapeError
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    ExternFunc,
    Function,
    FunctionBuilder,
    GlobalVar,
    IRModule,
    TensorType,
    Tuple,
    TupleType,
    Var,
    get_op,
)
from kernelyard.ops.interpreter import run
from kernelyard.ops.reference_runtime import ReferenceModule
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.tir import Axis, Buffer, ComputeBlock, IterVar, Load, PrimFunc, Unary

n = dims.symbol("n")
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 3


def module_of(build: Any, *shape: Any) -> IRModule:
    builder = FunctionBuilder()
    results = build(builder, builder.input("x", shape))
    return IRModule({"main": builder.function(*(results if isinstance(results, tuple) else (results,)))})


def test_several_results_and_tuple_fields() -> None:
    def build(b: FunctionBuilder, x: Var) -> tuple[Var, ...]:
        parts = b.op("split", x, axis=1, sections=(1, 2))
        return b.get(parts, 0), b.op("nn.relu", b.get(parts, 1)), x

    first, second, same = run(module_of(build, 2, 3), [X])
    assert first.tolist() == [[-3], [0]]
    assert second.tolist() == [[0, 0], [1, 2]]
    assert same.tolist() == X.tolist()


def test_constants_and_bound_tuples_are_results_too() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2,))
    pair = b.tuple(x, Constant(np.int64([4])))
    module = IRModule({"main": Function(b.params, b.bindings, Tuple([b.get(pair, 1), Constant(np.float32(2))]))})
    assert [array.tolist() for array in run(module, [np.zeros(2, np.float32)])] == [[4], 2.0]
    whole = IRModule({"main": Function(b.params, b.bindings, pair)})
    assert [array.tolist() for array in run(whole, [np.ones(2, np.float32)])] == [[1, 1], [4]]


def test_inputs_by_name() -> None:
    b = FunctionBuilder()
    difference = b.op("subtract", b.input("a", (2,)), b.input("b", (2,)))
    module = IRModule({"main": b.function(difference, attrs={"input_names": ("left:0", "right:0")})})
    feeds = {"right:0": np.ones(2, np.float32), "left:0": np.zeros(2, np.float32)}
    assert run(module, feeds)[0].tolist() == [-1, -1]
    with pytest.raises(InputNameError, match="wrong input names"):
        run(module, {"a": feeds["left:0"], "b": feeds["right:0"]})


def test_symbols_are_read_off_the_inputs_and_reach_attributes() -> None:
    def build(b: FunctionBuilder, x: Var) -> tuple[Var, ...]:
        return b.op("reshape", x, shape=(n * 3,)), b.op("shape_tensor", dims=(n, n * 3)), b.op("arange", count=n)

    flat, sizes, counted = run(module_of(build, n, 3), [X])
    assert flat.shape == (6,)
    assert sizes.tolist() == [2, 6]
    assert counted.tolist() == [0, 1]


def test_a_called_function_shares_its_callers_symbols() -> None:
    inner = FunctionBuilder()
    rows = inner.input("rows", (n * 2, 3))
    body = inner.function(inner.op("reshape", rows, shape=(n, 6)), attrs={"Composite": "acme.pair"})
    outer = FunctionBuilder()
    x = outer.input("x", (n, 3))
    doubled = outer.op("concat", x, x, axis=0)
    result = outer.call_function("pair", [doubled], TensorType((n, 6), "float32"))
    module = IRModule({"main": outer.function(result), "pair": body})
    assert run(module, [X])[0].tolist() == np.concatenate([X, X]).reshape(2, 6).tolist()


def test_calls_of_attached_runtime_modules() -> None:
    x = Var("x", TensorType((n, 3), "float32"))
    inner = Call(get_op("split"), [x], {"axis": 1, "sections": (1, 2)})
    external = ReferenceModule.from_calls({"acme_0": inner, "acme_1": Call(get_op("tile"), [x], {"repeats": (1, 2)})})
    b = FunctionBuilder()
    given = b.parameter(x.type, "x")
    parts = b.call(get_op("call_dps_packed"), [ExternFunc("acme_0"), given], inner.type)
    tiled = b.call(get_op("call_dps_packed"), [ExternFunc("acme_1"), given], TensorType((n, 6), "float32"))
    module = IRModule({"main": b.function(b.get(parts, 1), tiled)}, {"external_modules": (external,)})
    second, twice = run(module, [X])
    assert second.tolist() == X[:, 1:].tolist()
    assert twice.tolist() == np.tile(X, (1, 2)).tolist()
    with pytest.raises(ExecutionError, match="no attached module has the function 'acme_0'"):
        run(module.with_attrs(external_modules=()), [X])


def test_calls_of_loop_level_functions() -> None:
    source, target = Buffer("x", (n, 3), "float32"), Buffer("y", (n, 3), "float32")
    indices = (Axis("i"), Axis("j"))
    axes = (IterVar("i", n, "spatial"), IterVar("j", 3, "spatial"))
    block = ComputeBlock("negate", axes, target, indices, Unary("neg", Load(source, indices)))
    kernel = PrimFunc((source, target), (block,))
    b = FunctionBuilder()
    x = b.input("x", (n, 3))
    result = b.call(get_op("call_tir"), [GlobalVar("negate"), x], x.type)
    module = IRModule({"main": b.function(result), "negate": kernel})
    assert run(module, [X])[0].tolist() == (-X).tolist()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ExecutionError, "wrong number of inputs"),
        ([X.astype(np.float64)], InputTypeError, "wrong dtype"),
        ([X.reshape(-1)], InputShapeError, "wrong rank"),
        ([X.reshape(3, 2)], InputShapeError, "axis 1 has the wrong size"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[np.ndarray], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(module_of(lambda b, x: b.op("abs", x), n, 3), inputs)


def test_an_error_names_the_node_it_happened_at() -> None:
    module = module_of(lambda b, x: b.op("take", x, np.int64([7]), origin="node 'Gather_3' (Gather)"), 2, 3)
    with pytest.raises(ExecutionError, match="take cannot be computed") as caught:
        run(module, [X])
    assert caught.value.where == "node 'Gather_3' (Gather)"


def test_sizes_that_only_seemed_equal_are_found() -> None:
    m = dims.symbol("m")
    b = FunctionBuilder()
    joined = b.op("add", b.input("x", (n,)), b.input("y", (m,)))
    module = IRModule({"main": b.function(joined)})
    assert run(module, [np.ones(3, np.float32), np.ones(1, np.float32)])[0].shape == (3,)
    with pytest.raises((ShapeError, ExecutionError)):
        run(module, [np.ones(3, np.float32), np.ones(2, np.float32)])


def test_a_value_lives_until_its_last_use() -> None:
    def build(b: FunctionBuilder, x: Var) -> Var:
        early = b.op("abs", x)
        late = b.op("negative", early)
        unused = b.op("exp", late)
        assert unused is not late
        return b.op("add", b.op("add", early, late), x)

    assert run(module_of(build, 2, 3), [X])[0].tolist() == X.tolist()


def test_a_call_whose_stated_type_is_wrong_is_found() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2, 3))
    wrong = Function(b.params, [Binding(y := Var("y", TensorType((2, 3), "float32")), _lying_call(x))], y)
    with pytest.raises(ExecutionError, match="computed a result that does not match its type"):
        run(IRModule({"main": wrong}), [X])


def _lying_call(x: Var) -> Call:
    call = Call(get_op("reshape"), [x], {"shape": (6,)})
    call.type = TensorType((2, 3), "float32")
    return call


@settings(max_examples=60, deadline=None)
@given(modules(symbolic=True))
def test_random_modules_give_what_their_types_say(program: RandomProgram) -> None:
    outputs = run(program.module, program.inputs)
    main = program.module["main"]
    assert isinstance(main, Function)
    fields = main.result_type.fields if isinstance(main.result_type, TupleType) else (main.result_type,)
    assert len(outputs) == len(fields)
    assert all(np.isfinite(output).all() for output in outputs)
