"""External modules: functions that people wrote themselves, called by a model like any operator.

A function takes its inputs and then the outputs that it fills, each a `DLTensor*` or a view of one, and is exported
with the macro `TVM_FFI_DLL_EXPORT_TYPED_FUNC(symbol, function)`. The headers `dlpack/dlpack.h` and `tvm/ffi/...` are
there. For each symbol a Python function says what comes out: it gets the inputs, and returns a
`Tensor.placeholder(shape, dtype)` or a tuple of them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import FrontendError, KernelyardError, ToolchainError
from kernelyard.nn import cpp_compiler, scope
from kernelyard.nn.op.calls import as_tensors, call_extern, check_symbol
from kernelyard.nn.tensor import Operand, Tensor
from kernelyard.runtime.api import PREFIX, ExternLibrary, RuntimeModule
from kernelyard_cuda import compiler as cuda_compiler
from kernelyard_cuda.function_info import MOST_SHARED_NBYTES, MOST_THREADS, LaunchInfo
from kernelyard_cuda.kernels import ARCH, CudaKernels, size_symbol

Inference = Callable[..., "Tensor | Sequence[Tensor]"]


class ExternModule(ABC):
    """Functions by symbol; `module["name"](*tensors)` calls one in a method of a model.

    symbols: for each symbol the function that infers its outputs. Each symbol may be in one module of a model only, and
    a model that calls any is exported only with `allow_extern=True`.
    Raises: FrontendError for what is no name of a C function.
    """

    def __init__(self, symbols: Mapping[str, Inference]) -> None:
        for symbol in symbols:
            check_symbol(symbol)
        if not symbols:
            raise FrontendError("an external module has no symbols")
        self.symbols = dict(symbols)

    @abstractmethod
    def load(self) -> RuntimeModule:
        """Return the compiled functions. Raises: ToolchainError."""

    def __getitem__(self, symbol: str) -> Callable[..., Any]:
        """Return the function of that name. Raises: FrontendError."""
        if symbol not in self.symbols:
            raise FrontendError(f"there is no symbol {symbol!r}", expected=", ".join(self.symbols))
        return partial(self._call, symbol)

    def _call(self, symbol: str, *args: Operand) -> Tensor | tuple[Tensor, ...]:
        scope.current().externs.add(self, symbol)
        operands = as_tensors(symbol, args)
        try:
            inferred = self.symbols[symbol](*operands)
        except KernelyardError:
            raise
        except Exception as error:  # the user's code
            found = f"{type(error).__name__}: {error}, for {', '.join(map(repr, operands))}"
            raise FrontendError(f"the inference function of {symbol} failed", found=found) from error
        return call_extern(symbol, operands, inferred)


class ObjectModule(ExternModule):
    """Functions of an object file (`.o`), compiled as position-independent code.

    path: of the file. link_options: for the linker, such as `-lblas`. compiler: the command that links, else `CXX` or
    what is found. Raises (`load`): ToolchainError when there is no compiler, it fails, or a symbol is not exported.
    """

    def __init__(
        self,
        symbols: Mapping[str, Inference],
        path: str | os.PathLike[str],
        link_options: Sequence[str] = (),
        compiler: str | None = None,
    ) -> None:
        super().__init__(symbols)
        self._path = Path(path)
        if not self._path.is_file():
            raise FrontendError("there is no such object file", where=str(path))
        self._link_options, self._compiler = tuple(link_options), compiler

    def load(self) -> RuntimeModule:
        return self._library

    @cached_property
    def _library(self) -> ExternLibrary:
        return _link(self._path.read_bytes(), tuple(self.symbols), self._link_options, self._compiler)


@dataclass(frozen=True)
class LaunchGrid:
    """The launch grid of a CUDA kernel: blocks along x, y and z, threads of a block along x, bytes of dynamic shared
    memory."""

    blocks: Sequence[Dim]
    threads: int = 256
    shared_nbytes: int = 0


class SourceModule(ExternModule):
    """Functions in C++ or CUDA C++: text, or a `Path` of a file, whose folder is searched for its headers.

    source_format: "cpp", or "cu" for kernels (`kernelyard_cuda.kernels` says what they take), with the `arch` of the
    GPUs that they are for, such as "sm_90". No GPU is needed to compile them; the emulator runs text that includes no
    headers of its own. grids: for a kernel a function of its inputs and outputs that returns its LaunchGrid, whose
    blocks are computed from their shapes; kernels without one get a thread for each element of their first output.
    compile_options: added to C++17, and for C++ -O3 and position-independent code. link_options, compiler: see
    `ObjectModule`; for "cu" a compiler is nvcc, else NVRTC.
    Raises: FrontendError for a file that is not there, another format or arch; (`load`) ToolchainError when there is no
    compiler, it fails, or a symbol is not exported.
    """

    def __init__(
        self,
        symbols: Mapping[str, Inference],
        source: str | Path,
        source_format: Literal["cpp", "cu"] = "cpp",
        compile_options: Sequence[str] = (),
        link_options: Sequence[str] = (),
        compiler: str | None = None,
        arch: str | None = None,
        grids: Mapping[str, Callable[..., LaunchGrid]] = MappingProxyType({}),
    ) -> None:
        super().__init__(symbols)
        if isinstance(source, Path) and not source.is_file():
            raise FrontendError("there is no such source file", where=str(source))
        if source_format not in ("cpp", "cu"):
            raise FrontendError("the source format is unknown", found=repr(source_format), expected="cpp, cu")
        self._arch = _check_arch(arch, source_format == "cu")
        for symbol in grids:
            if symbol not in symbols or source_format != "cu":
                raise FrontendError("a grid is given for what is no CUDA kernel here", found=symbol)
        self._grids, self._launches = dict(grids), dict[str, LaunchInfo]()
        self._source, self._compiler = source, compiler
        self._compile_options, self._link_options = tuple(compile_options), tuple(link_options)

    def _call(self, symbol: str, *args: Operand) -> Tensor | tuple[Tensor, ...]:
        results = super()._call(symbol, *args)
        if symbol in self._grids:
            outputs = results if isinstance(results, tuple) else (results,)
            launch = _launch_of(symbol, self._grids[symbol], [*as_tensors(symbol, args), *outputs])
            if self._launches.setdefault(symbol, launch) != launch:
                raise FrontendError("the grid of a kernel must be the same in each call", found=symbol)
        return results

    def compile(self) -> bytes:
        """Return the object file, or the cubin. Raises: ToolchainError."""
        is_file = isinstance(self._source, Path)
        text = self._text
        folders = [Path(self._source).parent] if is_file else []
        if self._arch is not None:
            return cuda_compiler.compile_cubin(text, self._arch, self._compile_options, folders, self._compiler)
        return cpp_compiler.compile_object(text, self._compile_options, folders, self._compiler)

    @property
    def _text(self) -> str:
        return self._source.read_text(encoding="utf-8") if isinstance(self._source, Path) else self._source

    def load(self) -> RuntimeModule:
        return self._library

    @cached_property
    def _library(self) -> RuntimeModule:
        if self._arch is not None:
            missing = self._grids.keys() - self._launches.keys()
            if missing:
                raise FrontendError("the grid of a kernel is not known before it is called", found=", ".join(missing))
            launches = tuple(self._launches.values())
            return _check_kernels(CudaKernels(self.compile(), tuple(self.symbols), self._arch, self._text, launches))
        return _link(self.compile(), tuple(self.symbols), self._link_options, self._compiler)


def _launch_of(symbol: str, grid_of: Callable[..., LaunchGrid], tensors: Sequence[Tensor]) -> LaunchInfo:
    """Return the launch of a kernel, over symbols for all sizes of its arguments. Raises: FrontendError."""
    shapes = [[dims.symbol(size_symbol(n, axis)) for axis in range(len(t.shape))] for n, t in enumerate(tensors)]
    placeholders = [Tensor.placeholder(shape, t.dtype) for shape, t in zip(shapes, tensors, strict=True)]
    try:
        grid = grid_of(*placeholders)
        x, y, z = (*grid.blocks, 1, 1)[:3] if len(grid.blocks) < 3 else grid.blocks
    except Exception as error:  # the user's code
        raise FrontendError(
            f"the grid function of {symbol} failed", found=f"{type(error).__name__}: {error}"
        ) from error
    if not 1 <= grid.threads <= MOST_THREADS or not 0 <= grid.shared_nbytes <= MOST_SHARED_NBYTES:
        raise FrontendError(f"the grid of {symbol} has blocks that no GPU runs", found=repr(grid))
    return LaunchInfo(symbol, (x, y, z), grid.threads, grid.shared_nbytes, (), ())


def _check_arch(arch: str | None, is_needed: bool) -> str | None:
    if is_needed and (arch is None or not ARCH.match(arch)):
        raise FrontendError("CUDA code needs the arch of a GPU", found=f"arch={arch!r}", expected="such as 'sm_90'")
    if arch is not None and not is_needed:
        raise FrontendError(
            "the option arch is for CUDA code alone", found=f"arch={arch!r}", hint='source_format="cu" for CUDA code'
        )
    return arch


def _check_kernels(kernels: CudaKernels) -> CudaKernels:
    missing = kernels.missing()
    if missing:
        raise ToolchainError(
            "the compiled code lacks the kernels of its symbols",
            found=f"no {', '.join(missing)}",
            hint=f'extern "C" __global__ void {missing[0]}(...) is one',
        )
    return kernels


def _link(object_file: bytes, symbols: tuple[str, ...], options: Sequence[str], compiler: str | None) -> ExternLibrary:
    library = ExternLibrary(cpp_compiler.link_library(object_file, options, compiler), symbols)
    missing = library.missing()
    if missing:
        raise ToolchainError(
            "the compiled code does not export its symbols",
            found=f"no {', '.join(PREFIX + symbol for symbol in missing)}",
            hint=f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({missing[0]}, function) of tvm/ffi/function.h exports one",
        )
    return library
