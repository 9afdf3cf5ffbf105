"""Tensors of a model as arrays, whichever field their elements stand in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from kernelyard.errors import ModelFormatError
from kernelyard_onnx.tensors import DATA_TYPES, IN_INT32, to_array


@pytest.mark.parametrize("name", IN_INT32)
def test_integers_stand_one_in_each_int32(name) -> None:
    dtype = np.dtype(name)
    limits = (0, 1) if name == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    array = np.array([limits, limits[::-1]], dtype)
    found = to_array(helper.make_tensor("w", DATA_TYPES[name], array.shape, array.reshape(-1)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("numbers", [[1, 2], [1, 2, 3, 4]])
def test_another_count_of_integers_is_refused(numbers) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[3], int32_data=numbers)
    with pytest.raises(ModelFormatError, match="does not fit its shape") as raised:
        to_array(tensor)
    assert raised.value.found == f"{len(numbers)} numbers"
    assert raised.value.expected == "3 numbers"
