"""The C interface of an exported library (`kernelyard.h`), by ctypes."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p

import numpy as np

BAD_CALL, BAD_TENSOR, NEEDS_PYTHON = 1, 2, 4  # of ky_status


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


def tensors(arrays):
    """An array of DLTensors over NumPy arrays."""
    made = (Tensor * max(len(arrays), 1))()
    for each, array in zip(made, arrays, strict=False):
        each.data, each.ndim = array.ctypes.data, array.ndim
        each.device = Device(1, 0)
        each.dtype = DataType(CODES[array.dtype.kind], 8 * array.itemsize, 1)
        each.shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        steps = [stride // array.itemsize for stride in array.strides]
        each.strides = (ctypes.c_int64 * max(array.ndim, 1))(*steps)
    return made


class Model:
    """A library used as a C program would; functions by name."""

    def __init__(self, path, threads=1, mode=ctypes.DEFAULT_MODE):
        self.c = c = ctypes.CDLL(str(path), mode)
        c.ky_create.restype = ctypes.c_void_p
        for name in ("last_error", "input_name", "output_name", "function_name", "function_signature"):
            getattr(c, f"ky_{name}").restype = ctypes.c_char_p
        c.ky_input_dim.restype = c.ky_output_dim.restype = ctypes.c_int64
        c.ky_output_dtype.restype = DataType
        c.ky_run.argtypes = (c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_int32)
        c.ky_output_shape.argtypes = (c_int32, c_void_p, c_int32, c_int32, c_void_p)
        c.ky_destroy.argtypes = (c_void_p,)
        self.model = c.ky_create(threads)

    @property
    def error(self):
        return self.c.ky_last_error().decode()

    def function(self, name):
        number = self.c.ky_find_function(name.encode())
        assert number >= 0, self.error
        return number

    def shape(self, inputs, number, name="main"):
        shape, function = (ctypes.c_int64 * 32)(), self.function(name)
        assert self.c.ky_output_shape(function, tensors(inputs), len(inputs), number, shape) == 0, self.error
        return tuple(shape[: self.c.ky_output_rank(function, number)])

    def status(self, inputs, outputs, name="main"):
        made = tensors(inputs), tensors(outputs)
        return self.c.ky_run(self.model, self.function(name), made[0], len(inputs), made[1], len(outputs))

    def run(self, inputs, dtypes=("float32",), name="main"):
        outputs = [np.zeros(self.shape(inputs, number, name), dtype) for number, dtype in enumerate(dtypes)]
        assert self.status(inputs, outputs, name) == 0, self.error
        return outputs

    def refuses(self, inputs, outputs, status=BAD_TENSOR, name="main"):
        assert self.status(inputs, outputs, name) == status, self.error
        return self.error
