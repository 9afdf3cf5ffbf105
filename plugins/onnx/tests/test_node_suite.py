"""The node tests that ONNX itself ships: about 1,900 cases with inputs and expected outputs.

Every case either gives the expected numbers, or is refused with UnsupportedOperatorError and stands in the table below
with the reason. A case that starts to work must leave the table.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as suite

from kernelyard.errors import KernelyardError, UnsupportedOperatorError
from kernelyard.ir.verify import verify
from kernelyard.ops.interpreter import run
from kernelyard_onnx.importer import import_model
from kernelyard_onnx.tensors import to_array

# Modules of the suite that are about something else than running a network of tensors.
OTHER_SUBJECTS = {
    "adagrad": "training",
    "adam": "training",
    "momentum": "training",
    "ai_onnx_ml": "classical machine learning",
    "image_decoder": "decoding files",
    "_image_decoder_data": "decoding files",
    "regex_full_match": "strings",
    "string_concat": "strings",
    "string_split": "strings",
    "stringnormalizer": "strings",
    "tfidfvectorizer": "strings",
}

# Cases that must be refused, by the start or a part of their name.
REFUSED = {
    r"FNUZ|E8M0|e8m0|FLOAT4|float4|U?INT[24]|u?int[24]\b|STRING|string": "element types that the vocabulary lacks",
    r"batchnorm_.*training|training_dropout": "training",
    r"bernoulli": "random numbers",
    r"bitcast": "the vocabulary reinterprets no bits",
    r"col2im|cumprod|deform_conv|test_det_|maxunpool|maxpool_with_argmax|roialign|tensorscatter": "not in the vocabulary",
    r"dft_irfft": "inverse of a one-sided transform",
    r"test_loop(13_seq|16_seq_none)$": "no tensors",
    r"tf_crop_and_resize": "a way to resize that the vocabulary lacks",
    r"identity_(sequence|opt)|if_(seq|opt)|optional_get_element_(optional_)?sequence|optional_has_element_empty_opt": "no tensors",
    r"sequence_map|sequence_insert|split_to_sequence": "inputs or outputs that are no tensors",
    r"test_scan_sum": "an opset before 9",
}
# Here onnxruntime's reading is followed (see test_operators.py).
DIFFERENT = {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}
MODULES = sorted({info.name for info in pkgutil.iter_modules(suite.__path__)} - set(OTHER_SUBJECTS))


def cases_of(module: str) -> list[Any]:
    """The cases that a module of the suite adds when it is imported for the first time."""
    registered = suite._NodeTestCases
    before = len(registered)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{suite.__name__}.{module}")
    return list(registered[before:]) or [c for c in registered if c.name.startswith(f"test_{module}")]


def as_array(value: Any) -> np.ndarray:
    return to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def imported(case: Any) -> Any:
    """The module of a case. What must be known when a model is compiled is made a weight: no input, all but the first,
    or all."""
    names = [info.name for info in case.model.graph.input]
    values = dict(zip(names, case.data_sets[0][0], strict=False))
    first: KernelyardError | None = None
    for weights in ([], names[1:], names):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        arrays = [(name, values.get(name)) for name in weights]
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.asarray(value), name)
            for name, value in arrays
            if isinstance(value, (np.ndarray, np.generic))
        )
        try:
            return import_model(model, {}, None)
        except KernelyardError as error:
            first = first or error
    assert first is not None
    raise first


def check(case: Any) -> None:
    module = imported(case)
    verify(module)
    names = module["main"].attrs["input_names"]
    for inputs, outputs in case.data_sets:
        given = zip(case.model.graph.input, inputs, strict=False)
        feeds = {info.name: as_array(value) for info, value in given if info.name in names}
        for actual, expected in zip(run(module, feeds), map(as_array, outputs), strict=True):
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype
            if expected.dtype.kind in "biu":
                np.testing.assert_array_equal(actual, expected)
                continue
            narrow = expected.dtype.itemsize < 4
            wide = (actual.astype(np.float64), expected.astype(np.float64))
            np.testing.assert_allclose(*wide, rtol=1e-2 if narrow else 1e-3, atol=1e-3 if narrow else 1e-6)


@pytest.mark.parametrize("module", MODULES)
def test_cases_of(module: str) -> None:
    wrong = []
    for case in cases_of(module):
        refused = any(re.search(pattern, case.name) for pattern in REFUSED)
        try:
            check(case)
        except UnsupportedOperatorError as error:
            if not refused:
                wrong.append(f"{case.name} is refused: {error}")
        except AssertionError as error:
            if case.name not in DIFFERENT:
                wrong.append(f"{case.name}: {error}")
        else:
            if refused or case.name in DIFFERENT:
                wrong.append(f"{case.name} works: take it out of the table")
    assert not wrong, "\n".join(wrong)
