"""PyTorch's own table of DLPack's exchange API, which programs on a GPU read feeds by."""

from __future__ import annotations

import pytest

from kernelyard.errors import InputTypeError
from kernelyard.runtime.device import dlpack
from kernelyard.runtime.device.dlpack_exchange import exchange_of, shape_and_dtype

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)], ids=str)
def test_tensors_are_described(shape, dtype):
    x = torch.zeros((5, *shape), dtype=getattr(torch, dtype))[2]
    exchange = exchange_of(type(x))
    assert exchange is not None
    found = exchange.tensor(x)
    assert (found.device_type, found.device_id) == (dlpack.DLPACK_CPU, 0)
    assert (found.data or 0) + found.byte_offset == x.data_ptr()
    assert shape_and_dtype(found) == (shape, dtype)


def test_parameters_are_tensors_too():
    assert exchange_of(torch.nn.Parameter) is not None
    assert exchange_of(int) is None


def test_gaps_and_unknown_types_are_refused():
    exchange = exchange_of(torch.Tensor)
    assert exchange is not None
    x = torch.zeros(2, 3)
    with pytest.raises(InputTypeError, match="not contiguous"):
        shape_and_dtype(exchange.tensor(x.T))
    x = torch.zeros(2, 3, dtype=torch.complex64)
    with pytest.raises(InputTypeError, match="64 bits"):
        shape_and_dtype(exchange.tensor(x))


def test_the_cpu_has_no_stream():
    exchange = exchange_of(torch.Tensor)
    assert exchange is not None
    assert exchange.current_stream((dlpack.DLPACK_CPU, 0)) == 0
