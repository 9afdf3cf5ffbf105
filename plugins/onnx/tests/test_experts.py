"""Mixtures of experts of the domain com.microsoft, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from microsoft_cases import Case, Inputs, f, model_of, u8

from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.session import Session

TOKENS, WIDTH, HIDDEN, EXPERTS = 5, 64, 32, 4
GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}


def mixtures() -> list[Case]:
    cases = []
    for (name, fusion), k, normalized in itertools.product(
        (("relu", 0), ("gelu", 0), ("silu", 0), ("identity", 0), ("swiglu", 1)), (1, 2), (0, 1)
    ):
        rows = HIDDEN * (2 if fusion else 1)
        inputs: Inputs = {"x": f(TOKENS, WIDTH), "r": 3 * f(TOKENS, EXPERTS), "w1": f(EXPERTS, rows, WIDTH) / 8}
        inputs |= {"wb1": f(EXPERTS, rows), "w2": f(EXPERTS, WIDTH, HIDDEN) / 4, "wb2": f(EXPERTS, WIDTH)}
        attrs: dict[str, Any] = {"k": k, "normalize_routing_weights": normalized}
        attrs |= {"activation_type": name, "swiglu_fusion": fusion}
        cases.append(Case("MoE", inputs, attrs))
    cases.append(Case("MoE", {**inputs, "x": f(1, TOKENS, WIDTH), "wb1": None, "wb2": None}, {**attrs, **GPT_OSS}))
    return cases


def quantized_mixture(bits: int, block: int, has_zeros: bool, mixing: bool = False) -> Case:
    def stored(name: str, rows: int, columns: int) -> Inputs:
        shape = (EXPERTS, rows, columns // block) if block else (EXPERTS, rows)
        return {
            f"w{name}": u8(EXPERTS, rows, columns * bits // 8),
            f"ws{name}": np.abs(f(*shape)) / 2**bits / 8,
            f"wb{name}": f(EXPERTS, rows),
        }

    def zeros(rows: int, columns: int) -> np.ndarray:
        return u8(EXPERTS, rows, -(-columns // block * bits // 8)) if block else u8(EXPERTS, rows * bits // 8)

    inputs: Inputs = {"x": f(TOKENS, WIDTH), "r": 3 * f(TOKENS, EXPERTS)}
    inputs |= {**stored("1", 2 * HIDDEN, WIDTH), **stored("2", WIDTH, HIDDEN), "w3": None, "ws3": None, "wb3": None}
    inputs |= (
        {"wz1": zeros(2 * HIDDEN, WIDTH), "wz2": zeros(WIDTH, HIDDEN)} if has_zeros else {"wz1": None, "wz2": None}
    )
    inputs |= {"wz3": None, "m": np.abs(f(TOKENS, EXPERTS)) if mixing else None}
    attrs = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "expert_weight_bits": bits, **GPT_OSS}
    attrs |= {"normalize_routing_weights": 1} | ({"block_size": block} if block else {})
    return Case("QMoE", inputs, attrs, atol=2e-3 if bits == 8 else 1e-4)  # onnxruntime rounds more with 8 bits


CASES = [
    *mixtures(),
    *(quantized_mixture(*choice) for choice in itertools.product((2, 4, 8), (0, 16), (False, True))),
    quantized_mixture(4, 32, False, mixing=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_onnxruntime(case: Case, make, agree) -> None:
    model, data = model_of(case, make)
    agree(model, data, rtol=1e-4, atol=case.atol)


REFUSED = {
    "use_sparse_mixer": {"use_sparse_mixer": 1},
    "its activation 'swiglu7' is not supported": {"activation_type": "swiglu7"},
    "swiglu needs fc3": {"activation_type": "swiglu"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str, make) -> None:
    inputs: Inputs = {"x": f(TOKENS, WIDTH), "r": f(TOKENS, EXPERTS), "w1": f(EXPERTS, HIDDEN, WIDTH)}
    inputs |= {"wb1": None, "w2": f(EXPERTS, WIDTH, HIDDEN)}
    model, _ = model_of(Case("MoE", inputs, REFUSED[reason]), make)
    with pytest.raises(UnsupportedOperatorError, match=reason):
        Session(model, [])
