"""Give functions that ask for a workspace one more parameter, and their callers one allocation for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.errors import PassError
from kernelyard.ir import Binding, Call, Expr, Function, FunctionMutator, GlobalVar, IRModule, TensorType, Var, get_op
from kernelyard.ir.visitor import callees
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

WORKSPACE_SIZE = "WorkspaceSize"


class AllocateWorkspace(Pass):
    """Functions with the attribute "WorkspaceSize" (bytes) get a last parameter `workspace`, a uint8 vector.

    So do the regions that call them. Each entry function that needs one begins with a single allocation of the largest
    size, which its calls share: they run one after another. The attribute goes. A composite asks by its
    `attrs_getter`; run the pass before `RunCodegen`.
    Raises: PassError for a size that is no natural number, or an entry function that asks for itself.
    """

    name = "allocate_workspace"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        functions = module.graph_functions()
        sizes = {name: _size(name, f) for name, f in functions.items() if f.attrs.get(WORKSPACE_SIZE)}
        if not sizes:
            return module
        entries = module.entry_functions()
        for name in sizes:
            if name in entries:
                raise PassError("an entry function cannot take a workspace: its callers pass none", where=f"@{name}")
        needing = _with_callers(functions, set(sizes), set(entries))
        type_ = TensorType((max(sizes.values()),), "uint8")
        changed = {name: _with_parameter(functions[name], needing, type_) for name in functions if name in needing}
        for name, entry in entries.items():
            if not needing.isdisjoint(callees(entry)):
                changed[name] = _with_allocation(name, entry, needing, type_)
        return module.with_functions(changed)


def _size(name: str, function: Function) -> int:
    size = function.attrs[WORKSPACE_SIZE]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise PassError(
            "the size of a workspace must be a number of bytes", where=f"@{name}", found=repr(size), expected="an int"
        )
    return size


def _with_callers(functions: Mapping[str, Function], needing: set[str], entries: set[str]) -> set[str]:
    """`needing` and the functions that call these, entry functions left out."""
    found = set(needing)
    grown = True
    while grown:
        more = {
            n for n, f in functions.items() if n not in found and n not in entries and not found.isdisjoint(callees(f))
        }
        found |= more
        grown = bool(more)
    return found


class _PassOn(FunctionMutator):
    """Gives the workspace to the calls that need it."""

    def __init__(self, needing: set[str], workspace: Var) -> None:
        super().__init__()
        self._needing = needing
        self._workspace = workspace

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in self._needing:
            return Call(value.op, [*value.args, self._workspace], value.attrs, value.type)
        return value


def _with_parameter(function: Function, needing: set[str], type_: TensorType) -> Function:
    workspace = Var("workspace", type_)
    inner = _PassOn(needing, workspace).mutate(function)
    attrs = {name: value for name, value in inner.attrs.items() if name != WORKSPACE_SIZE}
    return Function([*inner.params, workspace], inner.bindings, inner.result, attrs)


def _with_allocation(name: str, entry: Function, needing: set[str], type_: TensorType) -> Function:
    workspace = Var(f"workspace_{name}", type_)
    allocation = Call(get_op("alloc_tensor"), [], {"shape": type_.shape, "dtype": type_.dtype}, type_)
    inner = _PassOn(needing, workspace).mutate(entry)
    return Function(inner.params, [Binding(workspace, allocation), *inner.bindings], inner.result, inner.attrs)
