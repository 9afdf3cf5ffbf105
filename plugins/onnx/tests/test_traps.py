"""What exporters do that a reader of the specification would not expect."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernelyard.dims import SymbolicDim, as_symbol, symbol
from kernelyard.errors import FrontendError, ModelFormatError, UnsupportedOperatorError
from kernelyard.ir import Call, Constant
from kernelyard.ir.parser import parse_module
from kernelyard.ir.printer import to_text
from kernelyard_onnx.frontend import ONNXFrontend


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def node(op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs or ["y"], **attrs)


def ops_of(main) -> list[str]:
    return [binding.value.op_name for binding in main.bindings if isinstance(binding.value, Call)]


# --- inputs -----------------------------------------------------------------------------------------------------------
def test_weights_in_constant_nodes(make, agree) -> None:
    weight = numpy_helper.from_array(f(4, 3, 3, 3))
    model = make([node("Constant", [], ["w"], value=weight), node("Conv", ["x", "w"])], {"x": f(1, 3, 5, 5)})
    main = agree(model, {"x": f(1, 3, 5, 5)})
    assert ops_of(main) == ["nn.conv2d"]
    assert isinstance(main.bindings[0].value.args[1], Constant)


@pytest.mark.parametrize("value", [{"value_float": 2.0}, {"value_floats": [1.0, 2.0, 3.0]}])
def test_constants_given_as_numbers(value, make, agree) -> None:
    agree(make([node("Constant", [], ["c"], **value), node("Mul", ["x", "c"])], {"x": f(2, 3)}), {"x": f(2, 3)})


def test_weights_that_are_also_inputs(make, import_main) -> None:
    model = make([node("Add", ["x", "w"])], {"x": f(2, 3), "w": f(3)}, weights={"w": f(3)})
    main = import_main(model)
    assert main.attrs["input_names"] == ("x",)
    assert [param.name for param in main.params] == ["x"]


@pytest.mark.parametrize("label", [-1, "?", None, "", "-1", "None"])
def test_anonymous_sizes_are_all_different(label, make, import_main) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2, 3, 4)}, shapes={"x": [label, 3, label]})
    if label == -1:
        for axis in (0, 2):
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = -1
    first, channels, last = import_main(model).params[0].tensor_type.shape
    assert channels == 3
    assert as_symbol(first)
    assert as_symbol(last)
    assert first != last


def test_equal_labels_are_one_symbol(make, import_main) -> None:
    shapes = {"a": ["batch", "seq"], "b": ["batch", 1]}
    main = import_main(make([node("Add", ["a", "b"])], {"a": f(2, 3), "b": f(2, 1)}, shapes=shapes))
    assert main.result_type.shape == (symbol("batch"), symbol("seq"))


def test_labels_that_are_no_identifiers(make, import_main) -> None:
    shapes = {"x": ["2*n", "2n", "max", "a b", "a_b"]}
    main = import_main(make([node("Relu", ["x"])], {"x": f(1, 2, 3, 4, 5)}, shapes=shapes))
    names = [as_symbol(dim) for dim in main.params[0].tensor_type.shape]
    assert len(set(names)) == 5
    assert all(name and name.replace(".", "_").isidentifier() for name in names)


def test_inputs_of_rank_0_and_of_size_0(make, agree) -> None:
    model = make([node("Mul", ["x", "s"])], {"x": f(0, 3), "s": np.float32(2).reshape(())})
    agree(model, {"x": f(0, 3), "s": np.array(2, np.float32)})


def test_names_with_odd_characters(make, agree) -> None:
    name, out = "serving default:0;[x]", 'Stateful"Call/é:1'
    model = make([node("Relu", [name], [out])], {name: f(2, 3)}, [out])
    main = agree(model, {name: f(2, 3)})
    assert main.params[0].name == name
    assert main.attrs["output_names"] == (out,)
    module = ONNXFrontend().import_model(model, {})
    assert to_text(parse_module(to_text(module))) == to_text(module)


def test_two_inputs_of_one_name_are_refused(make, import_main) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2)})
    model.graph.input.add().CopyFrom(model.graph.input[0])
    with pytest.raises(ModelFormatError, match="two graph inputs are called 'x'"):
        import_main(model)


def test_an_input_without_rank_needs_the_option(make, import_main) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2, 3)})
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelFormatError, match="no declared rank"):
        import_main(model)
    shape = import_main(model, shapes={"x": (2, None)}).params[0].tensor_type.shape
    assert shape[0] == 2
    assert isinstance(shape[1], SymbolicDim)


@pytest.mark.parametrize("elem_type", [TensorProto.COMPLEX64, TensorProto.COMPLEX128, 99])
def test_inputs_of_other_element_types(elem_type, make, import_main) -> None:
    model = make([node("Identity", ["x"])], {"x": f(2)})
    model.graph.input[0].type.tensor_type.elem_type = elem_type
    with pytest.raises(UnsupportedOperatorError, match="element type"):
        import_main(model)


def test_an_input_that_is_text_must_be_given(make, import_main) -> None:
    model = make([node("Identity", ["x"])], {"x": f(2)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UnsupportedOperatorError, match="not a tensor of numbers"):
        import_main(model)


# --- outputs ----------------------------------------------------------------------------------------------------------
def test_wrong_declared_output_shapes_are_not_believed(make, import_main) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2, 3)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT8, [7, "k", 9]))
    result = import_main(model).result_type
    assert (result.shape, result.dtype) == ((2, 3), "float32")


def test_outputs_that_are_inputs_constants_or_the_same_value(make, agree) -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Relu", ["x"], ["b"]), node("Identity", ["b"], ["c"])]
    model = make(nodes, {"x": f(2, 3)}, ["a", "b", "c", "w"], weights={"w": f(4)})
    main = agree(model, {"x": f(2, 3)})
    assert ops_of(main) == ["nn.relu"]


def test_chains_of_identities_vanish(make, agree) -> None:
    nodes = [node("Identity", [f"v{i}"], [f"v{i + 1}"]) for i in range(140)]
    model = make([*nodes, node("Dropout", ["v140"], ["z"]), node("Abs", ["z"])], {"v0": f(2)})
    assert ops_of(agree(model, {"v0": f(2)})) == ["abs"]


def test_a_missing_output_is_named(make, import_main) -> None:
    with pytest.raises(ModelFormatError, match="no node produces the output 'nowhere'"):
        import_main(make([node("Relu", ["x"])], {"x": f(2)}, ["nowhere"]))


# --- the model around the graph -----------------------------------------------------------------------------------------
def test_unused_opset_imports(make, agree) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2)})
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    agree(model, {"x": f(2)})


def test_the_standard_domain_has_two_spellings(make, import_main) -> None:
    model = make([node("Relu", ["x"], domain="ai.onnx")], {"x": f(2)})
    model.opset_import[0].domain = "ai.onnx"
    assert ops_of(import_main(model)) == ["nn.relu"]


def test_metadata_is_kept(make) -> None:
    model = make([node("Relu", ["x"])], {"x": f(2)})
    entry = model.metadata_props.add()
    entry.key, entry.value = "character", "a\nb\n "
    assert ONNXFrontend().import_model(model, {}).attrs["metadata"] == {"character": "a\nb\n "}


def test_nodes_in_any_order(make, import_main) -> None:
    nodes = [node("Abs", ["b"]), node("Exp", ["a"], ["b"]), node("Relu", ["x"], ["a"])]
    assert ops_of(import_main(make(nodes, {"x": f(2)}))) == ["nn.relu", "exp", "abs"]


def test_a_name_that_nothing_produces(make, import_main) -> None:
    with pytest.raises(ModelFormatError, match="reads 'ghost'") as caught:
        import_main(make([node("Add", ["x", "ghost"], name="sum_1")], {"x": f(2)}))
    assert "node 'sum_1' (Add)" in str(caught.value)


def test_two_nodes_of_one_output_are_refused(make, import_main) -> None:
    with pytest.raises(ModelFormatError, match="two nodes produce 'y'"):
        import_main(make([node("Relu", ["x"]), node("Abs", ["x"])], {"x": f(2)}))


def test_a_cycle_is_refused(make, import_main) -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])]
    with pytest.raises(ModelFormatError, match="nothing produces"):
        import_main(make(nodes, {"x": f(2)}))


def test_code_that_nothing_needs_is_left_out(make, import_main) -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Exp", ["x"], ["unused"]), node("Relu", ["x"])]
    assert ops_of(import_main(make(nodes, {"x": f(2)}))) == ["nn.relu"]


def test_origins_name_the_model_nodes(make, import_main) -> None:
    nodes = [node("Relu", ["x"], ["a"], name="first"), node("Abs", ["a"])]
    origins = [binding.var.origin for binding in import_main(make(nodes, {"x": f(2)})).bindings]
    assert origins == ["node 'first' (Relu)", "node that makes 'y' (Abs)"]


def test_optional_inputs_left_out_in_the_middle_and_at_the_end(make, agree) -> None:
    weights = {"hi": np.array(0.5, np.float32), "w": f(4, 3, 1, 1)}
    nodes = [node("Clip", ["x", "", "hi"], ["a"]), node("Conv", ["a", "w", ""])]
    agree(make(nodes, {"x": f(1, 3, 2, 2)}, weights=weights), {"x": f(1, 3, 2, 2)})


def test_sparse_weights(make, import_main) -> None:
    model = make([node("Add", ["x", "w"])], {"x": f(2, 3)})
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.5, 2.5])
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [1, 5])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    weight = import_main(model).bindings[0].value.args[1]
    np.testing.assert_array_equal(weight.data, [[0, 1.5, 0], [0, 0, 2.5]])


def test_weights_are_views_of_the_model(make, import_main) -> None:
    weight = f(64, 64)
    data = make([node("MatMul", ["x", "w"])], {"x": f(2, 64)}, weights={"w": weight}).SerializeToString()
    constant = import_main(data).bindings[0].value.args[1]
    assert not constant.data.flags.owndata
    np.testing.assert_array_equal(constant.data, weight)


# --- sizes that are only known later -----------------------------------------------------------------------------------
def test_a_size_cut_from_a_table_takes_the_name_of_the_whole(make, agree) -> None:
    """Position embeddings: table[:seq] + x. The result has the shape of x, not min(seq, 512)."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Slice", ["table", "zero", "s", "zero"], ["cut"]),
        node("Add", ["x", "cut"]),
    ]
    weights = {"table": f(512, 8), "zero": np.zeros(1, np.int64)}
    model = make(nodes, {"x": f(2, 5, 8)}, weights=weights, shapes={"x": ["batch", "seq", 8]})
    main = agree(model, {"x": f(2, 5, 8)})
    assert main.result_type.shape == (symbol("batch"), symbol("seq"), 8)


def test_sizes_that_meet_after_rounding(make, agree) -> None:
    """A feature pyramid: what was halved twice and doubled once meets what was halved once."""

    def pool(i: str, o: str) -> onnx.NodeProto:
        return node("MaxPool", [i], [o], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")

    nodes = [
        pool("x", "half"),
        pool("half", "quarter"),
        node("Resize", ["quarter", "", "scales"], ["up"], mode="nearest"),
        node("Add", ["half", "up"]),
    ]
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = make(nodes, {"x": f(1, 3, 8, 12)}, weights=weights, shapes={"x": ["n", 3, "h", "w"]})
    shape = agree(model, {"x": f(1, 3, 8, 12)}).result_type.shape
    assert "broadcast" not in str(shape)


def test_options_fix_sizes(make, import_main) -> None:
    shapes = {"a": ["batch", "seq"], "b": ["batch", 1]}
    model = make([node("Add", ["a", "b"])], {"a": f(2, 3), "b": f(2, 1)}, shapes=shapes)
    main = import_main(model, shapes={"a": (4, None)})
    assert main.params[0].tensor_type.shape == (4, symbol("seq"))
    assert main.params[1].tensor_type.shape == (4, 1)  # the same label, so the same size


def test_options_turn_inputs_into_constants(make, import_main) -> None:
    """A sample rate that only decides which branch is taken."""
    branches = {
        name: helper.make_graph([node(op, ["x"], ["b"])], name, [], [onnx.ValueInfoProto(name="b")])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Exp"))
    }
    nodes = [node("Equal", ["rate", "high"], ["c"]), node("If", ["c"], **branches)]
    model = make(nodes, {"x": f(2), "rate": np.array(0)}, weights={"high": np.array(16000)})
    assert "if" in ops_of(import_main(model))
    main = import_main(model, values={"rate": 16000})
    assert ops_of(main) == ["nn.relu"]
    assert main.attrs["input_names"] == ("x",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": {}}, "no option 'shape'"),
        ({"shapes": {"aa": (1, 2)}}, "an input 'aa'"),
        ({"shapes": {"a": (1,)}}, "wrong rank"),
        ({"shapes": {"a": (1, -3)}}, "an invalid size"),
        ({"shapes": {"b": (1, 2)}}, "contradicts"),
        ({"shapes": {"a": (1, 2), "b": (3, 1)}}, "two sizes"),
        ({"values": {"c": 1}}, "an input 'c'"),
        ({"values": {"a": 1.0}}, "does not fit the input 'a'"),
        ({"values": {"a": np.ones((2, 3), complex)}}, "does not fit the input 'a'"),
    ],
)
def test_options_that_make_no_sense(options, message, make, import_main) -> None:
    shapes = {"a": ["batch", "seq"], "b": ["batch", 1]}
    model = make([node("Add", ["a", "b"])], {"a": f(2, 3), "b": f(2, 1)}, shapes=shapes)
    with pytest.raises(FrontendError, match=message):
        import_main(model, **options)
