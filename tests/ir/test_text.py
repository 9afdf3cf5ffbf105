"""The text form: what is printed is parsed back, and what is not the text form is refused with its line."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims, dtypes
from kernelyard.errors import IRError, KernelyardError, ParseError
from kernelyard.ir import (
    BaseFunction,
    Constant,
    FunctionBuilder,
    IRModule,
    TensorType,
    Var,
    parse_module,
    register_function_syntax,
    to_text,
    verify,
)
from kernelyard.ir.printer import LITERAL_LIMIT
from kernelyard.testing.reference import evaluate
from kernelyard.testing.strategies import modules, symbolic_dims

N = dims.symbol("n")


def round_trip(module: IRModule) -> IRModule:
    text = to_text(module)
    again = parse_module(text)
    assert to_text(again) == text
    return verify(again)


def module_of(*results, builder: FunctionBuilder, **attrs) -> IRModule:
    return IRModule({"main": builder.function(*results, attrs=attrs)})


@settings(max_examples=60, deadline=None)
@given(modules(symbolic=True))
def test_random_modules_come_back_with_the_same_meaning(program):
    again = round_trip(program.module)
    for one, other in zip(evaluate(program.module, program.inputs), evaluate(again, program.inputs), strict=True):
        assert one.tobytes() == other.tobytes()


def test_text_of_a_small_module(golden):
    b = FunctionBuilder()
    x = b.input("x", (N, 4))
    y = b.op("add", x, np.float32([1, 2, 3, 0.1]), origin="node 'Add_0' (Add)")
    y = b.op("matmul", y, np.ones((4, 8), np.float32))
    z = b.op("reshape", y, shape=(N, 2, 4))
    parts = b.op("split", z, axis=1, sections=(1, 1))
    first = b.get(parts, 0)
    called = b.call_function("helper 1", [first], first.type)
    inner = FunctionBuilder()
    p = inner.input("p", (N, 1, 4))
    helper = inner.function(inner.op("clip", p, min=0.0), attrs={"Composite": "acme.clip", "limit": 0.5})
    main = b.function(called, z, attrs={"input_names": ("x",)})
    module = IRModule({"main": main, "helper 1": helper}, {"metadata": {"producer": 'a "tool"'}})
    verify(module)
    round_trip(module)
    golden.check(to_text(module))


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
@pytest.mark.parametrize("size", [0, 1, LITERAL_LIMIT, LITERAL_LIMIT + 1])
def test_constants_keep_every_bit(dtype, size):
    numpy_type = dtypes.to_numpy(dtype)
    bits = np.random.default_rng(size).integers(0, 2 if dtype == "bool" else 256, size * numpy_type.itemsize)
    array = np.frombuffer(bits.astype(np.uint8).tobytes(), numpy_type)
    b = FunctionBuilder()
    again = round_trip(module_of(b.bind(Constant(array)), builder=b))
    found = again["main"].bindings[0].value.data
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4028235e38, 0.1, 1 / 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_floats_are_exact_literals(value, dtype):
    scalar = np.asarray(value, dtype)
    b = FunctionBuilder()
    module = module_of(b.bind(Constant(scalar)), builder=b)
    assert "data " not in to_text(module)
    assert round_trip(module)["main"].bindings[0].value.data.tobytes() == scalar.tobytes()


def test_nan_with_a_payload_is_data():
    b = FunctionBuilder()
    odd = np.array([0x7FC12345], np.uint32).view(np.float32)
    module = module_of(b.bind(Constant(odd)), builder=b)
    assert 'data "' in to_text(module)
    assert round_trip(module)["main"].bindings[0].value.data.tobytes() == odd.tobytes()


def test_equal_constants_are_stored_once():
    b = FunctionBuilder()
    x = b.input("x", (2, 50))
    y = b.op("add", b.op("add", x, np.arange(50, dtype=np.float32)), np.arange(50, dtype=np.float32))
    assert to_text(module_of(y, builder=b)).count("\ndata ") == 1


def test_elided_constants_are_given_by_digest():
    b = FunctionBuilder()
    array = np.arange(64, dtype=np.float32)
    module = module_of(b.op("add", b.input("x", (64,)), array), builder=b)
    text = to_text(module, constants="elided")
    assert "\ndata " not in text
    assert str(module) == text
    again = parse_module(text, {Constant(array).digest: array})
    assert to_text(again) == to_text(module)
    with pytest.raises(ParseError, match="not in the text"):
        parse_module(text)
    with pytest.raises(ParseError, match="does not match its digest"):
        parse_module(text, {Constant(array).digest: array + 1})


names = st.text(min_size=1, max_size=8)


@settings(max_examples=50)
@given(names, names, names)
def test_any_name_is_a_label(first, second, function):
    b = FunctionBuilder()
    x, y = Var(first, TensorType((2,), "float32")), Var(first, TensorType((2,), "float32"))
    b.params += [x, y]
    z = b.op("add", x, y)
    z.name = second
    module = IRModule({function: b.function(z)})
    again = round_trip(module)
    assert list(again) == [function]
    assert again[function].params[0].name == first


attribute_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        symbolic_dims(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=4), attribute_values, max_size=3))
def test_attributes_come_back_equal_and_of_the_same_class(attrs):
    b = FunctionBuilder()
    again = round_trip(module_of(b.input("x", (2,)), builder=b, **{f"a{k}": v for k, v in attrs.items()}))
    assert repr(dict(again["main"].attrs)) == repr({f"a{k}": v for k, v in attrs.items()})


@settings(max_examples=60)
@given(st.lists(symbolic_dims().filter(lambda dim: not isinstance(dim, int) or dim >= 0), min_size=1, max_size=3))
def test_symbolic_shapes_come_back(shape):
    b = FunctionBuilder()
    x = b.input("x", shape)
    again = parse_module(to_text(module_of(x, builder=b)))
    assert again["main"].params[0].type == x.type


def test_attributes_without_a_text_form_are_refused():
    b = FunctionBuilder()
    with pytest.raises(IRError, match="no text form"):
        to_text(module_of(b.input("x", (2,)), builder=b, thing=object()))


def test_defaults_are_left_out():
    b = FunctionBuilder()
    y = b.op("nn.hard_sigmoid", b.input("x", (2,)), alpha=0.5)
    assert "nn.hard_sigmoid(%x) {alpha: 0.5}\n" in to_text(module_of(y, builder=b))


# --- other classes of functions ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Note(BaseFunction):
    text: str


register_function_syntax("note_for_tests", Note, lambda note: note.text, Note)


@pytest.mark.parametrize("text", ["one", "one\n  two {\n}x\n  }", "  indented\n\nafter a gap"])
def test_registered_functions_get_their_text_back(text):
    module = IRModule({"a b": Note(text)})
    again = parse_module(to_text(module))
    assert again["a b"] == Note(text)


def test_unregistered_functions_are_refused():
    class Other(BaseFunction):
        pass

    with pytest.raises(IRError, match="no text form"):
        to_text(IRModule({"f": Other()}))


# --- attached RuntimeModules ------------------------------------------------------------------------------------------
class FakeRuntime:
    kind = "fake"

    def __init__(self, data: bytes, constants: dict[str, np.ndarray]) -> None:
        self.data = data
        self._constants = constants

    def save_to_bytes(self) -> bytes:
        return self.data

    def constants(self) -> dict[str, np.ndarray]:
        return self._constants


def test_external_modules_are_saved_and_loaded_by_the_given_loader():
    array = np.arange(30, dtype=np.int8)
    fake = FakeRuntime(b"\x00code", {Constant(array).digest: array})
    module = IRModule({}, {"external_modules": (fake,)})
    text = to_text(module)
    (again,) = parse_module(text, load_external=lambda kind, data, constants: (kind, data, constants)).attrs[
        "external_modules"
    ]
    kind, data, constants = again
    assert (kind, data) == ("fake", b"\x00code")
    assert constants[Constant(array).digest].tobytes() == array.tobytes()
    with pytest.raises(ParseError, match="load_external"):
        parse_module(text)


# --- what is refused --------------------------------------------------------------------------------------------------
GOOD = """module

def @main(%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {
  %y: Tensor[(n, 4), float32] = clip(%x) {min: 0.0}
  %z: Tensor[(n, 4), float32] = add(%y, float32(1.5))
  return %z
}
"""

BAD = [
    ("clip(%x)", "clipp(%x)", "did you mean|no operator"),
    ("clip(%x)", "clip(%w)", "before it is bound"),
    ("clip(%x)", "clip(%x, %x)", "number of arguments"),
    ("min: 0.0", "minn: 0.0", "no attribute"),
    ("min: 0.0", 'min: "0"', "wrong type"),
    ("%z: Tensor[(n, 4)", "%y: Tensor[(n, 4)", "bound twice"),
    ("%y: Tensor[(n, 4)", "%y: Tensor[(n, 5)", "stated is"),
    ("%y: Tensor[(n, 4), float32]", "%y: Tensor[(n, 4), float31]", "unknown dtype"),
    ("-> Tensor[(n, 4)", "-> Tensor[(n, 5)", "stated is"),
    ("(n, 4), float32] =", "(n, , 4, float32] =", "not closed|expected"),
    ("Tensor[(n, 4), float32] = clip", "Tensor[(n $ 2, 4), float32] = clip", "unexpected character"),
    ("float32(1.5)", "float32[2](1.5)", "elements for the shape"),
    ("float32(1.5)", "int8(400)", "no int8 values"),
    ("float32(1.5)", 'constant "12" Tensor[(2,), float32]', "not in the text"),
    ("float32(1.5)", 'constant "12" Tensor[(n,), float32]', "known dims"),
    ("float32(1.5)", "float32(1..5)", "cannot be read"),
    ("return %z", "return", "expected a variable"),
    ("return %z\n}", "return %z\n", "expected '}'"),
    ("def @main", "deff @main", "keyword"),
    ("module\n", "modul\n", "expected 'module'"),
    ("return %z\n}\n", "return %z\n}\n" + GOOD[7:], "defined twice"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new[:30].strip() for _, new, _ in BAD])
def test_faulty_text_is_refused_with_its_line(old, new, message):
    parse_module(GOOD)
    with pytest.raises(ParseError, match=message) as info:
        parse_module(GOOD.replace(old, new, 1))
    assert re.match(r"line \d+: ", info.value.where or "")


@pytest.mark.parametrize(
    "value",
    ["[" * 100 + "]" * 100, "(" * 5000, "{" + '"a": {' * 200, "1" * 5000, "<" + "(" * 200 + ">", '"\\q"', "--1"],
)
def test_hostile_attributes_are_refused(value):
    with pytest.raises(KernelyardError):
        parse_module(f"module {{x: {value}}}")


def test_nested_types_are_bounded():
    nested = "Tuple[" * 500 + "]" * 500
    with pytest.raises(ParseError, match="too deeply"):
        parse_module(f"module\ndef @f(%x: {nested}) -> {nested} {{ return %x }}")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_text_never_raises_anything_else(data):
    start = data.draw(st.integers(0, len(GOOD) - 1))
    stop = data.draw(st.integers(start, min(len(GOOD), start + 6)))
    text = GOOD[:start] + data.draw(st.text(alphabet='%@()[]{}<>":,=-19.nxT \n', max_size=5)) + GOOD[stop:]
    with contextlib.suppress(KernelyardError):
        parse_module(text)


def test_data_of_the_wrong_size_is_refused():
    b = FunctionBuilder()
    text = to_text(module_of(b.op("add", b.input("x", (64,)), np.arange(64, dtype=np.float32)), builder=b))
    with pytest.raises(ParseError, match="bytes of data"):
        parse_module(text.replace("AAAAAAAAgD8AAABA", "AAAAAAAAgD8A", 1))
    with pytest.raises(ParseError, match="does not match its digest"):
        parse_module(text.replace("AAAAAAAAgD8AAABA", "AAAAAAAAgD8AAABB", 1))


def test_comments_and_layout_do_not_matter():
    loose = GOOD.replace("return", "// the end\n\n   return").replace(" = ", "=\n  ")
    assert to_text(parse_module(loose)) == to_text(parse_module(GOOD))
