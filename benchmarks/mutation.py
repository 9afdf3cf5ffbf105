"""Mutation: faults in the compiler's source by name, and which statements a run reaches."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

MARK = "__reached__"


@dataclass(frozen=True)
class Fault:
    """A change of a module's text: `before`, which occurs once, becomes `after`. layer: file of the list."""

    name: str
    layer: str
    module: str
    before: str
    after: str

    @cached_property
    def text(self) -> str:
        """The text of the module with the fault. Raises: SystemExit where `before` is not there once."""
        source = source_of(self.module)
        if source.count(self.before) != 1:
            raise SystemExit(f"{self.name}: {self.module} has {source.count(self.before)} times {self.before!r}")
        return source.replace(self.before, self.after)

    @cached_property
    def line(self) -> int:
        """The first line that differs."""
        pairs = zip(source_of(self.module).splitlines(), self.text.splitlines(), strict=False)
        return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)

    @cached_property
    def statement(self) -> int:
        """The line of the innermost statement of a function around the change; 0 outside of functions."""
        tree = ast.parse(source_of(self.module))
        around = (each for each in _statements(tree) if each.lineno <= self.line <= (each.end_lineno or 0))
        return max((each.lineno for each in around), default=0)


def read_faults(folder: Path) -> list[Fault]:
    """Return the faults of a folder's lists, those of different lists in turn."""
    lists: list[list[Fault]] = []
    for path in sorted(folder.glob("*.toml")):
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
        lists.append([Fault(layer=path.stem, **row) for row in rows])
    longest = max(map(len, lists), default=0)
    return [each[number] for number in range(longest) for each in lists if number < len(each)]


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of all functions, but for functions and classes in them."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    for node in chain.from_iterable(map(ast.walk, functions)):
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node


def source_of(module: str) -> str:
    """Return the source of an installed module."""
    return path_of(module).read_text(encoding="utf-8")


def path_of(module: str) -> Path:
    """Return the file of a module. The packages that it lies in are not imported: these import others in turn."""
    first, *others = module.split(".")
    for folder in _spec(first).submodule_search_locations or ():
        path = Path(folder, *others).with_suffix(".py")
        if path.exists():
            return path
    raise SystemExit(f"{module} is not installed")


def _spec(module: str) -> ModuleSpec:
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise SystemExit(f"{module} is not installed")
    return spec


# --- what a run reaches -----------------------------------------------------------------------------------------------
def marked(module: str) -> CodeType:
    """Return the code of a module that says, before each statement of its functions, that it is reached."""
    tree = ast.parse(source_of(module))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _mark(node)
    return compile(ast.fix_missing_locations(tree), module, "exec")


def _mark(node: ast.AST) -> None:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            setattr(node, name, [each for one in block for each in _marked(one)])
    for case in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        _mark(case)


def _marked(statement: ast.stmt) -> Sequence[ast.stmt]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal)):
        return (statement,)  # what is in a function inside is marked for itself
    call = ast.parse(f"{MARK}({statement.lineno})").body[0]
    _mark(statement)
    return (call, statement)


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import modules from other code. names: what each module has from the start."""

    def __init__(self, codes: Mapping[str, CodeType], names: Mapping[str, Mapping[str, Any]]) -> None:
        self._codes, self._names = codes, names

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the specification of a module that is replaced."""
        if name not in self._codes:
            return None
        return importlib.util.spec_from_file_location(name, path_of(name), loader=self)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave the making of the module to Python."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the other code."""
        module.__dict__.update(self._names.get(module.__name__, {}))
        exec(self._codes[module.__name__], module.__dict__)
