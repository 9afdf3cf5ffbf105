"""Put private functions in the place of their calls: what stays is what backends are offered as a whole."""

from __future__ import annotations

from kernelyard.errors import PassError
from kernelyard.ir import Call, Function, GlobalVar, IRModule
from kernelyard.ir.module import PRIVATE
from kernelyard.ir.visitor import reachable_functions
from kernelyard.transform.interprocedural.inline_functions import inline_functions
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class InlinePrivateFunctions(Pass):
    """Replaces each call of a function with the attribute "private" by what that does; functions left over go.

    Branches and bodies of loops, which operators call, stay functions. Raises: PassError for a function that calls
    itself.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> twice, main = FunctionBuilder(), FunctionBuilder()
        >>> x = twice.input("x", (2,))
        >>> module = IRModule({"twice": twice.function(twice.op("add", x, x), attrs={PRIVATE: True})})
        >>> y = main.call_function("twice", [main.input("y", (2,))], module["twice"].result_type)
        >>> inlined = InlinePrivateFunctions()(module.with_functions({"main": main.function(y)}))
        >>> inlined["main"].bindings[0].value.op_name
        'add'
    """

    name = "inline_private_functions"
    is_required = True

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        calls = {name: _callees(function) for name, function in module.entry_functions().items()}
        called = frozenset().union(*calls.values())
        private = {name for name in called if module[name].attrs.get(PRIVATE)}
        if not private:
            return module
        _check_ends({name: calls[name] & private for name in private})
        inlined = inline_functions(module, private)
        return inlined.without_functions(private - reachable_functions(inlined, tuple(inlined.public_functions())))


def _check_ends(left: dict[str, set[str]]) -> None:
    """Check that no function calls itself, directly or indirectly. Raises: PassError."""
    while left:
        leaves = {name for name, callees in left.items() if not callees}
        if not leaves:
            raise PassError("private functions are recursive", found=", ".join(sorted(left)))
        left = {name: callees - leaves for name, callees in left.items() if name not in leaves}


def _callees(function: Function) -> set[str]:
    calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
    return {call.op.name for call in calls if isinstance(call.op, GlobalVar)}
