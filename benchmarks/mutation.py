"""Mutation: faults in the compiler's source, one node of a module's syntax each, and which statements a run reaches."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
UNSEEN = (ast.Raise, ast.AnnAssign, ast.arg, ast.JoinedStr)  # messages and types, which no result depends on
MARK = "__reached__"


@dataclass(frozen=True)
class Fault:
    """A change of one node. statement: line of the statement around it; 0 outside of functions. text: of the module."""

    layer: str
    module: str
    line: int
    statement: int
    what: str
    text: str

    @property
    def place(self) -> str:
        """The module and line, for people."""
        return f"{self.module}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        """Return the fault as JSON data, without the text."""
        return {name: value for name, value in asdict(self).items() if name != "text"}


class _Changer(ast.NodeTransformer):
    """Changes the node of a number; without one, counts the nodes that can be changed."""

    def __init__(self, number: int = -1) -> None:
        self.number, self.count = number, 0
        self.statement, self.depth = 0, 0
        self.done: tuple[int, int, str] | None = None

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, UNSEEN):
            return node
        changed = _changed(node)
        if changed is not None:
            self.count += 1
            if self.count - 1 == self.number:
                line = getattr(node, "lineno", 0)
                self.done = line, self.statement, f"{ast.unparse(node)} -> {ast.unparse(changed)}"
                return ast.copy_location(changed, node)
        before = self.statement, self.depth
        self.depth += isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, ast.stmt) and before[1]:
            self.statement = node.lineno
        made = self.generic_visit(node)
        self.statement, self.depth = before
        return made


def _changed(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS and len(node.ops) == 1:
        return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not isinstance(node.left, ast.Constant):
        return ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    return None


def faults(layers: Mapping[str, Sequence[str]], count: int, seed: int) -> list[Fault]:
    """Return different faults, the layers in turn."""
    chooser = random.Random(seed)
    found: dict[tuple[str, int], Fault] = {}
    while len(found) < count:
        layer = tuple(layers)[len(found) % len(layers)]
        module = chooser.choice(layers[layer])
        source = source_of(module)
        counter = _Changer()
        counter.visit(ast.parse(source))
        number = chooser.randrange(counter.count) if counter.count else -1
        if number < 0 or (module, number) in found:
            continue
        changer = _Changer(number)
        changed = ast.fix_missing_locations(changer.visit(ast.parse(source)))
        assert changer.done is not None
        found[module, number] = Fault(layer, module, *changer.done, ast.unparse(changed))
    return list(found.values())


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
