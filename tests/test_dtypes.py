"""Dtypes: names and NumPy's types are one to one."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.dtypes import UnknownDtypeError

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "bool": 1}


@pytest.mark.parametrize("name", dtypes.DTYPES)
def test_names_go_to_numpy_and_back(name):
    assert dtypes.from_numpy(dtypes.to_numpy(name)) == name
    assert dtypes.from_numpy(np.zeros(1, dtypes.to_numpy(name)).dtype) == name


@pytest.mark.parametrize("name", dtypes.DTYPES)
def test_sizes(name):
    bits = "".join(character for character in name if character.isdigit())
    assert dtypes.itemsize(name) == SIZES.get(name, int(bits or 0) // 8)


@pytest.mark.parametrize("name", dtypes.DTYPES)
def test_each_is_a_float_an_integer_or_bool(name):
    assert [dtypes.is_float(name), dtypes.is_integer(name), name == "bool"].count(True) == 1


@pytest.mark.parametrize("name", ["float31", "FLOAT32", "", "complex64", "object", "float8_e4m3"])
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownDtypeError, match="unknown dtype") as info:
        dtypes.to_numpy(name)
    assert "float32" in str(info.value.expected)


@pytest.mark.parametrize("dtype", [np.complex64, np.dtype("U4"), object])
def test_unknown_numpy_types_are_refused(dtype):
    with pytest.raises(UnknownDtypeError):
        dtypes.from_numpy(dtype)
