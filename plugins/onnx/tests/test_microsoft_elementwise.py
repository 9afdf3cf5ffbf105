"""Gates, mixed branches, complex products, checks and crops (domain com.microsoft)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from microsoft_cases import Case, Inputs, assert_agrees, case, f, i32, number, results_of

BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.3, 0.2, 1.4, 0.5], [0.8, 0.9, 0.1, 0.2]], np.float32)


def crops() -> list[Case]:
    return [
        case("CropAndResize", x=f(2, 3, 6, 7), b=BOXES, i=i32(0, 1, 1, 0), ws=i32(*size), **attrs)
        for size, mode, value in itertools.product(((4, 5), (1, 3), (7, 1)), ("bilinear", "nearest"), (0.0, 2.5))
        for attrs in [{"mode": mode, "extrapolation_value": value}]
    ]


def branches() -> list[Case]:
    cases: list[Case] = []
    for count, gates in itertools.product((0, 3), (f(2, 5, 3), f(2, 5, 3, 1), f(2, 5, 3, 4))):
        x = f(2, 5, 12) if count else f(2, 5, 3, 4)
        attrs = {"num_branches": count}
        cases.append(Case("HyperConnectionPreMix", {"x": x, "g": gates}, {**attrs, "reduction_scale": 0.5}))
        for matrix in (None, f(2, 5, 3, 3)):
            inputs: Inputs = {"x": x, "b": f(2, 5, 4), "g": gates, "m": matrix}
            cases.append(Case("HyperConnectionPostMix", inputs, attrs))
        cases += [Case("BranchwiseRMSNorm", {"x": x, "ws": scale}, attrs) for scale in (f(12), f(3, 4), f(4), None)]
    return cases


CASES = [*crops(), *branches(), case("GatedAdd", x=f(2, 3, 4), b=f(2, 3, 4), g=f(2, 3, 1))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_onnxruntime(case: Case, make) -> None:
    assert_agrees(case, make)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# --- what onnxruntime has for GPUs alone ------------------------------------------------------------------------------
@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.4])
def test_gated_activation(limit: float, is_one: bool, make) -> None:
    gate, linear = f(3, 4), f(3, 4)
    inputs = {"x": np.concatenate([gate, linear], 1)} if is_one else {"x": gate, "b": linear}
    attrs = {"limit": limit, "activation_alpha": 1.7, "activation_beta": 1.0, "round_activation": 1}
    (found,) = results_of(Case("SwiGLU", inputs, attrs), make)
    g, up = (np.minimum(gate, limit), np.clip(linear, -limit, limit)) if limit else (gate, linear)
    np.testing.assert_allclose(found, g * sigmoid(1.7 * g) * (up + 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
def test_complex_product(op: str, make) -> None:
    a, b = f(2, 3, 2), f(3, 2)
    (found,) = results_of(case(op, x=a, b=b), make)
    x, y = (pair[..., 0] + 1j * pair[..., 1] for pair in (a, b))
    expected = x * (y if op == "ComplexMul" else y.conj())
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["isnan_only", "isinf_only", ""])
@pytest.mark.parametrize("value", [1.0, np.nan, np.inf])
def test_check_of_all_numbers(kind: str, value: float, make) -> None:
    x = np.array([1, value], np.float32)
    (found,) = results_of(Case("IsAllFinite", {"x": x, "b": f(3)}, {kind: 1} if kind else {}), make)
    wrong = {"isnan_only": np.isnan, "isinf_only": np.isinf, "": lambda x: ~np.isfinite(x)}[kind]
    assert found == (not wrong(x).any())


def test_dropout_of_inference_is_a_sum(make) -> None:
    x, bias, residual = f(3, 4), f(4), f(3, 4)
    (found,) = results_of(case("BiasDropout", x=x, b=bias, r=residual, wratio=number(0.5)), make)
    np.testing.assert_allclose(found, x + bias + residual, rtol=1e-6)


def test_rotary_embedding_of_given_halves(make) -> None:
    angles, q, q_rotated, k, k_rotated = f(2, 5, 8), *(f(2, 3, 5, 8) for _ in range(4))
    case_ = case("GemmaRotaryEmbedding", x=angles, q=q, q2=q_rotated, k=k, k2=k_rotated, outputs="y z")
    expected = [x * np.cos(angles[:, None]) + y * np.sin(angles[:, None]) for x, y in ((q, q_rotated), (k, k_rotated))]
    for found, wanted in zip(results_of(case_, make), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_fused_convolution_of_channels_last(make) -> None:
    x, weight, bias, residual = f(1, 5, 6, 4), f(3, 4, 1, 1), f(3), f(1, 5, 6, 3)
    (found,) = results_of(case("NhwcFusedConv", x=x, w=weight, b=bias, r=residual, activation="Relu"), make)
    expected = np.maximum(x @ weight[:, :, 0, 0].T + bias + residual, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
