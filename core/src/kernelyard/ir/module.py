"""IRModule: names mapped to functions; what every pass takes and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kernelyard.errors import IRError
from kernelyard.ir.expr import BaseFunction, Function

PRIVATE = "private"  # a function that only functions of its module call, such as a branch or the body of a loop


class IRModule:
    """Functions by name, in order, and module attributes. Immutable: `with_*` return a new module.

    Module attributes used by the core: "metadata" (dict of the model's own strings), "external_modules" (the
    RuntimeModules that `RunCodegen` attached).
    """

    def __init__(
        self, functions: Mapping[str, BaseFunction] | None = None, attrs: Mapping[str, Any] | None = None
    ) -> None:
        self.functions: Mapping[str, BaseFunction] = MappingProxyType(dict(functions or {}))
        self.attrs: Mapping[str, Any] = MappingProxyType(dict(attrs or {}))

    def __getitem__(self, name: str) -> BaseFunction:
        if name not in self.functions:
            raise IRError(f"the module has no function @{name}", expected=", ".join(f"@{n}" for n in self.functions))
        return self.functions[name]

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def graph_functions(self) -> dict[str, Function]:
        """Return the graph-level functions by name."""
        return {name: f for name, f in self.functions.items() if isinstance(f, Function)}

    def entry_functions(self) -> dict[str, Function]:
        """Return the graph-level functions that the compiler works on: neither composites nor regions."""
        return {
            n: f for n, f in self.graph_functions().items() if "Composite" not in f.attrs and "Codegen" not in f.attrs
        }

    def public_functions(self) -> dict[str, Function]:
        """Return the entry functions that callers see: those without the attribute "private"."""
        return {name: f for name, f in self.entry_functions().items() if not f.attrs.get(PRIVATE)}

    def with_functions(self, changed: Mapping[str, BaseFunction]) -> IRModule:
        """Return a module with functions added or replaced (order of the others is kept)."""
        return IRModule({**self.functions, **changed}, self.attrs)

    def without_functions(self, names: set[str]) -> IRModule:
        """Return a module with functions left out."""
        return IRModule({n: f for n, f in self.functions.items() if n not in names}, self.attrs)

    def with_attrs(self, **attrs: Any) -> IRModule:
        """Return a module with attributes added or replaced."""
        return IRModule(self.functions, {**self.attrs, **attrs})

    def fresh_name(self, wanted: str, also_taken: set[str] | frozenset[str] = frozenset()) -> str:
        """Return `wanted`, or `wanted` with the first free number appended."""
        name, count = wanted, 0
        while name in self.functions or name in also_taken:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def __str__(self) -> str:
        """Return the text form, with the bytes of large constants left out."""
        from kernelyard.ir.printer import to_text

        return to_text(self, constants="elided")
