"""The runtime half: CUDA source and cubins are loaded on a device, and bound to its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import ClassVar

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
from kernelyard_cuda.driver_api import Argument, CudaDriver, Image, Launch, LoadedKernels, require_cuda
from kernelyard_native_cuda.function_info import FunctionInfo, LaunchInfo, arguments, read_function_info

KIND = "native-cuda"
SCHEMA = 2
_MAGIC = b"KYNCUDA1"


class NativeCudaModule(BindableModule):
    """Functions as kernels in CUDA source, and as cubins for the GPUs that they were compiled for."""

    kind: ClassVar[str] = KIND
    device_kind: ClassVar[str] = "cuda"
    is_capturable: ClassVar[bool] = True
    native_hint: ClassVar[str] = "kernelyard.load the library in Python: programs on a GPU are run by it alone"

    def __init__(self, functions: Sequence[FunctionInfo], source: str, cubins: Mapping[str, bytes]) -> None:
        self._functions = {function.symbol: function for function in functions}
        kernels = tuple(launch.kernel for function in functions for launch in function.launches)
        self.image = Image(source, kernels, dict(cubins))
        self._loaded: dict[CudaDriver, LoadedKernels] = {}
        self._lock = Lock()

    def symbols(self) -> tuple[str, ...]:
        return tuple(self._functions)

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
        places, total = function.offsets(values)
        start = context.workspace(total) if total else 0
        tensors = [Argument(arg.address, arg.nbytes) for arg in args]
        tensors += [Argument(start + offset, size) for offset, size in places]
        kernels = self._load(driver)
        launches: list[tuple[LaunchInfo, Launch]] = []
        for launch in function.launches:
            grid = launch.grid(values)
            if grid is not None:  # a grid of nothing is an error to the driver
                packed = arguments(launch, tensors, values)
                launches.append((launch, kernels.prepare(launch.kernel, grid, packed)))
        rebind = {number: _mover(launches, number) for number in range(len(args))}
        return BoundCall([step for _, step in launches], [context, self], rebind)

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
        return pack_module(_MAGIC, SCHEMA, facts, (source, *self.image.cubins.values()))

    def inspect(self) -> str:
        """Functions with their kernels, and the code that there is."""
        archs = ", ".join(f"{arch} ({len(cubin)} bytes)" for arch, cubin in self.image.cubins.items()) or "no GPU"
        lines = [f"native-cuda: {len(self._functions)} functions, code for {archs}"]
        for function in self._functions.values():
            lines.append(f"  {function.symbol}{self.signature(function.symbol)}")
            lines += [
                f"    {each.kernel}<<<{each.blocks}, {each.threads}, {each.shared_nbytes}>>>"
                for each in function.launches
            ]
        return "\n".join(lines)


def _mover(launches: Sequence[tuple[LaunchInfo, Launch]], number: int) -> Callable[[int], None]:
    """Return a setter of a parameter's address in all launches that take it."""
    places = [(step, n) for launch, step in launches for n, tensor in enumerate(launch.tensors) if tensor == number]

    def move(address: int) -> None:
        for step, place in places:
            step.move(place, address)

    return move


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> NativeCudaModule:
    """Read what `save_to_bytes` wrote; code is loaded when it is first bound.

    Raises: ArtifactCorruptedError, ArtifactVersionError.
    """
    fields, code = unpack_module(data, _MAGIC, SCHEMA, KIND)
    functions = fields.each("functions", read_function_info)
    archs, sizes = fields.texts("archs"), fields.indices("cubins", limit=len(code) + 1)
    if len(archs) != len(sizes):
        raise corrupted(KIND, f"{len(sizes)} cubins", f"{len(archs)}, one for each architecture")
    source, *cubins = split_code(code, [fields.integer("source"), *sizes], KIND)
    return NativeCudaModule(functions, _text(source), dict(zip(archs, cubins, strict=True)))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise corrupted(KIND, str(error), "CUDA source") from error
