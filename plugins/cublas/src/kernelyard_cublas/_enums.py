"""Numbers of the cuBLASLt API; those that we use are the same in cuBLAS 12 and 13.

Source: `cublasLt.h`, `cublas_api.h` and `library_types.h`.
"""

from __future__ import annotations

from enum import Enum, IntEnum

ALGORITHM_NBYTES = 64


class Status(IntEnum):
    """`cublasStatus_t`."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    ALLOC_FAILED = 3
    INVALID_VALUE = 7
    ARCH_MISMATCH = 8
    MAPPING_ERROR = 11
    EXECUTION_FAILED = 13
    INTERNAL_ERROR = 14
    NOT_SUPPORTED = 15
    LICENSE_ERROR = 16


class DataType(IntEnum):
    """`cudaDataType_t`."""

    R_32F = 0
    R_64F = 1
    R_16F = 2
    R_8I = 3
    R_32I = 10
    R_16BF = 14
    R_8F_E4M3 = 28


DATA_TYPES = {
    "float32": DataType.R_32F,
    "float64": DataType.R_64F,
    "float16": DataType.R_16F,
    "bfloat16": DataType.R_16BF,
    "int8": DataType.R_8I,
    "int32": DataType.R_32I,
    "float8_e4m3fn": DataType.R_8F_E4M3,
}


class ComputeType(IntEnum):
    """`cublasComputeType_t`: what matmuls are summed up in."""

    C_32F = 68
    C_64F = 70
    C_32I = 72
    C_32F_FAST_TF32 = 77


class Operation(IntEnum):
    """`cublasOperation_t`."""

    N = 0
    T = 1


ORDER_COL = 0  # `cublasLtOrder_t`: columns lie one after another


class Epilogue(IntEnum):
    """`cublasLtEpilogue_t`; RELU and GELU may each be joined with BIAS."""

    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


class Attribute(Enum):
    """An attribute of a descriptor: its number, and how many bytes it takes."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes


class MatmulAttribute(Attribute):
    """`cublasLtMatmulDescAttributes_t`."""

    COMPUTE_TYPE = 0, 4
    SCALE_TYPE = 1, 4
    TRANSA = 3, 4
    TRANSB = 4, 4
    EPILOGUE = 7, 4
    BIAS_POINTER = 8, 8
    A_SCALE_POINTER = 17, 8
    B_SCALE_POINTER = 18, 8
    BIAS_DATA_TYPE = 26, 4


class LayoutAttribute(Attribute):
    """`cublasLtMatrixLayoutAttribute_t`."""

    TYPE = 0, 4
    ORDER = 1, 4
    ROWS = 2, 8
    COLS = 3, 8
    LD = 4, 8
    BATCH_COUNT = 5, 4
    STRIDED_BATCH_OFFSET = 6, 8


class PreferenceAttribute(Attribute):
    """`cublasLtMatmulPreferenceAttributes_t`."""

    MAX_WORKSPACE_BYTES = 1, 8
    MIN_ALIGNMENT_A_BYTES = 5, 4
    MIN_ALIGNMENT_B_BYTES = 6, 4
    MIN_ALIGNMENT_C_BYTES = 7, 4
    MIN_ALIGNMENT_D_BYTES = 8, 4
