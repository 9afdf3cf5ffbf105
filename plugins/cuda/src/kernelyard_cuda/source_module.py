"""CudaSourceModule: functions as kernels in CUDA text, and as cubins; loaded on a device, and bound to its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np

from kernelyard.runtime.api import (
    BindableModule,
    BindContext,
    BoundCall,
    BoundTensor,
    Signature,
    corrupted,
    pack_module,
    split_code,
    unpack_module,
)
from kernelyard_cuda.device_constants import DeviceConstants
from kernelyard_cuda.driver_api import Argument, CudaDriver, Image, Launch, LoadedKernels, require_cuda
from kernelyard_cuda.function_info import FunctionInfo, read_function_info
from kernelyard_cuda.sized_launches import LaunchSizes, SizedLaunch


class CudaSourceModule(BindableModule):
    """Functions as kernels in CUDA text, and as cubins for the GPUs that they were compiled for.

    A code generator whose artifacts have a format of their own has a subclass with another kind, magic and schema.
    Raises: ArtifactCorruptedError when a constant is missing.
    """

    kind: ClassVar[str] = "cuda_source"
    magic: ClassVar[bytes] = b"KYCUDAC1"
    schema: ClassVar[int] = 1
    device_kind: ClassVar[str] = "cuda"
    is_capturable: ClassVar[bool] = True
    native_hint: ClassVar[str] = "kernelyard.load the library in Python: programs on a GPU are run by it alone"

    def __init__(
        self,
        functions: Sequence[FunctionInfo],
        source: str,
        cubins: Mapping[str, bytes],
        constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self._functions = {function.symbol: function for function in functions}
        kernels = tuple(dict.fromkeys(launch.kernel for function in functions for launch in function.launches))
        self.image = Image(source, kernels, dict(cubins))
        self._constants = {digest: constants[digest] for digest in _digests(functions, constants)}
        self._sizes = {function.symbol: LaunchSizes(function) for function in functions}
        self._loaded: dict[CudaDriver, LoadedKernels] = {}
        self._device_constants = DeviceConstants(self._constants)
        self._lock = Lock()

    def symbols(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def constants(self) -> Mapping[str, np.ndarray]:
        return self._constants

    def function(self, symbol: str) -> FunctionInfo:
        """Return the metadata of a function. Raises: ExecutionError for an unknown name."""
        if symbol not in self._functions:
            raise self.unknown_symbol(symbol)
        return self._functions[symbol]

    def signature(self, symbol: str) -> Signature:
        function = self.function(symbol)
        count = len(function.params) - function.num_outputs
        return Signature(function.params[:count], function.params[count:])

    def _load(self, driver: CudaDriver) -> LoadedKernels:
        with self._lock:
            if driver not in self._loaded:
                self._loaded[driver] = driver.load(self.image)
            return self._loaded[driver]

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the launches of a function's kernels. Raises: DeviceError, ExecutionError, ToolchainError."""
        function = self.function(symbol)
        driver = require_cuda(context.device, symbol)
        with self._lock:
            sized = self._sizes[symbol].at(values)
        start = context.workspace(sized.workspace_nbytes) if sized.workspace_nbytes else 0
        tensors = [Argument(arg.address, arg.nbytes if driver.is_emulator else 0) for arg in args]
        tensors += [Argument(start + offset, size) for offset, size in sized.locals]
        for digest in function.constants:
            held = self._device_constants.on(driver, digest)
            tensors.append(Argument(held.address, held.nbytes))
        kernels = self._load(driver)
        launches = [
            kernels.prepare(
                each.info.kernel,
                each.grid,
                [*[tensors[n] for n in each.info.tensors], *each.numbers],
                each.tensor_maps(tensors),
            )
            for each in sized.launches
        ]
        return BoundCall([*launches], [context, self], Movers(len(args), sized.launches, launches))

    @property
    def needs(self) -> str:
        """See `RuntimeModule.needs`."""
        archs = ", ".join(self.image.cubins)
        return f"a GPU of {archs}, or the emulator" if archs else "the CUDA emulator: there is no compiled code"

    def save_to_bytes(self) -> bytes:
        source = self.image.source.encode()
        facts = {
            "functions": [function.to_json() for function in self._functions.values()],
            "source": len(source),
            "archs": list(self.image.cubins),
            "cubins": [len(cubin) for cubin in self.image.cubins.values()],
        }
        return pack_module(self.magic, self.schema, facts, (source, *self.image.cubins.values()))

    def inspect(self) -> str:
        """Describe the functions with their kernels, and the compiled code."""
        archs = ", ".join(f"{arch} ({len(cubin)} bytes)" for arch, cubin in self.image.cubins.items()) or "no GPU"
        lines = [f"{self.kind}: {len(self._functions)} functions, code for {archs}"]
        for function in self._functions.values():
            lines.append(f"  {function.symbol}{self.signature(function.symbol)}")
            lines += [
                f"    {each.kernel}<<<{each.blocks}, {each.threads}, {each.shared_nbytes}>>>"
                for each in function.launches
            ]
        return "\n".join(lines)

    @classmethod
    def load_from_bytes(cls, data: bytes, constants: Mapping[str, np.ndarray]) -> Self:
        """Read what `save_to_bytes` wrote; code is loaded when it is first bound.

        Raises: ArtifactCorruptedError, ArtifactVersionError.
        """
        fields, code = unpack_module(data, cls.magic, cls.schema, cls.kind)
        functions = fields.each("functions", read_function_info)
        archs, sizes = fields.texts("archs"), fields.indices("cubins", limit=len(code) + 1)
        if len(archs) != len(sizes):
            raise corrupted(cls.kind, f"{len(sizes)} cubins", f"{len(archs)}, one for each architecture")
        source, *cubins = split_code(code, [fields.integer("source"), *sizes], cls.kind)
        return cls(functions, _text(source, cls.kind), dict(zip(archs, cubins, strict=True)), constants)


def _digests(functions: Sequence[FunctionInfo], constants: Mapping[str, np.ndarray]) -> Iterator[str]:
    for digest in dict.fromkeys(digest for function in functions for digest in function.constants):
        if digest not in constants:
            raise corrupted("CUDA functions", digest, "constants that are there")
        yield digest


class Movers(Mapping[int, Callable[[int], None]]):
    """For each parameter of a function, what tells its launches of another address; made when it is asked for."""

    def __init__(self, count: int, sized: Sequence[SizedLaunch], launches: Sequence[Launch]) -> None:
        self._count, self._sized, self._launches = count, sized, launches

    def __getitem__(self, number: int) -> Callable[[int], None]:
        if not 0 <= number < self._count:
            raise KeyError(number)
        pairs = zip(self._sized, self._launches, strict=True)
        places = [(step, place) for each, step in pairs for place in each.info.places_of(number)]

        def move(address: int) -> None:
            for step, place in places:
                step.move(place, address)

        return move

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def __len__(self) -> int:
        return self._count


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> CudaSourceModule:
    """Load a module of the kind `cuda_source`. Raises: ArtifactCorruptedError, ArtifactVersionError."""
    return CudaSourceModule.load_from_bytes(data, constants)


def _text(data: bytes, kind: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise corrupted(kind, str(error), "CUDA text") from error
