"""PackConstants: constants that kernels read again and again lie in memory in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, GlobalVar, IRModule, Var
from kernelyard.tir.packing import Packing, pack_inputs
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.kernel_groups import callee, without_unused
from kernelyard.transform.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_base import Pass, PassContext

ChoosePackings = Callable[[PrimFunc, Collection[int]], Mapping[int, Packing]]


def no_packings(function: PrimFunc, constants: Collection[int]) -> Mapping[int, Packing]:
    """Leave every constant as it is. See `ChoosePackings`."""
    return {}


class PackConstants(Pass):
    """Pack constant arguments of `call_tir`, and let the functions read them so.

    choose: of a function and the positions of its constant inputs, how each is to be packed; others stay as they are.
    Run it after FuseTIR; the code generator of the target knows what to choose (`CodeGenerator.packings`).
    """

    name = "pack_constants"

    def __init__(self, choose: ChoosePackings) -> None:
        self.choose = choose

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        packer = _Packer(module, self.choose)
        changed: dict[str, Function] = {}
        for name, function in module.entry_functions().items():
            new = packer.mutate(function)
            if new is not function:
                changed[name] = new
        return without_unused(module.with_functions({**changed, **packer.functions.added})) if changed else module


class _Packer(FunctionMutator):
    def __init__(self, module: IRModule, choose: ChoosePackings) -> None:
        super().__init__()
        self.module = module
        self.choose = choose
        self.functions = PrimFuncTable(module)
        self.chosen: dict[tuple[str, tuple[int, ...]], tuple[str, Mapping[int, Packing]]] = {}
        self.packed: dict[tuple[int, Packing], Constant] = {}  # by identity: weights are large

    def rewrite(self, var: Var, value: Expr) -> Expr:
        function = callee(value, self.module)
        if function is None:
            return value
        assert isinstance(value, Call)
        target, *args = value.args
        assert isinstance(target, GlobalVar)
        constants = tuple(n for n, arg in enumerate(args) if isinstance(arg, Constant))
        name, packings = self._choose(target.name, function, constants)
        if not packings:
            return value
        packed = [self._packed(arg, packings[n]) if n in packings else arg for n, arg in enumerate(args)]
        return call_tir(name, packed, value.type)

    def _choose(self, name: str, function: PrimFunc, constants: tuple[int, ...]) -> tuple[str, Mapping[int, Packing]]:
        key = (name, constants)
        if key not in self.chosen:
            packings = self.choose(function, constants) if constants else {}
            new = self.functions.name_of(pack_inputs(function, packings), f"{name}_packed") if packings else name
            self.chosen[key] = (new, packings)
        return self.chosen[key]

    def _packed(self, constant: Expr, packing: Packing) -> Constant:
        assert isinstance(constant, Constant)
        key = (id(constant), packing)
        if key not in self.packed:
            self.packed[key] = Constant(packing.apply(constant.data))
        return self.packed[key]
