"""Supported matmuls, and the kernels they become."""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.api import Constant, Decline, Gemm, Match, gemm_of
from kernelyard_cutlass.description import Description, Settings, check_dtypes, describe_epilogue
from kernelyard_cutlass.epilogue import Epilogue
from kernelyard_cutlass.tiles import alignment_of

LEAST_BYTE_ALIGNMENT = 4  # elements of int8 that are brought at once


def describe_matmul(match: Match, settings: Settings) -> Description | Decline:
    """Return a matmul of floats, perhaps of a right side that is stored transposed, with what follows on it."""
    gemm = check_dtypes([match["lhs"], match["rhs"]]) or check_gemm(match)
    if isinstance(gemm, Decline):
        return gemm
    behind = describe_epilogue(match, match["root"].tensor_type.shape)
    if isinstance(behind, Decline):
        return behind
    column_major = match.call_of("root").args[1] in match.members
    roles = {"lhs": "lhs", "rhs": "rhs", **behind.roles}
    choices = gemm_choices(match, gemm, column_major, behind.epilogue, settings)
    return Description("gemm", roles, {"column_major": column_major, "tune": settings.tune}, choices)


def check_gemm(match: Match) -> Gemm | Decline:
    """Return the matmul as one call, or why it is none: rows of an unknown length would have to be read one by one."""
    gemm = gemm_of(match)
    if isinstance(gemm, Decline):
        return gemm
    if not isinstance(gemm.inner, int):
        return Decline(
            "dynamic-shape", f"the contraction size {gemm.inner} is not known, and so neither is its alignment"
        )
    if gemm.inner == 0:
        return Decline("attribute", "the contraction size is 0")
    return gemm


def gemm_choices(
    match: Match, gemm: Gemm, column_major: bool, epilogue: Epilogue, settings: Settings
) -> dict[str, Any]:
    """Return the attributes by which a matmul's kernels are chosen."""
    dtype, output = match["lhs"].tensor_type.dtype, match.root.tensor_type.dtype
    return {
        "family": "gemm",
        "dtype": dtype,
        "output": output,
        "math": settings.math(dtype),
        "column_major": column_major,
        "alignment_a": alignment_of(gemm.inner, dtype),
        "alignment_b": alignment_of(gemm.inner if column_major else gemm.columns, dtype),
        "alignment_c": alignment_of(gemm.columns, output),
        "activation": epilogue.activation,
        "combine": epilogue.combine,
        "final": epilogue.final,
        "problem": (gemm.rows, gemm.columns, gemm.inner, gemm.batch),
        "archs": settings.archs,
        "tune": settings.tune,
    }


def describe_int8_matmul(match: Match, settings: Settings) -> Description | Decline:
    """Return a matmul of int8 gathered in int32. The tensor cores read both sides along what is summed."""
    gemm = check_dtypes([match["lhs"], match["rhs"]], ("int8",)) or check_gemm(match)
    if isinstance(gemm, Decline):
        return gemm
    if alignment_of(gemm.inner, "int8") < LEAST_BYTE_ALIGNMENT:
        return Decline("alignment", f"the contraction size of int8 is {gemm.inner}; a multiple of 4 is needed")
    is_transposed = "transposed" in match.captures
    if not is_transposed and not isinstance(match["rhs"], Constant):
        message = "the right operand is row-major, but int8 must be contiguous along the contraction axis"
        return Decline("layout", f"{message}: transpose it, or make it a constant", match["rhs"])
    behind = describe_epilogue(match, match["root"].tensor_type.shape)
    if isinstance(behind, Decline):
        return behind
    roles = {"lhs": "lhs", "rhs": "rhs" if is_transposed else "rhs_rows", **behind.roles}
    choices = gemm_choices(match, gemm, True, behind.epilogue, settings)
    return Description("gemm", roles, {"column_major": True, "tune": settings.tune}, choices)
