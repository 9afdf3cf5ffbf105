"""Give a module RuntimeModules that were compiled elsewhere: its `call_dps_packed` find their functions in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from kernelyard.errors import PassError
from kernelyard.ir import IRModule
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


@runtime_checkable
class Loadable(Protocol):
    """A source or object file that can be made a RuntimeModule."""

    def load(self) -> RuntimeModule:
        """Compile where that is needed, and load."""
        ...


ExternModule: TypeAlias = "RuntimeModule | Loadable"


class AttachExternModules(Pass):
    """Append RuntimeModules to the module attribute "external_modules", after those that are there.

    Sources are compiled now (`load`). A module that is attached already is not attached again.
    Raises: PassError for what is no RuntimeModule, and for two modules that answer to one symbol.
    """

    name = "attach_extern_modules"
    is_required = True

    def __init__(self, modules: Sequence[ExternModule]) -> None:
        self._modules = tuple(modules)

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        before: tuple[RuntimeModule, ...] = tuple(module.attrs.get(EXTERNAL_MODULES, ()))
        attached = list(before)
        for each in dict.fromkeys(self._modules):
            loaded = _load(each)
            if not any(loaded is other for other in attached):
                _check_symbols(loaded, attached)
                attached.append(loaded)
        if len(attached) == len(before):
            return module
        return module.with_attrs(**{EXTERNAL_MODULES: tuple(attached)})


def _load(given: ExternModule) -> RuntimeModule:
    loaded = given.load() if isinstance(given, Loadable) and not isinstance(given, RuntimeModule) else given
    if not isinstance(loaded, RuntimeModule):
        raise PassError(
            "only RuntimeModules can be attached",
            found=type(loaded).__name__,
            expected="a RuntimeModule, or an object whose load() gives one",
        )
    return loaded


def _check_symbols(new: RuntimeModule, attached: Sequence[RuntimeModule]) -> None:
    for symbol in new.symbols():
        other = next((each for each in attached if symbol in each.symbols()), None)
        if other is not None:
            raise PassError(
                f"two modules define the symbol {symbol!r}",
                found=f"{other.kind} and {new.kind}",
                expected="each symbol once",
            )
