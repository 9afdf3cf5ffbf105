"""Descriptors: what cuBLASLt is told of a problem, made once for each binding and given back with it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from kernelyard.runtime.api import REBIND_ALIGNMENT
from kernelyard_cublas._enums import LayoutAttribute, MatmulAttribute, Operation, PreferenceAttribute
from kernelyard_cublas.lt_api import Layouts, LtApi
from kernelyard_cublas.problem import Matrix, Problem

WORKSPACE_LIMIT = 32 << 20
# Addresses may move to others of this alignment; kernels load no more than so much at once.
ALIGNMENT = REBIND_ALIGNMENT
POINTERS = {
    "bias": MatmulAttribute.BIAS_POINTER,
    "scale_a": MatmulAttribute.B_SCALE_POINTER,  # the library's A is our right operand
    "scale_b": MatmulAttribute.A_SCALE_POINTER,
}
_ALIGNMENTS = (
    PreferenceAttribute.MIN_ALIGNMENT_A_BYTES,
    PreferenceAttribute.MIN_ALIGNMENT_B_BYTES,
    PreferenceAttribute.MIN_ALIGNMENT_C_BYTES,
    PreferenceAttribute.MIN_ALIGNMENT_D_BYTES,
)


class Descriptors:
    """The description of a matmul, of its four matrices, and of what is asked of algorithms.

    addresses: of the operands that descriptors name: "bias", "scale_a", "scale_b", where the problem has them.
    """

    def __init__(self, api: LtApi, problem: Problem, addresses: Mapping[str, int]) -> None:
        self._api = api
        self._owned: list[int] = []
        weakref.finalize(self, _destroy, api, self._owned)
        self.matmul = self._matmul(problem)
        for role in POINTERS:
            if role in addresses:
                self.point(role, addresses[role])
        self.layouts = Layouts(*(self._layout(each) for each in (problem.a, problem.b, problem.c, problem.d)))
        self.preference = self._own(api.create_preference())
        api.set(self.preference, PreferenceAttribute.MAX_WORKSPACE_BYTES, WORKSPACE_LIMIT)
        for attribute in _ALIGNMENTS:
            api.set(self.preference, attribute, ALIGNMENT)

    def point(self, role: str, address: int) -> None:
        """Say where such an operand is."""
        self._api.set(self.matmul, POINTERS[role], address)

    def _own(self, descriptor: int) -> int:
        self._owned.append(descriptor)
        return descriptor

    def _matmul(self, problem: Problem) -> int:
        matmul = self._own(self._api.create_matmul(problem.compute, problem.scale_type))
        self._api.set(matmul, MatmulAttribute.TRANSA, Operation.T if problem.transpose_a else Operation.N)
        self._api.set(matmul, MatmulAttribute.TRANSB, Operation.T if problem.transpose_b else Operation.N)
        self._api.set(matmul, MatmulAttribute.EPILOGUE, problem.epilogue)
        if problem.bias is not None:
            self._api.set(matmul, MatmulAttribute.BIAS_DATA_TYPE, problem.bias)
        return matmul

    def _layout(self, matrix: Matrix) -> int:
        layout = self._own(self._api.create_layout(matrix.dtype, matrix.rows, matrix.columns, matrix.rows))
        if matrix.batch > 1:
            self._api.set(layout, LayoutAttribute.BATCH_COUNT, matrix.batch)
            self._api.set(layout, LayoutAttribute.STRIDED_BATCH_OFFSET, matrix.stride)
        return layout


def _destroy(api: LtApi, descriptors: list[int]) -> None:
    for descriptor in descriptors:
        api.destroy(descriptor)
