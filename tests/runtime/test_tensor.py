"""Tensors go out to, and arrays come in from, everything that speaks DLPack or NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dtypes, errors
from kernelyard.runtime.device.device import cpu, cuda
from kernelyard.runtime.device.tensor import Tensor, as_array

tvm_ffi = pytest.importorskip("tvm_ffi")


def test_a_tensor_describes_itself():
    tensor = Tensor(np.ones((2, 3), np.float32))
    assert (tensor.shape, tensor.dtype, tensor.device, tensor.nbytes, len(tensor)) == ((2, 3), "float32", cpu(), 24, 2)
    assert "shape=(2, 3)" in repr(tensor)


def test_numpy_sees_the_same_memory():
    tensor = Tensor(np.zeros(3, np.float32))
    np.asarray(tensor)[0] = 5
    assert tensor.numpy()[0] == 5
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert np.array(tensor, copy=True) is not tensor.numpy()


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_every_dtype_goes_out_and_comes_back_through_dlpack(dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtypes.to_numpy(dtype))
    foreign = tvm_ffi.from_dlpack(Tensor(array))
    assert str(foreign.dtype) == dtype
    assert tuple(foreign.shape) == (2, 3)
    assert foreign.data_ptr() == array.ctypes.data
    back = as_array(foreign)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_what_comes_in_keeps_its_owner_alive():
    array = as_array(tvm_ffi.from_dlpack(Tensor(np.ones(1000, dtypes.to_numpy("bfloat16")))))
    np.ones(1000, np.float32)
    assert array.astype(np.float32).tolist() == [1.0] * 1000


def test_lists_and_numbers_take_the_expected_dtype():
    assert as_array([[1, 2]], "float16").dtype == np.float16
    assert as_array(3, "int8").shape == ()
    assert as_array(np.float64(3)).dtype == np.float64


class OnAnotherDevice:
    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise AssertionError("must not be asked")


class Hesitant:
    """Like a torch tensor that needs gradients."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        raise RuntimeError("requires grad")


class OnlyArray:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3)


def test_what_cannot_be_taken_in_is_refused():
    with pytest.raises(errors.DeviceError, match="another device"):
        as_array(OnAnotherDevice())
    with pytest.raises(errors.InputTypeError, match="DLPack"):
        as_array(Hesitant())
    with pytest.raises(errors.InputTypeError, match="not an array"):
        as_array({"a": 1})
    with pytest.raises(errors.InputTypeError, match="not numbers"):
        as_array([["a"]])


def test_array_protocol_and_wrapping():
    tensor = Tensor(as_array(OnlyArray()))
    assert tensor.numpy().tolist() == [0, 1, 2]
    assert as_array(tensor) is tensor.numpy()


def test_devices_print():
    assert (str(cpu()), str(cuda(1)), str(cuda("emulator"))) == ("cpu", "cuda:1", "cuda:emulator")
    cpu().require()
    with pytest.raises(errors.DeviceError):
        cuda().require()
