"""Element types and epilogues that cuBLASLt's matmul supports: read by checks and at run time alike.

Source: cuBLAS documentation, "cublasLtMatmul", tables of supported types and epilogues.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard_cublas._enums import DATA_TYPES, ComputeType, DataType

# Matmuls of integers. cuBLAS documents that leading dimensions, and what is summed and the columns of a result, are
# multiples of 4. On several GPUs it has no algorithm for some that are no multiples of 8, nor for few rows, which
# PyTorch's torch._int_mm refuses therefore (pytorch#94339, #106840, #169956).
INT8_LEADING_MULTIPLE = 4
INT8_MULTIPLE = 8
INT8_LEAST_ROWS = 17
FP8 = "float8_e4m3fn"
FP8_ALIGNMENT = 16
FP8_CAPABILITY = (8, 9)
REFUSABLE = ("int8", FP8)  # what the library has no algorithm for at some sizes, on some GPUs


@dataclass(frozen=True)
class ProductType:
    """The compute type and epilogues of a matmul with operands of one dtype.

    compute: what is summed up in. bias: the element type of a bias, None where it can have none. activations, residual:
    whether it can have one. scales: whether operands have scales on the device.
    """

    compute: ComputeType
    scale_type: DataType
    bias: str | None = None
    activations: bool = False
    residual: bool = False
    scales: bool = False


def _float32_product(
    bias: str | None, activations: bool = True, residual: bool = True, scales: bool = False
) -> ProductType:
    return ProductType(ComputeType.C_32F, DataType.R_32F, bias, activations, residual, scales)


# By the element type of the operands as they are stored, and of the result.
PRODUCTS: dict[tuple[str, str], ProductType] = {
    ("float32", "float32"): _float32_product("float32"),
    ("float16", "float16"): _float32_product("float16"),
    ("bfloat16", "bfloat16"): _float32_product("bfloat16"),
    ("float16", "float32"): _float32_product("float32"),
    ("bfloat16", "float32"): _float32_product("float32"),
    ("float64", "float64"): ProductType(ComputeType.C_64F, DataType.R_64F, residual=True),
    ("int8", "int32"): ProductType(ComputeType.C_32I, DataType.R_32I),
    ("int8", "float32"): _float32_product(None, activations=False, residual=False),
    # A bias of a matmul that is float32 would be bfloat16.
    (FP8, "float32"): _float32_product(None, scales=True),
    (FP8, "float16"): _float32_product("float16", scales=True),
    (FP8, "bfloat16"): _float32_product("bfloat16", scales=True),
    (FP8, FP8): _float32_product(None, activations=False, residual=False, scales=True),
}


def c_type(result: str) -> DataType:
    """Return the type of the matrix C, which is also to be stated where nothing is read of it."""
    return DataType.R_16BF if result == FP8 else DATA_TYPES[result]


def alignment_of_columns(result: str) -> int:
    """Return the required multiple of a float8 matmul's columns: 16 bytes of the result.

    Example:
        >>> alignment_of_columns("float32"), alignment_of_columns(FP8)
        (4, 16)
    """
    return FP8_ALIGNMENT // dtypes.itemsize(result)
