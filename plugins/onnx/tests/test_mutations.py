"""Damaged models give typed errors: no crash, no hang, and no success that onnx's own checker and reference do not share.

Models are damaged in bytes, in fields of their messages, and in their graphs, always in the same ways. They run in
processes of their own, so that a crash or a hang is one failure that names its model.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import parser

COUNT = 500
PARTS = 4
SECONDS = 240  # a part takes a few
MAX_ELEMENTS = 10**6
TEXTS = (
    """g (float[n, 3, 8, 8] x) => (float[n, 4] y) <float[4, 3, 3, 3] w, float[4] b> {
        w = ConstantOfShape <value: tensor = float[1] {0.5}> (ws)
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
        r = Relu (c)
        p = GlobalAveragePool (r)
        y = Flatten (p)
    }""",
    """g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) {
        m = MatMul (x, w)
        s = Softmax <axis = -1> (m)
        h = Constant <value: tensor = int64[2] {2, 4}> ()
        z = Reshape (s, h)
        y = Add (z, x)
    }""",
    """g (float[3, 4] x, int64[2] i) => (float[2, 4] y, float[k] v) {
        t = Gather <axis = 0> (x, i)
        f, v = Split <axis = 0, num_outputs = 2> (t)
        y = Concat <axis = 0> (v, f)
    }""",
    """g (float[5] x, bool c) => (float[5] y) {
        y = If (c) <
            then_branch = t () => (float[5] a) { a = Exp (x) },
            else_branch = e () => (float[5] b) { q = Neg (x) b = Mul (q, q) }
        >
    }""",
)
# What the checker finds in declarations of types and versions, which are not believed and need not be right.
DECLARATIONS = ("Unrecognized type value case", "Field 'shape' of 'type'", "model ir_version")
INFOS = {"ws": np.array([4, 3, 3, 3])}


def models() -> list[bytes]:
    """The whole models that are damaged."""
    made = []
    for text in TEXTS:
        proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
        del proto.graph.value_info[:]
        if "ws" in text:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(INFOS["ws"], "ws"))
        made.append(proto.SerializeToString())
    return made


# --- damage -----------------------------------------------------------------------------------------------------------
def damaged(number: int) -> bytes:
    """The damaged model of a number."""
    rng = random.Random(number)
    data = models()[number % len(TEXTS)]
    return (_bytes, _fields, _graph)[number // len(TEXTS) % 3](rng, data)


def _bytes(rng: random.Random, data: bytes) -> bytes:
    array = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(array) or 1)
        kind = rng.randrange(4)
        if kind == 0 and array:
            array[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del array[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            array[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            array = array[: max(at, 1)]
    return bytes(array)


def _fields(rng: random.Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.randrange(1, 4)):
        message = rng.choice(_messages(model))
        fields = message.ListFields()
        if fields:
            _change(rng, message, rng.choice(fields)[0])
    return model.SerializeToString()


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                found += _messages(item)
    return found


def _change(rng: random.Random, message: Message, field: FieldDescriptor) -> None:
    numbers = (-1, 0, 1, 2, 7, 77, 2**31 - 1)
    value: Any = getattr(message, field.name)
    if field.is_repeated:
        at = rng.randrange(len(value))
        if field.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32) and rng.random() < 0.6:
            value[at] = rng.choice(numbers)
        else:
            del value[at]
    elif field.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32):
        setattr(message, field.name, rng.choice(numbers))
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, field.name, rng.choice(("", "x", "y", "no such name", value + "_")))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(message, field.name, value[: rng.randrange(len(value) + 1)])
    else:
        message.ClearField(field.name)


def _graph(rng: random.Random, data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    graph = model.graph
    names = [name for node in graph.node for name in (*node.input, *node.output)] + ["", "nothing"]
    for _ in range(rng.randrange(1, 3)):
        node = rng.choice(graph.node)
        kind = rng.randrange(7)
        if kind == 0:
            graph.node.remove(node)
        elif kind == 1:
            graph.node.append(node)
        elif kind == 2 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif kind == 3:
            node.output[0] = rng.choice(names)
        elif kind == 4:
            node.op_type = rng.choice(
                ("Relu", "MatMul", "Reshape", "Loop", "Concat", "TopK", "Cast", "LSTM", "Nothing")
            )
        elif kind == 5:
            node.input.extend(rng.choices(names, k=rng.randrange(1, 3)))
        else:
            model.opset_import[0].version = rng.choice((1, 6, 9, 13, 99))
        if not graph.node:
            break
    return model.SerializeToString()


# --- what comes of it -------------------------------------------------------------------------------------------------
def outcome(data: bytes) -> str:
    """ "error: CODE" for a typed error, "same" where the reference gives the same, else what is wrong."""
    import kernelyard as ky
    from kernelyard.errors import KernelyardError

    try:
        exe = ky.compile(data, backends=[])
        feeds = _feeds([(each.name, each.shape, each.dtype) for each in exe.inputs])
        if feeds is None:
            return "too large to run"
        found = [tensor.numpy() for tensor in exe.run(feeds).values()]
    except KernelyardError as error:
        return f"error: {error.code}"
    return _compared(data, feeds, found)


def _feeds(inputs: list[tuple[str, tuple[int | str, ...], str]]) -> dict[str, np.ndarray] | None:
    feeds = {}
    for name, shape, dtype in inputs:
        sizes = [size if isinstance(size, int) else 2 for size in shape]
        if np.prod(sizes, dtype=np.float64) > MAX_ELEMENTS:
            return None
        numbers = np.random.default_rng(0).random(sizes)
        feeds[name] = (numbers * 2).astype(dtype) if dtype != "bool" else numbers > 0.5
    return feeds


def _compared(data: bytes, feeds: dict[str, np.ndarray], found: list[np.ndarray]) -> str:
    """What onnx's checker and reference say of results."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.ModelProto.FromString(data)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        if not any(text in str(error) for text in DECLARATIONS):
            return f"wrong: the checker refuses it: {' '.join(str(error).split())[:80]}"
    expected = ReferenceEvaluator(model).run(None, feeds)
    for actual, wanted in zip(found, expected, strict=True):
        close = np.shape(wanted) == actual.shape and np.allclose(actual, wanted, 1e-4, 1e-5, equal_nan=True)
        if not close:
            return (
                f"wrong: {actual.shape} {actual.reshape(-1)[:4]}, not {np.shape(wanted)} {np.reshape(wanted, -1)[:4]}"
            )
    return "same"


def run_part(part: int, out: Path) -> None:
    """The outcomes of a part of the models, a line each."""
    warnings.simplefilter("ignore")
    with out.open("w", encoding="utf-8", buffering=1) as file:
        for number in range(part, COUNT, PARTS):
            file.write(json.dumps([number, "begins"]) + "\n")
            data = damaged(number)
            try:
                result = outcome(data)
            except Exception as error:  # an error that is not typed is what is looked for
                result = f"untyped: {type(error).__name__}: {error}"
            file.write(json.dumps([number, result]) + "\n")


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_models(part: int, tmp_path: Path) -> None:
    out = tmp_path / "outcomes"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, str(part), str(out)],
        env=environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    outcomes = dict(map(json.loads, out.read_text(encoding="utf-8").splitlines()))
    wrong = {n: text for n, text in outcomes.items() if text.startswith(("wrong", "untyped", "begins"))}
    assert not wrong
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert len(outcomes) == len(range(part, COUNT, PARTS))
    errors = sum(text.startswith("error") for text in outcomes.values())
    assert errors > len(outcomes) / 3  # the damage is damage


def test_whole_models_run_and_are_right() -> None:
    assert [outcome(data) for data in models()] == ["same"] * len(TEXTS)


def test_all_damage_parses_or_not_the_same_way() -> None:
    assert damaged(17) == damaged(17)
    parses = 0
    for number in range(60):
        try:
            onnx.ModelProto.FromString(damaged(number))
            parses += 1
        except DecodeError:
            continue
    assert 20 < parses < 60


if __name__ == "__main__":
    run_part(int(sys.argv[1]), Path(sys.argv[2]))
