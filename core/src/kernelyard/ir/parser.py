"""Reads the text form of the IR (see `kernelyard.ir.printer` for the notation). Never evaluates code; bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import KernelyardError, ParseError
from kernelyard.ir.expr import (
    BaseFunction,
    Binding,
    Call,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
)
from kernelyard.ir.module import IRModule
from kernelyard.ir.op import get_op
from kernelyard.ir.printer import function_syntax
from kernelyard.ir.text_values import ValueParser
from kernelyard.ir.types import Type

LoadExternal = Callable[[str, bytes, Mapping[str, np.ndarray]], object]


def parse_module(
    text: str, constants: Mapping[str, np.ndarray] | None = None, load_external: LoadExternal | None = None
) -> IRModule:
    """Return the module that a text describes.

    constants: arrays by digest, for texts printed with their constants elided. load_external: kind, bytes and
    constants -> RuntimeModule, needed only for texts that have attached RuntimeModules. The operators' declarations
    (`kernelyard.ops`) must be imported. Raises: ParseError, with the line.

    Example:
        >>> import kernelyard.ops
        >>> module = parse_module('''
        ... module
        ... def @main(%x: Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32] {
        ...   %y: Tensor[(n, 2), float32] = nn.relu(%x)
        ...   return %y
        ... }
        ... ''')
        >>> module["main"].result_type
        Tensor[(n, 2), float32]
    """
    return _Parser(text, constants or {}, load_external).module()


class _Parser(ValueParser):
    def __init__(self, text: str, constants: Mapping[str, np.ndarray], load_external: LoadExternal | None) -> None:
        super().__init__(text, constants)
        self.load_external = load_external
        self.vars: dict[str, Var] = {}

    # --- modules and functions ----------------------------------------------------------------------------------------
    def module(self) -> IRModule:
        self.scanner.expect("module")
        attrs = self.attributes()
        functions: dict[str, BaseFunction] = {}
        external: list[object] = []
        while self.scanner.peek().kind != "end":
            if self.scanner.accept("data"):
                self.scanner.string()
                self.scanner.expect("=")
                self.scanner.expect_kind("string")
            elif self.scanner.accept("external"):
                external.append(self.external())
            else:
                name, function = self.parse_named_function()
                if name in functions:
                    raise self.scanner.error(f"@{name} is defined twice")
                functions[name] = function
        return IRModule(functions, {**attrs, "external_modules": tuple(external)} if external else attrs)

    def parse_named_function(self) -> tuple[str, BaseFunction]:
        keyword = self.scanner.expect_kind("name")
        self.scanner.expect("@")
        name = self.scanner.name()
        if keyword.text == "def":
            return name, self.function()
        syntax = function_syntax(keyword.text)
        if syntax is None:
            raise self.scanner.error("unknown keyword for a function", keyword)
        return name, syntax.parse_function(self.body())

    def body(self) -> str:
        """Return the lines between `{` and a line that is `}`, without their indentation."""
        opening = self.scanner.peek()
        if not self.scanner.at("{"):
            raise self.scanner.error("expected '{'")
        begin = self.scanner.text.find("\n", opening.end) + 1
        end = self.scanner.text.find("\n}", max(begin - 1, 0)) if begin else -1
        if end < 0:
            raise self.scanner.error("the function is not closed by a line '}'", opening)
        self.scanner.skip_to(end + 2)
        return "\n".join(line.removeprefix("  ") for line in self.scanner.text[begin:end].split("\n"))

    def function(self) -> Function:
        self.vars = {}
        self.scanner.expect("(")
        params: list[Var] = []
        while not self.scanner.accept(")"):
            params.append(self.declare(self.var_name(), ""))
            if not self.scanner.at(")"):
                self.scanner.expect(",")
        self.scanner.expect("->")
        stated = self.type(0)
        attrs = self.function_attributes()
        self.scanner.expect("{")
        bindings: list[Binding] = []
        while not self.scanner.accept("return"):
            bindings.append(self.binding())
        start = self.scanner.peek()
        result = self.value(stated)
        if result.type != stated:
            raise self.scanner.error(f"the result has the type {result.type!r}, stated is {stated!r}", start)
        self.scanner.expect("}")
        return Function(params, bindings, result, attrs)

    def function_attributes(self) -> dict[str, Any]:
        """Parse the attributes before the body; `{` alone opens the body."""
        opening = self.scanner.peek()
        self.scanner.expect("{")
        after = self.scanner.take()
        is_attributes = after.kind in ("name", "string") and self.scanner.at(":")
        self.scanner.skip_to(opening.start)
        return self.attributes() if is_attributes else {}

    def binding(self) -> Binding:
        start = self.scanner.peek()
        name = self.var_name()
        if name in self.vars:
            raise self.scanner.error(f"%{name} is bound twice", start)
        self.scanner.expect(":")
        stated = self.type(0)
        self.scanner.expect("=")
        value = self.value(stated)
        if value.type != stated:
            raise self.scanner.error(f"%{name} has the type {value.type!r}, stated is {stated!r}", start)
        origin = self.scanner.string() if self.scanner.accept("from") else ""
        var = self.vars[name] = Var(name, stated, origin)
        return Binding(var, value)

    def declare(self, name: str, origin: str) -> Var:
        if name in self.vars:
            raise self.scanner.error(f"%{name} is declared twice")
        self.scanner.expect(":")
        var = self.vars[name] = Var(name, self.type(0), origin)
        return var

    def var_name(self) -> str:
        self.scanner.expect("%")
        return self.scanner.name()

    def external(self) -> object:
        kind = self.scanner.string()
        self.scanner.expect("(")
        constants: dict[str, np.ndarray] = {}
        while not self.scanner.accept(")"):
            self.scanner.expect("constant")
            constant = self.constant()
            constants[constant.digest] = constant.data
            self.scanner.accept(",")
        self.scanner.expect("=")
        token = self.scanner.peek()
        blob = self.base64(self.scanner.string())
        if self.load_external is None:
            raise self.scanner.error(f"the text has a module of the runtime {kind!r}; pass load_external", token)
        return self.load_external(kind, blob, constants)

    # --- expressions --------------------------------------------------------------------------------------------------
    def value(self, stated: Type) -> Expr:
        if self.scanner.accept("("):
            fields: list[Expr] = []
            while not self.scanner.accept(")"):
                fields.append(self.operand())
                if not self.scanner.at(")"):
                    self.scanner.expect(",")
            return Tuple(fields)
        token = self.scanner.peek()
        if token.kind == "name" and token.text not in dtypes.DTYPES and token.text not in ("constant", "extern"):
            return self.call(self.scanner.take().text, stated)
        operand = self.operand()
        if isinstance(operand, GlobalVar):
            return self.apply(operand, stated)
        if self.scanner.accept("["):
            index = int(self.integer())
            self.scanner.expect("]")
            return self.build(lambda: TupleGetItem(operand, index))
        return operand

    def call(self, name: str, stated: Type) -> Expr:
        start = self.scanner.peek()
        arguments, attrs = self.arguments()
        return self.build(lambda: Call(get_op(name), arguments, attrs, stated), start)

    def apply(self, function: GlobalVar, stated: Type) -> Expr:
        arguments, attrs = self.arguments()
        return Call(function, arguments, attrs, stated)

    def arguments(self) -> tuple[list[Expr], dict[str, Any]]:
        self.scanner.expect("(")
        arguments: list[Expr] = []
        while not self.scanner.accept(")"):
            arguments.append(self.operand())
            if not self.scanner.at(")"):
                self.scanner.expect(",")
        return arguments, self.attributes()

    def build(self, make: Callable[[], Expr], token: Any = None) -> Expr:
        try:
            return make()
        except ParseError:
            raise
        except KernelyardError as error:
            parts = (("found", error.found), ("expected", error.expected))
            facts = "".join(f"; {label} {value}" for label, value in parts if value is not None)
            raise self.scanner.error(error.message + facts, token) from error

    def operand(self) -> Expr:
        token = self.scanner.take()
        if token.text == "%":
            name = self.scanner.name()
            if name not in self.vars:
                raise self.scanner.error(f"%{name} is read before it is bound", token)
            return self.vars[name]
        if token.text == "@":
            return GlobalVar(self.scanner.name())
        if token.text == "extern":
            return ExternFunc(self.scanner.string())
        if token.text == "constant":
            return self.constant()
        if token.kind == "name" and token.text in dtypes.DTYPES:
            return self.literal(token.text)
        raise self.scanner.error("expected a variable, a function or a constant", token)
