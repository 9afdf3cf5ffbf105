"""IR as text. `kernelyard.ir.parser` reads it back; `print(parse(print(m)))` is `print(m)`.

The notation, by example:

    module {metadata: {"producer": "pytorch"}}

    def @main(%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {input_names: ("x",)} {
      %lv: Tensor[(n, 4), float32] = add(%x, float32[4](1.0, 2.0, 3.0, 4.0)) from "node 'Add_0' (Add)"
      %lv_1: Tensor[(n, 8), float32] = matmul(%lv, constant "8d3e..." Tensor[(4, 8), float32])
      %lv_2: Tensor[(n, 2, 4), float32] = reshape(%lv_1) {shape: (<n>, 2, 4)}
      return %lv_2
    }

    data "8d3e..." = "AACAPw..."

Small constants are literals; the others are named by their digest, and their bytes (base64, little-endian, row-major)
follow in `data` lines, each content once. Attributes that have their default value are left out.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelyard.dims import SymbolicDim
from kernelyard.errors import IRError
from kernelyard.ir.expr import (
    BaseFunction,
    Binding,
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.ir.module import IRModule
from kernelyard.ir.op import REQUIRED, Op

LITERAL_LIMIT = 8
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


@dataclass(frozen=True)
class FunctionSyntax:
    """Print functions of one class: the body's lines, without the name and the braces around them."""

    keyword: str
    function_type: type[BaseFunction]
    print_function: Callable[[Any], str]
    parse_function: Callable[[str], BaseFunction]


_SYNTAXES: dict[str, FunctionSyntax] = {}


def register_function_syntax(
    keyword: str,
    function_type: type[BaseFunction],
    print_function: Callable[[Any], str],
    parse_function: Callable[[str], BaseFunction],
) -> None:
    """Teach the text form another class of functions; it appears as `keyword @name {`, the body indented, `}`.

    `parse_function` gets exactly the text that `print_function` returned.
    """
    _SYNTAXES[keyword] = FunctionSyntax(keyword, function_type, print_function, parse_function)


def function_syntax(keyword: str) -> FunctionSyntax | None:
    """Return the registered syntax of a keyword, if any."""
    return _SYNTAXES.get(keyword)


def to_text(module_or_function: IRModule | BaseFunction, constants: str = "inline") -> str:
    """Return a module, or one function, as text.

    constants: "inline" adds the bytes of large constants; "elided" leaves them out (the text then parses only with
    these arrays given by digest). Raises: IRError for attributes that have no text form.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> print(to_text(b.function(b.op("nn.relu", b.input("x", (2,))))), end="")
        def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
          %lv: Tensor[(2,), float32] = nn.relu(%x)
          return %lv
        }
    """
    if constants not in ("inline", "elided"):
        raise IRError("an unknown way to print constants", found=constants, expected="inline or elided")
    if not isinstance(module_or_function, IRModule):
        return "".join(line + "\n" for line in function_lines("main", module_or_function))
    attributes = {name: value for name, value in module_or_function.attrs.items() if name != "external_modules"}
    blocks = [[f"module {_attributes(attributes)}".rstrip()]]
    blocks += [function_lines(name, function) for name, function in module_or_function.functions.items()]
    blocks += [[line] for line in _external_lines(module_or_function)]
    if constants == "inline":
        blocks.append(list(_data_lines(module_or_function)))
    return "\n".join("".join(line + "\n" for line in block) for block in blocks if block)


def function_lines(name: str, function: BaseFunction) -> list[str]:
    """Return a function's lines: one for the signature, one for each binding, one for the result, one for the brace."""
    if isinstance(function, Function):
        return _FunctionPrinter().lines(name, function)
    for syntax in _SYNTAXES.values():
        if isinstance(function, syntax.function_type):
            body = syntax.print_function(function).splitlines()
            return [f"{syntax.keyword} {global_name(name)} {{", *(f"  {line}" for line in body), "}"]
    raise IRError("functions of this class have no text form", where=f"@{name}", found=type(function).__name__)


class _FunctionPrinter:
    def __init__(self) -> None:
        self._names: dict[Var, str] = {}
        self._counts: dict[str, int] = {}

    def lines(self, name: str, function: Function) -> list[str]:
        params = ", ".join(f"{self._name(p)}: {p.type!r}" for p in function.params)
        attributes = _attributes(function.attrs)
        head = f"def {global_name(name)}({params}) -> {function.result_type!r} "
        lines = [head + (f"{attributes} {{" if attributes else "{")]
        lines += ["  " + self._binding(binding) for binding in function.bindings]
        return [*lines, f"  return {self._expr(function.result)}", "}"]

    def _binding(self, binding: Binding) -> str:
        origin = f" from {json.dumps(binding.var.origin)}" if binding.var.origin else ""
        # The value first: a variable that is read before it is bound then shows under one name.
        value = self._expr(binding.value)
        return f"{self._name(binding.var)}: {binding.var.type!r} = {value}{origin}"

    def _expr(self, expr: Expr) -> str:
        if isinstance(expr, Var):
            return self._name(expr)
        if isinstance(expr, Constant):
            return constant_text(expr)
        if isinstance(expr, GlobalVar):
            return global_name(expr.name)
        if isinstance(expr, ExternFunc):
            return f"extern {json.dumps(expr.symbol)}"
        if isinstance(expr, Tuple):
            return _tuple_text(list(map(self._expr, expr.fields)))
        if isinstance(expr, TupleGetItem):
            return f"{self._expr(expr.tuple_value)}[{expr.index}]"
        if isinstance(expr, Call):
            return self._call(expr)
        return f"<{type(expr).__name__}>"

    def _call(self, call: Call) -> str:
        callee, attributes = global_name(call.op.name), call.attrs
        if isinstance(call.op, Op):
            callee = call.op.name
            attributes = {name: value for name, value in attributes.items() if not _is_default(call.op, name, value)}
        arguments = ", ".join(map(self._expr, call.args))
        return f"{callee}({arguments}) {_attributes(attributes)}".rstrip()

    def _name(self, var: Var) -> str:
        if var not in self._names:
            self._names[var] = f"%{_quote(self._fresh(var.name))}"
        return self._names[var]

    def _fresh(self, wanted: str) -> str:
        name = wanted
        while name in self._counts:
            name = f"{wanted}_{self._counts[wanted]}"
            self._counts[wanted] += 1
        self._counts[name] = 1
        return name


def _tuple_text(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _quote(name: str) -> str:
    return name if IDENTIFIER.match(name) else json.dumps(name)


def global_name(name: str) -> str:
    """Return the name of a function as it is written: with `@`, quoted where it is no identifier."""
    return f"@{_quote(name)}"


# --- attributes -------------------------------------------------------------------------------------------------------
def _is_default(op: Op, name: str, value: object) -> bool:
    declared = op.attributes.get(name)
    if declared is None or declared.default is REQUIRED:
        return False
    return repr(value) == repr(declared.check(op.name, name, declared.default))


def _attributes(attrs: Mapping[str, Any]) -> str:
    if not attrs:
        return ""
    return "{" + ", ".join(f"{_quote(name)}: {attribute_text(value)}" for name, value in attrs.items()) + "}"


def attribute_text(value: object) -> str:
    """Return an attribute value as text.

    Raises: IRError for values of other classes than bool, int, float, str, None, dims and tuples, lists and string
    keyed mappings of such.
    """
    if isinstance(value, SymbolicDim):
        return f"<{value}>"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, tuple):
        return _tuple_text(list(map(attribute_text, value)))
    if isinstance(value, list):
        return "[" + ", ".join(map(attribute_text, value)) + "]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{json.dumps(key)}: {attribute_text(item)}" for key, item in value.items()) + "}"
    raise IRError("an attribute value has no text form", found=f"{type(value).__name__}: {value!r:.80}")


# --- constants --------------------------------------------------------------------------------------------------------
def constant_text(constant: Constant) -> str:
    """Return a constant as a literal when it is small, else by its digest."""
    texts = _literals(constant) if constant.data.size <= LITERAL_LIMIT else None
    if texts is None:
        return f'constant "{constant.digest}" {constant.type!r}'
    shape = f"[{', '.join(map(str, constant.data.shape))}]" if constant.data.ndim else ""
    return f"{constant.tensor_type.dtype}{shape}({', '.join(texts)})"


def _literals(constant: Constant) -> list[str] | None:
    """Return the elements as text, or None where text cannot hold them exactly (NaNs with another payload)."""
    data = np.ascontiguousarray(constant.data).reshape(-1)
    texts = [_literal(element) for element in data]
    again = np.array([literal_value(text) for text in texts], data.dtype)
    return texts if again.tobytes() == data.tobytes() else None


def _literal(element: np.generic) -> str:
    value = element.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float):
        return str(int(value))
    short = str(element)
    if not math.isfinite(value):
        return repr(value)
    return repr(float(short)) if element.dtype.type(float(short)) == element else repr(value)


def literal_value(text: str) -> bool | int | float:
    """Return the number that a literal stands for.

    Raises: ValueError.
    """
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def large_constants(module: IRModule) -> Iterable[Constant]:
    """Return the constants that are printed by digest, each content once, in order."""
    seen: set[str] = set()
    for function in module.graph_functions().values():
        values = [binding.value for binding in function.bindings] + [function.result]
        for value in values:
            for operand in operands(value):
                if not isinstance(operand, Constant) or not constant_text(operand).startswith("constant "):
                    continue
                if operand.digest not in seen:
                    seen.add(operand.digest)
                    yield operand


def to_base64(array: np.ndarray) -> str:
    """Return the bytes of an array, little-endian and row-major, in base64."""
    if sys.byteorder == "big":
        array = array.byteswap()
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _data_lines(module: IRModule) -> Iterable[str]:
    external = {d: a for m in module.attrs.get("external_modules", ()) for d, a in m.constants().items()}
    arrays = {constant.digest: constant.data for constant in large_constants(module)} | external
    for digest, array in arrays.items():
        yield f'data "{digest}" = "{to_base64(array)}"'


# --- what RunCodegen attached -----------------------------------------------------------------------------------------
def _external_lines(module: IRModule) -> Iterable[str]:
    """Yield one line for each attached RuntimeModule: its kind, its constants with their types, and its bytes."""
    for runtime_module in module.attrs.get("external_modules", ()):
        blob = base64.b64encode(runtime_module.save_to_bytes()).decode()
        constants = ", ".join(
            f'constant "{digest}" {Constant(array).type!r}' for digest, array in runtime_module.constants().items()
        )
        yield f'external "{runtime_module.kind}" ({constants}) = "{blob}"'
