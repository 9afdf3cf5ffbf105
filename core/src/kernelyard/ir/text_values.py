"""The parts of the IR's text form that stand for values: types, dims, attributes, numbers and constants."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import KernelyardError
from kernelyard.ir.expr import Constant
from kernelyard.ir.printer import literal_value
from kernelyard.ir.scanner import Scanner
from kernelyard.ir.types import FunctionType, TensorType, TupleType, Type

MAX_DEPTH = 60
MAX_RANK = 64

_DATA_LINE = re.compile(r'^data "([0-9a-f]{64})" = "([A-Za-z0-9+/=]*)"[ \t]*$', re.MULTILINE)


class ValueParser:
    """Reads values at the scanner's place; large constants come from `constants` or from the text's `data` lines."""

    def __init__(self, text: str, constants: Mapping[str, np.ndarray]) -> None:
        self.scanner = Scanner(text)
        self._given = constants
        self._data = {match.group(1): match.group(2) for match in _DATA_LINE.finditer(text)}
        self._known: dict[str, Constant] = {}

    def type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise self.scanner.error("types are nested too deeply")
        kind = self.scanner.expect_kind("name")
        if kind.text not in ("Tensor", "Tuple", "Function"):
            raise self.scanner.error("expected Tensor, Tuple or Function", kind)
        self.scanner.expect("[")
        if kind.text == "Function":
            return self.function_type(depth + 1)
        if kind.text == "Tuple":
            fields: list[Type] = []
            while not self.scanner.accept("]"):
                fields.append(self.type(depth + 1))
                self.scanner.accept(",")
            return TupleType(tuple(fields))
        shape = self.shape()
        self.scanner.expect(",")
        dtype = self.scanner.expect_kind("name")
        if dtype.text not in dtypes.DTYPES:
            raise self.scanner.error("unknown dtype", dtype)
        self.scanner.expect("]")
        return TensorType(shape, dtype.text)

    def function_type(self, depth: int) -> FunctionType:
        self.scanner.expect("(")
        params: list[Type] = []
        while not self.scanner.accept(")"):
            params.append(self.type(depth))
            self.scanner.accept(",")
        self.scanner.expect("->")
        result = self.type(depth)
        self.scanner.expect("]")
        return FunctionType(tuple(params), result)

    def shape(self) -> tuple[Dim, ...]:
        """Parse dims between parentheses: the text is split at commas and parsed by `dims`."""
        opening = self.scanner.peek()
        if not self.scanner.at("("):
            raise self.scanner.error("expected '('")
        texts, depth, begin = [], 0, opening.end
        limit = opening.start + MAX_RANK * dims.MAX_TEXT
        for position in range(opening.start, min(len(self.scanner.text), limit)):
            character = self.scanner.text[position]
            depth += (character == "(") - (character == ")")
            if character == "\n":
                break
            if depth == 0 or (depth == 1 and character == ","):
                texts.append(self.scanner.text[begin:position])
                begin = position + 1
            if depth == 0:
                self.scanner.skip_to(position + 1)
                return tuple(self.dim(text, opening) for text in texts if text.strip())
        raise self.scanner.error("a shape is not closed", opening)

    def dim(self, text: str, token: Any) -> Dim:
        try:
            return dims.parse(text)
        except KernelyardError as error:
            raise self.scanner.error(f"{error.message} ({text.strip()})", token) from error

    def attributes(self) -> dict[str, Any]:
        return self.mapping(0) if self.scanner.accept("{") else {}

    def mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not self.scanner.accept("}"):
            name = self.scanner.name()
            self.scanner.expect(":")
            result[name] = self.attribute(depth + 1)
            if not self.scanner.at("}"):
                self.scanner.expect(",")
        return result

    def attribute(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self.scanner.error("attributes are nested too deeply")
        token = self.scanner.peek()
        if token.kind == "string":
            return self.scanner.string()
        if token.kind == "dim":
            return self.dim(self.scanner.take().text[1:-1], token)
        if self.scanner.accept("{"):
            return self.mapping(depth)
        if self.scanner.accept("("):
            return tuple(self.items(")", depth))
        if self.scanner.accept("["):
            return self.items("]", depth)
        if self.scanner.accept("none"):
            return None
        return self.number()

    def items(self, closing: str, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self.scanner.accept(closing):
            values.append(self.attribute(depth + 1))
            if not self.scanner.at(closing):
                self.scanner.expect(",")
        return values

    def number(self) -> bool | int | float:
        token = self.scanner.take()
        if token.kind not in ("number", "name") or (token.kind == "name" and token.text not in ("true", "false")):
            raise self.scanner.error("expected a number", token)
        try:
            return literal_value(token.text)
        except ValueError as error:
            raise self.scanner.error(f"not a number: {error}", token) from error

    def integer(self) -> int:
        token = self.scanner.peek()
        value = self.number()
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.scanner.error("expected a whole number", token)
        return value

    def literal(self, dtype: str) -> Constant:
        shape: list[int] = []
        if self.scanner.accept("["):
            while not self.scanner.accept("]"):
                shape.append(self.integer())
                self.scanner.accept(",")
        self.scanner.expect("(")
        start = self.scanner.peek()
        values: list[bool | int | float] = []
        while not self.scanner.accept(")"):
            values.append(self.number())
            self.scanner.accept(",")
        if len(shape) > MAX_RANK or len(values) != math.prod(shape):
            raise self.scanner.error(f"{len(values)} elements for the shape {tuple(shape)}", start)
        try:
            return Constant(np.array(values, dtypes.to_numpy(dtype)).reshape(shape))
        except (ValueError, OverflowError, TypeError) as error:
            raise self.scanner.error(f"these are no {dtype} values: {error}", start) from error

    def constant(self) -> Constant:
        token = self.scanner.peek()
        digest = self.scanner.string()
        stated = self.type(0)
        if digest not in self._known:
            if not isinstance(stated, TensorType) or not stated.is_static:
                raise self.scanner.error("a constant has a type with known dims", token)
            array = self._given[digest] if digest in self._given else self.array(digest, stated)
            self._known[digest] = Constant(array)
        constant = self._known[digest]
        if constant.digest != digest or constant.type != stated:
            raise self.scanner.error("the data of this constant does not match its digest", token)
        return constant

    def array(self, digest: str, type_: TensorType) -> np.ndarray:
        if digest not in self._data:
            raise self.scanner.error(f"the data of the constant {digest} is not in the text and was not given")
        dtype = dtypes.to_numpy(type_.dtype)
        raw = self.base64(self._data[digest])
        if len(raw) != type_.nbytes:
            raise self.scanner.error(f"{len(raw)} bytes of data for a constant of {type_.nbytes} bytes")
        shape = tuple(int(dim) for dim in type_.shape if isinstance(dim, int))
        return (
            np.frombuffer(raw, dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype).astype(dtype).reshape(shape)
        )

    def base64(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise self.scanner.error(f"base64 data cannot be read: {error}") from error
