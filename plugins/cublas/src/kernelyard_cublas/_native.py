"""The cuBLASLt C API by ctypes: the library's functions, and nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cached_property
from typing import Any

from kernelyard_cublas._enums import (
    ALGORITHM_NBYTES,
    Attribute,
    ComputeType,
    DataType,
    LayoutAttribute,
    MatmulAttribute,
    Status,
)
from kernelyard_cublas.lt_api import Heuristic, Layouts, LtApi, LtError, MatmulCall, Run
from kernelyard_cublas.stopwatch import Stopwatch

_OUT = POINTER(c_void_p)
_ATTRIBUTE = (c_void_p, c_int, c_void_p, c_size_t)

# Argument types of every function that we call; each returns a cublasStatus_t.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_OUT,),
    "cublasLtMatmulDescCreate": (_OUT, c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulDescGetAttribute": (*_ATTRIBUTE, POINTER(c_size_t)),
    "cublasLtMatrixLayoutCreate": (_OUT, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatrixLayoutSetAttribute": _ATTRIBUTE,
    "cublasLtMatrixLayoutGetAttribute": (*_ATTRIBUTE, POINTER(c_size_t)),
    "cublasLtMatmulPreferenceCreate": (_OUT,),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulPreferenceGetAttribute": (*_ATTRIBUTE, POINTER(c_size_t)),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, POINTER(c_int)),
    "cublasLtMatmulAlgoCheck": (*[c_void_p] * 8,),
    "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
}

_KINDS = {MatmulAttribute: "MatmulDesc", LayoutAttribute: "MatrixLayout"}
_SCALARS = {DataType.R_32F: c_float, DataType.R_64F: c_double, DataType.R_32I: c_int32}


class _HeuristicResult(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = [
        ("algorithm", c_uint64 * (ALGORITHM_NBYTES // 8)),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class LtLibrary(LtApi):
    """One loaded libcublasLt. Descriptors need no GPU; algorithms and matmuls do.

    Raises: OSError when the file cannot be loaded, AttributeError when it lacks a function that we need.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        library = ctypes.CDLL(path)
        library.cublasLtGetVersion.restype = c_size_t
        library.cublasLtGetStatusName.argtypes, library.cublasLtGetStatusName.restype = (c_int,), c_char_p
        self.version = int(library.cublasLtGetVersion())
        self._functions = {name: _function(library, name, types) for name, types in SIGNATURES.items()}
        self._kind_of: dict[int, str] = {}

    @cached_property
    def _handle(self) -> c_void_p:
        """The library's context; it belongs to the device that is current when it is first asked for."""
        return self._create("cublasLtCreate")

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            raise LtError(name, status)

    def _create(self, name: str, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle

    def _descriptor(self, kind: str, *arguments: Any) -> int:
        address = self._create(f"cublasLt{kind}Create", *arguments).value
        assert address is not None
        self._kind_of[address] = kind
        return address

    def create_matmul(self, compute: ComputeType, scale_type: DataType) -> int:
        """See `LtApi.create_matmul`."""
        return self._descriptor("MatmulDesc", compute, scale_type)

    def create_layout(self, dtype: DataType, rows: int, columns: int, leading: int) -> int:
        """See `LtApi.create_layout`."""
        return self._descriptor("MatrixLayout", dtype, rows, columns, leading)

    def create_preference(self) -> int:
        """See `LtApi.create_preference`."""
        return self._descriptor("MatmulPreference")

    def set(self, descriptor: int, attribute: Attribute, value: int) -> None:
        """See `LtApi.set`."""
        data = value.to_bytes(attribute.nbytes, "little", signed=value < 0)
        self._call(f"cublasLt{_kind(attribute)}SetAttribute", descriptor, attribute.number, data, attribute.nbytes)

    def get(self, descriptor: int, attribute: Attribute) -> int:
        """See `LtApi.get`."""
        data, written = ctypes.create_string_buffer(attribute.nbytes), c_size_t()
        name = f"cublasLt{_kind(attribute)}GetAttribute"
        self._call(name, descriptor, attribute.number, data, attribute.nbytes, ctypes.byref(written))
        return int.from_bytes(data.raw, "little")

    def destroy(self, descriptor: int) -> None:
        """See `LtApi.destroy`."""
        self._call(f"cublasLt{self._kind_of.pop(descriptor)}Destroy", descriptor)

    def heuristics(self, matmul: int, layouts: Layouts, preference: int, count: int) -> Sequence[Heuristic]:
        """See `LtApi.heuristics`."""
        results, found = (_HeuristicResult * count)(), c_int()
        arguments = (self._handle, matmul, *layouts, preference, count, results, ctypes.byref(found))
        status = self._functions["cublasLtMatmulAlgoGetHeuristic"](*arguments)
        if status == Status.NOT_SUPPORTED:
            return []
        if status:
            raise LtError("cublasLtMatmulAlgoGetHeuristic", status)
        usable = [result for result in results[: found.value] if result.state == Status.SUCCESS]
        return [Heuristic(bytes(result.algorithm), result.workspace, result.waves) for result in usable]

    def check(self, matmul: int, layouts: Layouts, algorithm: bytes) -> Heuristic | None:
        """See `LtApi.check`."""
        result = _HeuristicResult()
        packed = ctypes.create_string_buffer(algorithm, ALGORITHM_NBYTES)
        arguments = (self._handle, matmul, *layouts, packed, ctypes.byref(result))
        if self._functions["cublasLtMatmulAlgoCheck"](*arguments) or result.state:
            return None
        return Heuristic(algorithm, result.workspace, result.waves)

    def prepare(self, call: MatmulCall) -> Run:
        """See `LtApi.prepare`."""
        function = self._functions["cublasLtMatmul"]
        scalar = _SCALARS[call.scale_type]
        alpha, beta = (scalar(int(s) if scalar is c_int32 else s) for s in (call.alpha, call.beta))
        algorithm = ctypes.create_string_buffer(call.heuristic.algorithm, ALGORITHM_NBYTES)
        matrices = [c_void_p(each) for pair in zip(call.addresses, call.layouts, strict=True) for each in pair]
        packed = (
            self._handle,
            c_void_p(call.matmul),
            ctypes.byref(alpha),
            *matrices[:4],
            ctypes.byref(beta),
            *matrices[4:],
            algorithm,
            c_void_p(call.workspace),
            c_size_t(call.heuristic.workspace),
        )

        def run(stream: int) -> None:
            status = function(*packed, stream)
            if status:
                raise LtError("cublasLtMatmul", status)

        return run

    def seconds(self, run: Run, stream: int) -> float:
        """See `LtApi.seconds`."""
        return self._stopwatch.seconds(run, stream)

    @cached_property
    def _stopwatch(self) -> Stopwatch:
        return Stopwatch()


def _kind(attribute: Attribute) -> str:
    return _KINDS.get(type(attribute), "MatmulPreference")


def _function(library: ctypes.CDLL, name: str, types: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, c_int
    return function
