"""Types refuse what is no size and no dtype."""

from __future__ import annotations

import pytest

from kernelyard import dims
from kernelyard.dtypes import UnknownDtypeError
from kernelyard.errors import IRError
from kernelyard.ir import TensorType


@pytest.mark.parametrize("dim", ["n", 2.5, True, None])
def test_a_dim_is_an_int_or_symbolic(dim):
    with pytest.raises(IRError, match="int or a symbolic dim"):
        TensorType((dim, 3), "float32")


def test_a_name_gets_the_way_to_write_it():
    with pytest.raises(IRError) as caught:
        TensorType(("n",), "float32")
    assert caught.value.hint == "kernelyard.dims.symbol('n')"


def test_symbolic_dims_are_fine():
    assert repr(TensorType((dims.symbol("n") + 1, 3), "float32")) == "Tensor[(n + 1, 3), float32]"


def test_a_dtype_must_be_known():
    with pytest.raises(UnknownDtypeError, match="float31"):
        TensorType((1,), "float31")


def test_a_size_has_a_limit():
    assert TensorType((dims.MAX_DIM,), "float32").nbytes == 4 * dims.MAX_DIM
    with pytest.raises(IRError, match="size is too large"):
        TensorType((3, dims.MAX_DIM + 1), "float32")
