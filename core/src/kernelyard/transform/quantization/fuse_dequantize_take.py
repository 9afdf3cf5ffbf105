"""Columns of quantized weights that a product reads as well: one form of them serves both, and is stored once."""

from __future__ import annotations

from collections.abc import Collection

from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, TensorType, Var
from kernelyard.legalize.indexing import safe_index
from kernelyard.patterns.dequantized import is_dequantized
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.verify import verify
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir, mutate_with_prim_funcs
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.quantization.fuse_dequantize_matmul import pack_columns_in_words
from kernelyard.transform.quantization.multiply_blocks import pack_blocks_in_words
from kernelyard.transform.quantization.stored_weights import StoredWeights, WeightConstants, read_stored_weights


class FuseDequantizeTake(Pass):
    """Fuse `take(w, indices, axis=1)` with the dequantization of a constant `w` (K, N): only those columns are read.

    Of the forms in which products read integers, it takes the one that the module has of these already: an embedding
    that is also the head of a language model is stored once. Run it after `FuseDequantizeMatmul`.
    """

    name = "fuse_dequantize_take"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        calls = (b.value for f in module.entry_functions().values() for b in f.bindings if isinstance(b.value, Call))
        present = {
            arg for call in calls if call.op_name == "call_tir" for arg in call.args if isinstance(arg, Constant)
        }
        return mutate_with_prim_funcs(module, lambda table: _Fuser(table, present))


class _Fuser(FunctionMutator):
    def __init__(self, functions: PrimFuncTable, present: Collection[Constant]) -> None:
        super().__init__()
        self.functions, self.present = functions, present

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "take" or value.attrs["axis"] not in (1, -1):
            return value
        matrix, indices = value.args
        if matrix.tensor_type.rank != 2 or not is_dequantized(matrix, self.value_of):
            return value
        stored = read_stored_weights(matrix, self.value_of)
        if stored is None:
            return value
        constants = self._constants(stored)
        function = _columns(indices.tensor_type, matrix.tensor_type, value.tensor_type, constants)
        name = self.functions.name_of(function, "dequantize_take")
        return call_tir(name, [indices, *constants.inputs.values()], value.type)

    def _constants(self, stored: StoredWeights) -> WeightConstants:
        """Return the weights as a product of blocks reads them, where there is one, or else as any other product."""
        of_blocks = pack_blocks_in_words(stored)
        is_present = of_blocks is not None and any(
            each.type == of_blocks.words.type and each.digest == of_blocks.words.digest for each in self.present
        )
        return of_blocks if of_blocks is not None and is_present else pack_columns_in_words(stored)


def _columns(indices: TensorType, matrix: TensorType, result: TensorType, constants: WeightConstants) -> PrimFunc:
    """Return the function that reads columns: (K, *indices)."""
    b = PrimFuncBuilder()
    places = b.input("i", indices)
    buffers = {name: b.input(name, constant.tensor_type) for name, constant in constants.inputs.items()}

    def body(row: Axis, *at: Axis) -> ScalarExpr:
        return constants.number(buffers, row, safe_index(places[at], matrix.shape[1]))

    function = simplify(b.finish((b.compute(result.shape, body),), {"ops": ("dequantize", "take")}))
    verify(function, "dequantize_take")
    return function
