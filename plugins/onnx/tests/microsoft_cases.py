"""Nodes of the domain com.microsoft to compare with onnxruntime: a case for each, and the model that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from kernelyard_onnx.session import Session

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(11)
Inputs = dict[str, "np.ndarray | None"]


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    """Numbers of seven bits: without VNNI onnxruntime adds two products with uint8 in 16 bits, and saturates."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def number(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


@dataclass(frozen=True)
class Case:
    """One node. inputs: by name, in order; None is left out; those whose names begin with "w" are weights.

    atol: what results may differ by. outputs: how many, and which of them are left out.
    """

    op: str
    inputs: Mapping[str, np.ndarray | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    atol: float = 2e-5
    domain: str = MICROSOFT
    symbols: tuple[str, ...] = ()  # inputs whose first size is open

    @property
    def label(self) -> str:
        left_out = [name for name, array in self.inputs.items() if array is None]
        texts = [self.op, *(f"{k}={v}" for k, v in self.attrs.items()), *(f"no_{name}" for name in left_out)]
        return "-".join(texts)[:100]


def case(op: str, atol: float = 2e-5, outputs: str = "y", domain: str = MICROSOFT, **rest: Any) -> Case:
    """Keywords in capitals, and lists, numbers and strings, are attributes; arrays and None are inputs."""
    inputs = {name: value for name, value in rest.items() if value is None or isinstance(value, np.ndarray)}
    attrs = {name: value for name, value in rest.items() if name not in inputs}
    return Case(op, inputs, attrs, tuple(outputs.split()), atol, domain)


def model_of(
    case: Case, make: Any, shapes: dict[str, list[Any]] | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    data = {name: array for name, array in case.inputs.items() if array is not None and name[0] != "w"}
    weights = {name: array for name, array in case.inputs.items() if array is not None and name[0] == "w"}
    names = [name if array is not None else "" for name, array in case.inputs.items()]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(case.op, names, list(case.outputs), name="n", domain=case.domain, **case.attrs)
    model = make([node], data, case.outputs, weights=weights, shapes=shapes, opset=16)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model, data


def results_of(case: Case, make: Any) -> list[np.ndarray]:
    """The results of generated kernels."""
    model, data = model_of(case, make)
    return Session(model, []).run(data)


def assert_agrees(case: Case, make: Any) -> None:
    """Compare the results of generated kernels with onnxruntime's."""
    model, data = model_of(case, make)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    for found, wanted in zip(Session(model, []).run(data), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=case.atol)
