"""DeviceArray: a dense tensor in a device's memory, beside NumPy's arrays in the host's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.device import dlpack
from kernelyard.runtime.device.dlpack_exchange import Exchange, exchange_of, shape_and_dtype
from kernelyard.runtime.device.driver import DeviceDriver, DeviceMemory, raise_queue_error

LEGACY_STREAM = 1  # the default stream of CUDA, as DLPack numbers it


class DeviceArray:
    """A dense row-major tensor in a device's memory; it is written once, by the call that gives it.

    owner: what keeps the memory alive.
    """

    __slots__ = ("address", "driver", "dtype", "owner", "shape")

    def __init__(
        self, driver: DeviceDriver, address: int, shape: tuple[int, ...], dtype: np.dtype, owner: object
    ) -> None:
        self.driver, self.address, self.owner = driver, address, owner
        self.shape, self.dtype = shape, dtype

    @classmethod
    def empty(cls, driver: DeviceDriver, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """Allocate uninitialised memory. Raises: DeviceError when there is none left."""
        held = DeviceMemory(driver, math.prod(shape) * dtype.itemsize)
        return cls(driver, held.address, shape, dtype, held)

    @classmethod
    def of(cls, driver: DeviceDriver, array: np.ndarray) -> DeviceArray:
        """Return a copy of an array of the host."""
        found = cls.empty(driver, array.shape, array.dtype.newbyteorder("="))
        found.fill(array)
        return found

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def fill(self, source: AnyArray) -> None:
        """Copy an array of this shape and dtype here, from wherever it lies."""
        write(self.driver, self.address, source)

    def copy(self) -> DeviceArray:
        """Return the same elsewhere on the device."""
        found = DeviceArray.empty(self.driver, self.shape, self.dtype)
        found.fill(self)
        return found

    def numpy(self) -> np.ndarray:
        """Return a copy in host memory, once the call that gives this array is done.

        Raises: DeviceError where that call failed on the device, or what it was given before.
        """
        array = np.empty(self.shape, self.dtype)
        try:
            self.driver.download(self.address, array)
        except Exception as error:  # a vendor's code
            where = f"download of a result of {self.shape}, or work on {self.driver.device} before it"
            raise_queue_error(self.driver, where, error)
        return array

    def item(self) -> Any:
        """Return the one element. Raises: ValueError when there are more."""
        return self.numpy().item()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """See the DLPack specification: consumers on another stream wait for what fills this array."""
        shared = self.owner if isinstance(self.owner, DeviceMemory) else self.driver
        shared.share_with(stream)
        return dlpack.export(self, self.address, self.shape, dtypes.from_numpy(self.dtype), self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.driver.dlpack_type, self.driver.index if isinstance(self.driver.index, int) else 0


class Borrowed(NamedTuple):
    """Memory of another library: what keeps it alive, and the stream on which the library works; None if it is unknown.

    stream: as DLPack numbers it.
    """

    owner: object
    stream: int | None


AnyArray: TypeAlias = "np.ndarray | DeviceArray"


def stack(driver: DeviceDriver, arrays: Sequence[AnyArray]) -> DeviceArray:
    """Stack arrays of one shape and dtype along a new first axis."""
    first = arrays[0]
    found = DeviceArray.empty(driver, (len(arrays), *first.shape), first.dtype.newbyteorder("="))
    for number, array in enumerate(arrays):
        write(driver, found.address + number * first.nbytes, array)
    return found


def write(driver: DeviceDriver, address: int, source: AnyArray) -> None:
    """Copy an array, from wherever it lies, into a device's memory."""
    if isinstance(source, DeviceArray):
        driver.copy(address, source.address, source.nbytes)
    else:
        driver.upload(address, np.ascontiguousarray(source, source.dtype.newbyteorder("=")))


def import_array(driver: DeviceDriver, value: Any) -> DeviceArray | None:
    """Import an array that lies in this device's memory without a copy, through DLPack; None for all else.

    Our stream waits for what fills it. Raises: InputTypeError for what is not dense.
    """
    array = getattr(value, "array", value)
    if isinstance(array, DeviceArray):
        return array if array.driver is driver else None
    if (
        isinstance(value, np.ndarray)
        or driver.dlpack_type == dlpack.DLPACK_CPU
        or not hasattr(value, "__dlpack_device__")
    ):
        return None
    exchange = exchange_of(type(value)) if driver.dlpack_stream is not None else None
    if exchange is not None:
        return _borrow(driver, value, exchange)
    kind, number = value.__dlpack_device__()
    if (int(kind), int(number)) != (driver.dlpack_type, driver.index):
        return None
    address, shape, dtype, owner = dlpack.import_dense(value, driver.dlpack_stream)
    return DeviceArray(driver, address, shape, dtypes.to_numpy(dtype), Borrowed(owner, None))


def _borrow(driver: DeviceDriver, value: Any, exchange: Exchange) -> DeviceArray | None:
    """Import an array whose library tells the stream that its work goes to: ours waits for it."""
    tensor = exchange.tensor(value)
    device = tensor.device_type, tensor.device_id
    if device != (driver.dlpack_type, driver.index):
        return None
    shape, dtype = shape_and_dtype(tensor)
    stream = exchange.current_stream(device) or LEGACY_STREAM
    driver.wait_for(stream)
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(driver, address, shape, dtypes.to_numpy(dtype), Borrowed(value, stream))
