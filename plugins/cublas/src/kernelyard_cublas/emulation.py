"""EmulatedLt: cuBLASLt on the host's memory, computed by NumPy; it stands in where the emulator stands in for a GPU.

It knows of a matmul what the library is told, and nothing else: column-major matrices, leading dimensions, strides of
batches, operations, types, the epilogue and its pointers are read out of the descriptors. What the library's
documentation does not list is refused, and what a descriptor says wrongly gives wrong numbers.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.api import array_at
from kernelyard_cublas._enums import (
    ALGORITHM_NBYTES,
    DATA_TYPES,
    ORDER_COL,
    Attribute,
    ComputeType,
    DataType,
    Epilogue,
    LayoutAttribute,
    MatmulAttribute,
    Operation,
    PreferenceAttribute,
    Status,
)
from kernelyard_cublas.lt_api import Addresses, Heuristic, Layouts, LtApi, LtError, MatmulCall, Run

VERSION = 10000  # of no cuBLAS that we load, so that nobody's algorithms are taken for another's
PROPOSALS = 4
SECONDS = (3.0, 2.0, 1.0, 4.0)  # of each proposal: the first is not the fastest
WORKSPACE_STEP = 4096
ALIGNMENT = 16
_NAMES = {number: name for name, number in DATA_TYPES.items()}
_SCRIBBLE = 0xA5


class Supported(NamedTuple):
    """The library's support of a combination of types: dtypes of a bias, and whether an activation is possible."""

    biases: tuple[DataType, ...] = ()
    activations: bool = False


_D = DataType
_C = ComputeType
_PLAIN = Supported()


def _with(*biases: DataType) -> Supported:
    return Supported(biases, activations=True)


# (compute type, scale type, A and B, C, D)
SUPPORTED: dict[tuple[ComputeType, DataType, DataType, DataType, DataType], Supported] = {
    (_C.C_32I, _D.R_32I, _D.R_8I, _D.R_32I, _D.R_32I): _PLAIN,
    (_C.C_32F, _D.R_32F, _D.R_8I, _D.R_32F, _D.R_32F): _PLAIN,
    (_C.C_64F, _D.R_64F, _D.R_64F, _D.R_64F, _D.R_64F): _PLAIN,
    (_C.C_32F, _D.R_32F, _D.R_16F, _D.R_16F, _D.R_16F): _with(_D.R_16F),
    (_C.C_32F, _D.R_32F, _D.R_16BF, _D.R_16BF, _D.R_16BF): _with(_D.R_16BF),
    (_C.C_32F, _D.R_32F, _D.R_16F, _D.R_32F, _D.R_32F): _with(_D.R_32F),
    (_C.C_32F, _D.R_32F, _D.R_16BF, _D.R_32F, _D.R_32F): _with(_D.R_32F),
    (_C.C_32F, _D.R_32F, _D.R_32F, _D.R_32F, _D.R_32F): _with(_D.R_32F),
    (_C.C_32F_FAST_TF32, _D.R_32F, _D.R_32F, _D.R_32F, _D.R_32F): _with(_D.R_32F),
    (_C.C_32F, _D.R_32F, _D.R_8F_E4M3, _D.R_32F, _D.R_32F): _with(_D.R_16BF),
    (_C.C_32F, _D.R_32F, _D.R_8F_E4M3, _D.R_16F, _D.R_16F): _with(_D.R_16F),
    (_C.C_32F, _D.R_32F, _D.R_8F_E4M3, _D.R_16BF, _D.R_16BF): _with(_D.R_16BF),
    (_C.C_32F, _D.R_32F, _D.R_8F_E4M3, _D.R_16BF, _D.R_8F_E4M3): _with(_D.R_16BF),
}
_ELEMENTS = {ComputeType.C_64F: np.float64, ComputeType.C_32I: np.int32}

Values = dict[Attribute, int]


class EmulatedLt(LtApi):
    """See the module's text. calls: how often each function was called."""

    version = VERSION

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._descriptors: dict[int, tuple[type[Attribute], Values]] = {}
        self._numbers = itertools.count(0x1000, 0x10)

    @property
    def live(self) -> int:
        """The number of live descriptors."""
        return len(self._descriptors)

    def _create(self, kind: type[Attribute], values: Values) -> int:
        self.calls["create"] += 1
        number = next(self._numbers)
        self._descriptors[number] = kind, values
        return number

    def create_matmul(self, compute: ComputeType, scale_type: DataType) -> int:
        """See `LtApi.create_matmul`."""
        known = {MatmulAttribute.COMPUTE_TYPE: compute, MatmulAttribute.SCALE_TYPE: scale_type}
        defaults = dict.fromkeys(MatmulAttribute, 0) | {MatmulAttribute.EPILOGUE: Epilogue.DEFAULT}
        return self._create(MatmulAttribute, {**defaults, MatmulAttribute.BIAS_DATA_TYPE: -1, **known})

    def create_layout(self, dtype: DataType, rows: int, columns: int, leading: int) -> int:
        """See `LtApi.create_layout`."""
        if leading < rows or rows < 1 or columns < 1:
            raise LtError("cublasLtMatrixLayoutCreate", Status.INVALID_VALUE)
        known = {
            LayoutAttribute.TYPE: dtype,
            LayoutAttribute.ORDER: ORDER_COL,
            LayoutAttribute.ROWS: rows,
            LayoutAttribute.COLS: columns,
            LayoutAttribute.LD: leading,
            LayoutAttribute.BATCH_COUNT: 1,
            LayoutAttribute.STRIDED_BATCH_OFFSET: 0,
        }
        return self._create(LayoutAttribute, {**known})

    def create_preference(self) -> int:
        """See `LtApi.create_preference`."""
        defaults = dict.fromkeys(PreferenceAttribute, 256) | {PreferenceAttribute.MAX_WORKSPACE_BYTES: 0}
        return self._create(PreferenceAttribute, {**defaults})

    def set(self, descriptor: int, attribute: Attribute, value: int) -> None:
        """See `LtApi.set`."""
        self.calls["set"] += 1
        if not -1 <= value < 1 << 8 * attribute.nbytes:
            raise LtError("SetAttribute", Status.INVALID_VALUE)
        self._values(descriptor, type(attribute))[attribute] = int(value)

    def get(self, descriptor: int, attribute: Attribute) -> int:
        """See `LtApi.get`."""
        return self._values(descriptor, type(attribute))[attribute] % (1 << 8 * attribute.nbytes)

    def destroy(self, descriptor: int) -> None:
        """See `LtApi.destroy`."""
        self.calls["destroy"] += 1
        del self._descriptors[descriptor]

    def _values(self, descriptor: int, kind: type[Attribute]) -> Values:
        found = self._descriptors.get(descriptor)
        if found is None or found[0] is not kind:
            raise LtError(f"a function over {kind.__name__}", Status.INVALID_VALUE)
        return found[1]

    def _product(self, matmul: int, layouts: Layouts) -> Product:
        matrices = [Matrix(self._values(layout, LayoutAttribute)) for layout in layouts]
        return Product(self._values(matmul, MatmulAttribute), *matrices)

    def heuristics(self, matmul: int, layouts: Layouts, preference: int, count: int) -> Sequence[Heuristic]:
        """See `LtApi.heuristics`."""
        self.calls["heuristics"] += 1
        product, wanted = self._product(matmul, layouts), self._values(preference, PreferenceAttribute)
        if not product.is_supported or any(wanted[each] < ALIGNMENT for each in _ALIGNMENTS):
            return []
        found = [Heuristic(product.algorithm(i), i * WORKSPACE_STEP) for i in range(min(count, PROPOSALS))]
        return [each for each in found if each.workspace <= wanted[PreferenceAttribute.MAX_WORKSPACE_BYTES]]

    def check(self, matmul: int, layouts: Layouts, algorithm: bytes) -> Heuristic | None:
        """See `LtApi.check`."""
        self.calls["check"] += 1
        index = algorithm[0]
        is_own = index < PROPOSALS and algorithm == self._product(matmul, layouts).algorithm(index)
        return Heuristic(algorithm, index * WORKSPACE_STEP) if is_own else None

    def prepare(self, call: MatmulCall) -> Run:
        """See `LtApi.prepare`."""
        return EmulatedCall(self, call)

    def run(self, call: MatmulCall) -> None:
        """Carry out a call, if the library would."""
        self.calls["matmul"] += 1
        product = self._product(call.matmul, call.layouts)
        needed = self.check(call.matmul, call.layouts, call.heuristic.algorithm)
        if not product.is_supported:
            raise LtError("cublasLtMatmul", Status.NOT_SUPPORTED)
        if needed is None or not product.may_lie_at(call.addresses, is_c_read=call.beta != 0):
            raise LtError("cublasLtMatmul", Status.INVALID_VALUE)
        if needed.workspace > call.heuristic.workspace or (needed.workspace and not call.workspace):
            raise LtError("cublasLtMatmul", Status.INVALID_VALUE)
        if needed.workspace:
            ctypes.memset(call.workspace, _SCRIBBLE, needed.workspace)
        product.compute(call)

    def seconds(self, run: Run, stream: int) -> float:
        """See `LtApi.seconds`: a table, since time here says nothing of a GPU."""
        self.calls["seconds"] += 1
        run(stream)
        assert isinstance(run, EmulatedCall)
        return SECONDS[run.call.heuristic.algorithm[0]]


class EmulatedCall(NamedTuple):
    """A call that is ready to run."""

    api: EmulatedLt
    call: MatmulCall

    def __call__(self, stream: int) -> None:
        self.api.run(self.call)


_ALIGNMENTS = tuple(each for each in PreferenceAttribute if each is not PreferenceAttribute.MAX_WORKSPACE_BYTES)


class Matrix:
    """A layout's matrices in memory."""

    def __init__(self, values: Values) -> None:
        self.dtype = DataType(values[LayoutAttribute.TYPE])
        self.rows, self.columns = values[LayoutAttribute.ROWS], values[LayoutAttribute.COLS]
        self.leading = values[LayoutAttribute.LD]
        self.batch, self.stride = values[LayoutAttribute.BATCH_COUNT], values[LayoutAttribute.STRIDED_BATCH_OFFSET]
        self.is_column_major = values[LayoutAttribute.ORDER] == ORDER_COL

    def at(self, address: int) -> np.ndarray:
        """(batch, rows, columns), as it lies there."""
        name = _NAMES[self.dtype]
        count = (self.batch - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
        size = dtypes.itemsize(name)
        strides = (self.stride * size, size, self.leading * size)
        flat = array_at(address, (count,), name)
        return np.lib.stride_tricks.as_strided(flat, (self.batch, self.rows, self.columns), strides)


class Product:
    """A matmul as its descriptors describe it."""

    def __init__(self, values: Values, a: Matrix, b: Matrix, c: Matrix, d: Matrix) -> None:
        self.values = values
        self.a, self.b, self.c, self.d = a, b, c, d
        self.operations = Operation(values[MatmulAttribute.TRANSA]), Operation(values[MatmulAttribute.TRANSB])
        self.epilogue = values[MatmulAttribute.EPILOGUE]

    @property
    def pointers(self) -> list[int]:
        """Addresses that descriptors hold; 0 where one is missing."""
        scales = (MatmulAttribute.A_SCALE_POINTER, MatmulAttribute.B_SCALE_POINTER)
        found = [self.values[each] for each in scales if self.values[each]]
        return [*found, *([self.values[MatmulAttribute.BIAS_POINTER]] if self.has_bias else [])]

    def may_lie_at(self, addresses: Addresses, is_c_read: bool) -> bool:
        """Check that what is read is somewhere, aligned, and that C lies where D does only if their layouts agree."""
        used = addresses if is_c_read or addresses.c else addresses._replace(c=addresses.d)
        is_in_place = addresses.c == addresses.d
        return all(each and each % ALIGNMENT == 0 for each in (*used, *self.pointers)) and (
            not is_in_place or vars(self.c) == vars(self.d)
        )

    @property
    def has_bias(self) -> bool:
        return bool(self.epilogue & Epilogue.BIAS)

    @property
    def bias_type(self) -> DataType:
        stated = self.values[MatmulAttribute.BIAS_DATA_TYPE]
        return self.d.dtype if stated < 0 else DataType(stated)

    @property
    def is_supported(self) -> bool:
        """True if the library supports this: types, epilogue, sizes."""
        compute, scale = self.values[MatmulAttribute.COMPUTE_TYPE], self.values[MatmulAttribute.SCALE_TYPE]
        types = ComputeType(compute), DataType(scale), self.a.dtype, self.c.dtype, self.d.dtype
        entry = SUPPORTED.get(types) if self.a.dtype == self.b.dtype else None
        if entry is None or self.epilogue not in set(Epilogue):
            return False
        if self.has_bias and self.bias_type not in entry.biases:
            return False
        if self.epilogue & (Epilogue.RELU | Epilogue.GELU) and not entry.activations:
            return False
        return self._fits() and self._is_aligned()

    def _fits(self) -> bool:
        (m, k), (k_too, n) = (
            (x.columns, x.rows) if operation == Operation.T else (x.rows, x.columns)
            for x, operation in zip((self.a, self.b), self.operations, strict=True)
        )
        matrices = self.a, self.b, self.c, self.d
        same = k == k_too and all((x.rows, x.columns) == (m, n) for x in (self.c, self.d))
        return same and len({x.batch for x in matrices}) == 1 and all(x.is_column_major for x in matrices)

    def _is_aligned(self) -> bool:
        """Check the alignment that int8 and float8 matmuls require of their operands."""
        if self.a.dtype == DataType.R_8I:
            return all(x.leading % 4 == 0 for x in (self.a, self.b))
        if self.a.dtype == DataType.R_8F_E4M3:
            rows = ((x, x.leading * dtypes.itemsize(_NAMES[x.dtype])) for x in (self.a, self.b, self.c, self.d))
            is_tn = self.operations == (Operation.T, Operation.N)
            return is_tn and all(nbytes % 16 == 0 for _, nbytes in rows)
        return not any(self.values[each] for each in (MatmulAttribute.A_SCALE_POINTER, MatmulAttribute.B_SCALE_POINTER))

    def algorithm(self, index: int) -> bytes:
        """Return the opaque bytes of a proposal: they name the problem that it is for."""
        said = {k.name: v for k, v in self.values.items() if not k.name.endswith("POINTER")}
        sizes = [(x.dtype, x.rows, x.columns, x.leading, x.batch, x.stride) for x in (self.a, self.b, self.c, self.d)]
        digest = hashlib.sha512(f"{sorted(said.items())}{sizes}".encode()).digest()
        return bytes([index]) + digest[: ALGORITHM_NBYTES - 1]

    def compute(self, call: MatmulCall) -> None:
        """D, written where it belongs."""
        compute = ComputeType(self.values[MatmulAttribute.COMPUTE_TYPE])
        element = _ELEMENTS.get(compute, np.float32)
        left, right = (
            self._operand(matrix, address, operation, element, compute)
            for matrix, address, operation in zip((self.a, self.b), call.addresses, self.operations, strict=False)
        )
        with np.errstate(all="ignore"):
            total = np.matmul(left, right) * element(call.alpha)
            for attribute in (MatmulAttribute.A_SCALE_POINTER, MatmulAttribute.B_SCALE_POINTER):
                if self.values[attribute]:
                    total = total * array_at(self.values[attribute], (1,), "float32")
            if call.beta:
                total = total + element(call.beta) * self.c.at(call.addresses.c).astype(element)
            result = self.d.at(call.addresses.d)
            result[...] = self._finish(total.astype(element, copy=False)).astype(result.dtype)

    def _operand(
        self, matrix: Matrix, address: int, operation: Operation, element: type, compute: ComputeType
    ) -> np.ndarray:
        values = matrix.at(address).astype(element)
        if compute == ComputeType.C_32F_FAST_TF32:
            values = _as_tf32(values)
        return np.swapaxes(values, 1, 2) if operation == Operation.T else values

    def _finish(self, total: np.ndarray) -> np.ndarray:
        """Add the bias, one number for each row, and apply the activation."""
        if self.has_bias:
            bias = array_at(self.values[MatmulAttribute.BIAS_POINTER], (self.d.rows,), _NAMES[self.bias_type])
            total = total + bias.astype(total.dtype)[:, None]
        if self.epilogue & Epilogue.RELU:
            return np.maximum(total, 0)
        if self.epilogue & Epilogue.GELU:
            inner = np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)
            return cast("np.ndarray", (0.5 * total * (1 + np.tanh(inner))).astype(total.dtype))
        return total


def _as_tf32(values: np.ndarray) -> np.ndarray:
    """Round float32 to 10 bits of mantissa."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
