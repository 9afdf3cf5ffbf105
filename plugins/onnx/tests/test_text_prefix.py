"""Models whose inputs are text: one program for all texts, behind what NumPy does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernelyard_onnx import text_prefix
from kernelyard_onnx.session import Session
from kernelyard_onnx.text_counts import merge_counts
from kernelyard_onnx.text_prefix import TextPrefix, cut_text

TEXTS = np.array([["red"], ["green"], ["no colour"], ["blue"], [""]], object)


def model_of(
    nodes: list[onnx.NodeProto], columns: int = 1, weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """Return a model of rows of text."""
    info = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", columns])
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "text", [info], [onnx.ValueInfoProto(name="y")], initializers)
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def learning(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], domain="ai.onnx.ml", **attributes)


COLOURS = ["red", "green", "blue"]
CODES = learning(
    "LabelEncoder", ["x"], "codes", keys_strings=COLOURS, values_floats=[1.0, 2.0, 3.0], default_float=-1.0
)
ONE_HOT = learning("OneHotEncoder", ["x"], "rows", cats_strings=COLOURS)
MAPPED = learning("CategoryMapper", ["x"], "y", cats_strings=COLOURS, cats_int64s=[7, 8, 9], default_int64=-5)


@pytest.mark.parametrize(
    "nodes",
    [
        [CODES, helper.make_node("Neg", ["codes"], ["y"])],
        [ONE_HOT, helper.make_node("ReduceSum", ["rows"], ["y"], keepdims=0)],
        [MAPPED],
        [
            CODES,
            ONE_HOT,
            helper.make_node("ReduceMax", ["rows"], ["flat"], axes=[1], keepdims=0),
            helper.make_node("Mul", ["flat", "codes"], ["y"]),
        ],
    ],
    ids=["labels", "one hot", "categories", "twice"],
)
def test_one_program_serves_all_texts(nodes):
    model = model_of(nodes)
    session = Session(model)
    assert session.executable is not None or not nodes[1:]
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    for texts in (TEXTS, TEXTS[:2], TEXTS[::-1].repeat(3, 0)):
        (right,), (found,) = theirs.run(None, {"x": texts}), session.run({"x": texts})
        np.testing.assert_array_equal(found, right)


WORDS = np.array([["A red, red rose"], ["green grass; and a rose"], [""], ["nothing known"]], object)


def counting(mode: str, **more: Any) -> list[onnx.NodeProto]:
    """Return the nodes that skl2onnx writes for TfidfVectorizer."""
    return [
        helper.make_node("Flatten", ["x"], ["flat"], axis=0),
        helper.make_node("Reshape", ["flat", "shape"], ["row"]),
        helper.make_node("StringNormalizer", ["row"], ["small"], case_change_action="LOWER", locale="C"),
        helper.make_node(
            *("Tokenizer", ["small"], ["words"]),
            domain="com.microsoft",
            mark=0,
            mincharnum=1,
            pad_value="#",
            tokenexp="[a-z]+",
        ),
        helper.make_node(
            *("TfIdfVectorizer", ["words"], ["y"]),
            mode=mode,
            max_gram_length=1,
            min_gram_length=1,
            max_skip_count=0,
            ngram_counts=[0],
            ngram_indexes=[2, 0, 1],
            pool_strings=["red", "rose", "grass"],
            **more,
        ),
    ]


@pytest.mark.parametrize(
    ("mode", "more"), [("TF", {}), ("IDF", {"weights": [1.0, 2, 3]}), ("TFIDF", {"weights": [1.0, 2, 3]})]
)
def test_words_are_counted(mode, more):
    model = model_of(counting(mode, **more), weights={"shape": np.array([-1])})
    assert cut_text(model) is not None
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": WORDS})
    (found,) = Session(model).run({"x": WORDS})
    np.testing.assert_allclose(found, right)


def unmerged(model: onnx.ModelProto) -> TextPrefix:
    """Return the prefix of a model whose steps are taken one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_prefix, "merge_counts", lambda steps, results: tuple(steps))
        return prefix_of(model)


def prefix_of(model: onnx.ModelProto) -> TextPrefix:
    cut = cut_text(model)
    assert cut is not None
    return cut[0]


def counting_by(expression: str, case: str | None, least: int, pool: list[str], axis: int | None) -> onnx.ModelProto:
    """Return a model that counts words of two columns of text."""
    nodes = []
    if case is not None:
        nodes = [helper.make_node("StringNormalizer", ["x"], ["small"], case_change_action=case, locale="C")]
    tokenize = helper.make_node("Tokenizer", ["small" if nodes else "x"], ["words"], domain="com.microsoft")
    facts = {"mark": 0, "mincharnum": least, "pad_value": "#", "tokenexp": expression}
    tokenize.attribute.extend([helper.make_attribute(name, value) for name, value in facts.items()])
    count = helper.make_node("TfIdfVectorizer", ["flat" if axis else "words"], ["y"], mode="TF", pool_strings=pool)
    numbers = {"max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0}
    lists = {"ngram_counts": [0], "ngram_indexes": list(range(len(pool)))}
    count.attribute.extend([helper.make_attribute(name, value) for name, value in {**numbers, **lists}.items()])
    flat = [helper.make_node("Flatten", ["words"], ["flat"], axis=axis)] if axis else []
    return model_of([*nodes, tokenize, *flat, count], columns=2)


LETTERS = st.text("aAbB_1 .\n#äßİ", max_size=12)


@given(
    st.lists(st.tuples(LETTERS, LETTERS), min_size=1, max_size=4),
    st.sampled_from(["[a-z]+", "[A-Za-z0-9_]+", r"\w+", r"[^ \n]+", r"[\]a]+", "[a-z ]+", r"\b\w\w+\b"]),
    st.sampled_from([None, "LOWER", "UPPER", "NONE"]),
    st.integers(1, 2),
    st.lists(st.sampled_from(["a", "ab", "aa", "A", "B_1", "#", "b b"]), min_size=1, unique=True),
    st.sampled_from([None, 1]),
)
def test_merged_steps_count_as_those_that_they_replace(rows, expression, case, least, pool, axis):
    model, texts = counting_by(expression, case, least, pool, axis), np.array(rows, object)
    right, found = unmerged(model).run({"x": texts})["y"], prefix_of(model).run({"x": texts})["y"]
    np.testing.assert_array_equal(found, right, strict=True)


@pytest.mark.parametrize(
    ("expression", "pool", "count"),
    [("[a-z]+", ["a"], 1), ("[a-z ]+", ["a"], 4), (r"\b[a-z]+", ["a"], 4), ("[a-z]+", ["a", "#"], 4)],
    ids=["runs of letters", "tokens with spaces", "another expression", "what fills rows up is counted"],
)
def test_what_can_be_merged_is_one_step(expression, pool, count):
    assert len(prefix_of(counting_by(expression, "LOWER", 1, pool, 1)).steps) == count


def test_words_that_others_read_are_made():
    prefix = unmerged(counting_by("[a-z]+", "LOWER", 1, ["a"], 1))
    assert len(merge_counts(prefix.steps, prefix.outputs)) == 1
    assert merge_counts(prefix.steps, [*prefix.outputs, "words"]) == prefix.steps
    other = (("words",), "other", lambda x: x)
    assert merge_counts((*prefix.steps, other), prefix.outputs) == (*prefix.steps, other)


def test_what_is_no_step_is_compiled_for_the_text():
    """Text that is a result cannot be cut off."""
    model = model_of([helper.make_node("Identity", ["x"], ["y"])])
    assert cut_text(model) is None
    assert Session(model).run({"x": TEXTS})[0].tolist() == TEXTS.tolist()


VOCABULARY = {"string_vocabulary": ["b", "a", "z"]}
NUMBERS = {"int64_vocabulary": [4, 2]}


FLOAT, I64, DOUBLE, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.STRING
# (operator, types of keys and values, attributes, a map and its row)
MAPS: list[tuple[str, int, int, dict[str, Any], dict[Any, Any], np.ndarray]] = [
    ("DictVectorizer", STRING, FLOAT, VOCABULARY, {"a": 1.5, "b": 2.5, "q": 3.0}, np.float32([[2.5, 1.5, 0]])),
    ("DictVectorizer", STRING, I64, VOCABULARY, {"a": 1}, np.array([[0, 1, 0]])),
    ("DictVectorizer", I64, DOUBLE, NUMBERS, {4: 1.5, 9: 2.5}, np.array([[1.5, 0]])),
    ("CastMap", I64, FLOAT, {}, {4: 1.5, 2: 2.5}, np.float32([[2.5, 1.5]])),
    ("CastMap", I64, FLOAT, {"cast_to": "TO_INT64"}, {4: 1.5, 2: 2.5}, np.array([[2, 1]])),
    ("CastMap", I64, FLOAT, {"map_form": "SPARSE", "max_map": 4}, {3: 1.5, 1: 2.5}, np.float32([[0, 2.5, 0, 1.5]])),
    ("CastMap", I64, STRING, {}, {4: "1.5", 2: "2"}, np.float32([[2, 1.5]])),
]


@pytest.mark.parametrize(("op", "key", "value", "attributes", "given", "row"), MAPS)
def test_maps_become_tensors(
    op: str, key: int, value: int, attributes: dict[str, Any], given: dict[Any, Any], row: np.ndarray
) -> None:
    """One program serves all maps. Maps of floats, the only ones that onnxruntime takes here, are compared with it."""
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    nodes = [learning(op, ["x"], "row", **attributes), helper.make_node("Add", ["row", "row"], ["y"])]
    graph = helper.make_graph(nodes, "map", [helper.make_value_info("x", kind)], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    ours = Session(model, [])
    assert ours.executable is not None
    (found,) = ours.run({"x": given})
    assert found.dtype == row.dtype
    np.testing.assert_array_equal(found, 2 * row)
    if value == FLOAT:
        theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(found, theirs.run(None, {"x": given})[0])
