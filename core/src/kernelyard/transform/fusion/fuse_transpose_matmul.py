"""Matrix products and attention that read an operand as it is stored, transposed or in 16 bits, instead of a copy."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.dims import Shape
from kernelyard.ir import (
    Call,
    Constant,
    Expr,
    FunctionBuilder,
    FunctionMutator,
    IRModule,
    Var,
    get_op,
    verify,
)
from kernelyard.legalize import legalize_call
from kernelyard.patterns.templates import SWAP_HEADS, swaps_last_two
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.visitor import replace_inputs
from kernelyard.transform.fusion.fuse_tir import fuse
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir, mutate_with_prim_funcs
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.precision.widen_floats import NARROW


class FuseTransposeMatmul(Pass):
    """`matmul(x, permute_dims(w))` becomes one loop-level function that reads `w` as it lies; so for the left operand.
    `matmul(x, astype(w))` does with a constant `w` of 16-bit floats, which are widened in registers.

    Only permutations that exchange the last two axes are fused, also where axes before these are reshaped afterwards.
    Attention reads queries, keys and values (B, N, S, H) that are permuted to its layout (B, S, N, H), as caches of
    keys are. A transposed copy that nothing else reads is left for dead-code elimination. Libraries come first: run it
    after the partition, on what they did not take.
    """

    name = "fuse_transpose_matmul"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return mutate_with_prim_funcs(module, _Fuser)


_ATTENTION = ("nn.attention", "nn.attention_bias")
_LETTERS = {"permute_dims": "t", "astype": "w"}


class _Fuser(FunctionMutator):
    def __init__(self, functions: PrimFuncTable) -> None:
        super().__init__()
        self.functions = functions

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in ("matmul", *_ATTENTION):
            return value
        is_matmul = value.op_name == "matmul"
        if is_matmul:
            reads = tuple(self._widening(operand) or self._transpose(operand) for operand in value.args)
        else:
            reads = tuple(map(self._heads_swap, value.args))
        if not any(reads):
            return value
        args = [each.args[0] if each else arg for each, arg in zip(reads, value.args, strict=True)]
        letters = "".join(_LETTERS[each.op_name] if each else "n" for each in reads)
        function = _fuse(value, reads, args) if is_matmul else _with_heads_first(value, reads)
        name = self.functions.name_of(function, f"{letters}_{value.op_name.removeprefix('nn.')}")
        return call_tir(name, args, value.type)

    def _widening(self, operand: Expr) -> Call | None:
        value = self.value_of(operand)
        if not isinstance(value, Call) or value.op_name != "astype" or not isinstance(value.args[0], Constant):
            return None
        return value if value.args[0].tensor_type.dtype in NARROW else None

    def _transpose(self, operand: Expr) -> Call | None:
        value = self.value_of(operand)
        if isinstance(value, Call) and value.op_name == "reshape":
            inner = self._swap(value.args[0])
            return self._hoist_reshape(inner, value.tensor_type.shape) if inner else None
        return self._swap(operand)

    def _swap(self, operand: Expr) -> Call | None:
        value = self._permutation(operand)
        return value if value is not None and swaps_last_two(value.attrs["axes"]) else None

    def _heads_swap(self, operand: Expr) -> Call | None:
        value = self._permutation(operand)
        return value if value is not None and value.attrs["axes"] == SWAP_HEADS else None

    def _permutation(self, operand: Expr) -> Call | None:
        value = self.value_of(operand)
        if not isinstance(value, Call) or value.op_name != "permute_dims" or isinstance(value.args[0], Constant):
            return None  # a constant is transposed when constants are folded
        return value

    def _hoist_reshape(self, swap: Call, shape: Shape) -> Call | None:
        """Return the swap with its leading axes reshaped before it; None where the reshape touches the last two."""
        if len(shape) < 2 or shape[-2:] != swap.tensor_type.shape[-2:]:
            return None
        *leading, rows, columns = shape
        source = self.emit(Call(get_op("reshape"), [swap.args[0]], {"shape": (*leading, columns, rows)}))
        axes = (*range(len(leading)), len(leading) + 1, len(leading))
        return Call(swap.op, [source], {"axes": axes})


def _fuse(product: Call, reads: tuple[Call | None, ...], args: list[Expr]) -> PrimFunc:
    b = FunctionBuilder()
    functions: dict[str, PrimFunc] = {}

    def call(made: Call, operands: list[Var]) -> Var:
        name = f"part_{len(functions)}"
        types = [operand.tensor_type for operand in operands]
        functions[name] = legalize_call(made.op_name, types, made.attrs, made.type)
        return b.bind(call_tir(name, operands, made.type))

    inputs = [b.parameter(arg.type, f"in{i}") for i, arg in enumerate(args)]
    operands = [call(read, [x]) if read else x for read, x in zip(reads, inputs, strict=True)]
    group = b.function(call(product, operands))
    return fuse(group, verify(IRModule({"group": group, **functions})))


def _with_heads_first(attention: Call, reads: tuple[Call | None, ...]) -> PrimFunc:
    """Return the function of an attention that reads some operands (B, N, S, H); its blocks stay what they are, which
    code generators recognize.
    """
    types = [operand.tensor_type for operand in attention.args]
    function = legalize_call(attention.op_name, types, attention.attrs, attention.type)
    heads_first = {
        buffer: replace(buffer, shape=tuple(buffer.shape[axis] for axis in SWAP_HEADS))
        for buffer, read in zip(function.inputs, reads, strict=True)
        if read
    }
    changed = replace_inputs(function, heads_first, lambda _, indices: tuple(indices[axis] for axis in SWAP_HEADS))
    ops = (*("permute_dims" for _ in heads_first), attention.op_name)
    return PrimFunc(changed.params, changed.blocks, changed.num_outputs, changed.locals, {**changed.attrs, "ops": ops})
