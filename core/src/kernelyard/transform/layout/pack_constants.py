"""PackConstants: constants that kernels read again and again lie in memory in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, GlobalVar, IRModule, TensorType, Var
from kernelyard.ir.deferred_constant import DeferredConstant
from kernelyard.runtime.abi.memory import give_back_pages
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Load
from kernelyard.tir.packing import Packing, pack_inputs
from kernelyard.tir.primfunc import PrimFunc, walk
from kernelyard.transform.fusion.kernel_groups import callee, remove_unused_kernels
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

ChoosePackings = Callable[[PrimFunc, Collection[int]], Mapping[int, Packing]]


def keep_all_constants(function: PrimFunc, constants: Collection[int]) -> Mapping[int, Packing]:
    """Leave every constant as it is. See `ChoosePackings`."""
    return {}


class PackConstants(Pass):
    """Pack constant arguments of `call_tir`, and let the functions read them so.

    choose: of a function and the positions of its constant inputs, how each is to be packed; others stay as they are.
    A constant that several functions read, as one for any number of rows and one for a single row, is packed as the
    first of them wants it, where all cut the same axis: it is stored once. So do functions read it that look elements
    up at indices which they read, as embeddings do: these lie apart from each other in any order.
    The elements are packed when they are first read (`DeferredConstant`): as long as the module from before is in use,
    they would be in memory twice.
    Run it after FuseTIR; the code generator of the target knows what to choose (`CodeGenerator.packings`).
    """

    name = "pack_constants"

    def __init__(self, choose: ChoosePackings) -> None:
        self.choose = choose

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        changed: dict[str, Function] = {}
        packer = _Packer(module, self.choose)
        entries = module.entry_functions()
        for function in entries.values():
            packer.choose_all(function)
        for name, function in entries.items():
            new = packer.mutate(function)
            if new is not function:
                changed[name] = new
        if not changed:
            return module
        return remove_unused_kernels(module.with_functions({**changed, **packer.functions.added}))


class _Packer(FunctionMutator):
    def __init__(self, module: IRModule, choose: ChoosePackings) -> None:
        super().__init__()
        self.module = module
        self.choose = choose
        self.functions = PrimFuncTable(module)
        self.chosen: dict[tuple[str, tuple[int, ...]], Mapping[int, Packing]] = {}
        self.names: dict[tuple[str, tuple[tuple[int, Packing], ...]], str] = {}
        self.shared: dict[tuple[str, int], Packing] = {}
        self.first: dict[str, Packing] = {}
        self.packed: dict[tuple[str, Packing], Constant] = {}

    def choose_all(self, function: Function) -> None:
        """Choose how the constants of a function's calls are packed, before any is."""
        for binding in function.bindings:
            if (target := callee(binding.value, self.module)) is not None:
                self._packings(binding.value, target)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        function = callee(value, self.module)
        if function is None:
            return value
        name, args = _target(value)
        packings = self._packings(value, function)
        for n, arg in enumerate(args):
            if n not in packings and isinstance(arg, Constant) and arg.digest in self.first:
                packing = self.first[arg.digest]
                if not arg.data.shape[packing.axis] % packing.block and _is_looked_up(function, function.inputs[n]):
                    packings[n] = packing
        if not packings:
            return value
        packed = [self._pack(arg, packings[n]) if n in packings else arg for n, arg in enumerate(args)]
        return call_tir(self._name_of(name, function, packings), packed, value.type)

    def _packings(self, value: Expr, function: PrimFunc) -> dict[int, Packing]:
        """Return the packings that are chosen for the constants of a call."""
        name, args = _target(value)
        constants = tuple(n for n, arg in enumerate(args) if isinstance(arg, Constant))
        return {
            n: self._find_shared_packing(args[n], each) for n, each in self._choose(name, function, constants).items()
        }

    def _choose(self, name: str, function: PrimFunc, constants: tuple[int, ...]) -> Mapping[int, Packing]:
        key = (name, constants)
        if key not in self.chosen:
            self.chosen[key] = self.choose(function, constants) if constants else {}
        return self.chosen[key]

    def _find_shared_packing(self, constant: Expr, chosen: Packing) -> Packing:
        """Return how an equal constant is packed already, where the same axis is cut into whole blocks."""
        assert isinstance(constant, Constant)
        first = self.shared.setdefault((constant.digest, chosen.axis), chosen)
        self.first.setdefault(constant.digest, first)
        return chosen if constant.data.shape[chosen.axis] % first.block else first

    def _name_of(self, name: str, function: PrimFunc, packings: Mapping[int, Packing]) -> str:
        key = (name, tuple(packings.items()))
        if key not in self.names:
            self.names[key] = self.functions.name_of(pack_inputs(function, packings), f"{name}_packed")
        return self.names[key]

    def _pack(self, constant: Expr, packing: Packing) -> Constant:
        assert isinstance(constant, Constant)
        key = (constant.digest, packing)
        if key not in self.packed:
            type_ = TensorType(packing.shape(constant.tensor_type.shape), constant.tensor_type.dtype)
            self.packed[key] = DeferredConstant(type_, partial(_copy, packing, constant.data))
        return self.packed[key]


def _target(value: Expr) -> tuple[str, tuple[Expr, ...]]:
    """Return the name of the function that a `call_tir` calls, and its arguments."""
    assert isinstance(value, Call)
    target, *args = value.args
    assert isinstance(target, GlobalVar)
    return target.name, tuple(args)


def _is_looked_up(function: PrimFunc, buffer: Buffer) -> bool:
    """Return True where every read of a buffer is at an index that is read itself."""
    loads = [load for block in function.blocks for load in block.loads if load.buffer == buffer]
    return all(any(isinstance(part, Load) for part in walk(*load.indices)) for load in loads)


def _copy(packing: Packing, source: np.ndarray) -> np.ndarray:
    packed = packing.apply(source)
    give_back_pages(source)
    return packed
