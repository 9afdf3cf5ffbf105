"""Linear attention and what comes before it (domain com.microsoft), against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from microsoft_cases import Case, Inputs, assert_agrees, case, f, model_of

from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.session import Session

B, T, K, V = 2, 6, 8, 5


def unit(*shape: int) -> np.ndarray:
    """Keys of length 1, without which the delta rule diverges."""
    x = f(*shape, K)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(*shape[:-1], shape[-1] * K)


def linear_cases() -> list[Case]:
    cases: list[Case] = []
    rules = ("linear", "gated", "delta", "gated_delta")
    for rule, (many, few), is_whole in itertools.product(rules, ((4, 4), (4, 2), (2, 4)), (False, True)):
        inputs: Inputs = {"q": f(B, T, many * K), "k": unit(B, T, few), "v": f(B, T, few * V)}
        inputs["s"] = f(B, few, K, V) if is_whole else None
        inputs["d"] = -np.abs(f(B, T, few * (K if is_whole else 1))) if "gated" in rule else None
        inputs["b"] = np.abs(f(B, T, few if is_whole else 1)) if "delta" in rule else None
        attrs = {"q_num_heads": many, "kv_num_heads": few, "update_rule": rule} | ({"scale": 0.3} if is_whole else {})
        cases.append(Case("LinearAttention", inputs, attrs, ("y", "state")))
    return cases


def delta_network(is_batched: bool, is_packed: bool, is_per_key: bool, gate: str) -> Case:
    heads, values = 2, 4
    lead = (B, T) if is_batched else (B * T,)
    inputs: Inputs = {"q": f(*lead, 2 * heads * K + values * V), "k": None, "v": None}
    if not is_packed:
        inputs = {"q": f(*lead, heads, K), "k": f(*lead, heads, K), "v": f(*lead, values, V)}
    inputs |= {
        "ends": None,
        "d": -np.abs(f(*lead, values, *((K,) if is_per_key else ()))),
        "b": np.abs(f(*lead, values)),
    }
    inputs |= {"s": f(B, values, V, K)}
    inputs |= {"a": f(values), "bias": f(values, K) if is_per_key else f(values)} if gate != "none" else {}
    attrs = {"qk_l2_norm": 1, "gate_activation": gate, "beta_activation": "none" if gate == "none" else "sigmoid"}
    return Case("GatedDeltaNet", inputs, attrs, ("y", "state"))


def convolution(is_last: bool, has_bias: bool, has_past: bool, dilation: int) -> Case:
    x, state = (2, 3, 7), (2, 3, 3 * dilation)
    if is_last:
        x, state = (2, 7, 3), (2, 3 * dilation, 3)
    inputs: Inputs = {
        "x": f(*x),
        "w": f(3, 1, 4),
        "b": f(3) if has_bias else None,
        "p": f(*state) if has_past else None,
    }
    attrs = {"channels_last": int(is_last), "dilation": dilation, "activation": "silu" if has_bias else "none"}
    return Case("CausalConvWithState", inputs, attrs, ("y", "state"))


FLAGS = (False, True)
CASES = [
    *linear_cases(),
    *(delta_network(*choice) for choice in itertools.product(FLAGS, FLAGS, FLAGS, ("none", "softplus", "sigmoid"))),
    *(convolution(*choice) for choice in itertools.product(FLAGS, FLAGS, FLAGS, (1, 2))),
    case("CausalConvWithState", x=f(2, 7, 3, 2), w=f(6, 1, 4), channels_last=1, outputs="y state"),
    case("CausalConvWithState", x=f(2, 3, 1), w=f(3, 1, 4), b=None, p=f(2, 3, 3), outputs="y state"),
    case("LinearAttentionGate", a=f(2, 3, 4), wb=f(4), ws=-np.abs(f(4)), outputs="decay"),
    case("LinearAttentionGate", a=f(2, 3, 4), wb=f(4), ws=-np.abs(f(4)), b=f(2, 3, 4), outputs="decay rate"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_onnxruntime(case: Case, make, agree) -> None:
    model, data = model_of(case, make)
    agree(model, data, rtol=1e-4, atol=1e-5)


COMPILED = {case.op: case for case in CASES}


@pytest.mark.parametrize("case", COMPILED.values(), ids=list(COMPILED))
def test_compiled(case: Case, make) -> None:
    assert_agrees(case, make)


def test_a_text_of_open_length_is_one_program(make) -> None:
    case = linear_cases()[-1]
    shapes = {name: ["b", "t", *array.shape[2:]] for name, array in case.inputs.items() if array is not None}
    shapes["s"] = ["b", 4, K, V]
    model, data = model_of(case, make, shapes)
    session, theirs = Session(model, []), onnxruntime.InferenceSession(model.SerializeToString())
    assert session.executable is not None
    for length in (T, 1):
        feeds = {name: array if name == "s" else array[:, :length].copy() for name, array in data.items()}
        for found, wanted in zip(session.run(feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["LinearAttention", "CausalConvWithState"])
def test_a_window_of_states_is_refused(op: str, make) -> None:
    given = next(case for case in CASES if case.op == op)
    model, _ = model_of(Case(op, given.inputs, {**given.attrs, "state_window": 2}, given.outputs), make)
    with pytest.raises(UnsupportedOperatorError, match="state_window"):
        Session(model, [])
