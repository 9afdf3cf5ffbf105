"""Declare operators (`Op`): one declaration holds its inputs, attributes, type rule, NumPy reference and samples.

Declarations live in `kernelyard.ops`; this module has the record and the registry that expressions refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, TypeAlias

from kernelyard.dims import Dim, SymbolicDim
from kernelyard.dtypes import DTYPES
from kernelyard.errors import AttributeTypeError, UnknownOpError, did_you_mean
from kernelyard.ir.types import TensorType, Type
from kernelyard.records import record

Attributes: TypeAlias = Mapping[str, Any]
TypeRule: TypeAlias = Callable[[Sequence[TensorType], Attributes], Type]

NO_ATTRIBUTES: Attributes = MappingProxyType({})
REQUIRED = object()


@record
class Attribute:
    """One typed attribute: `kind` is a key of `KINDS`; without a default it must be given; `choices` limits strings."""

    kind: str
    default: object = REQUIRED
    choices: tuple[str, ...] = ()

    def check(self, op: str, name: str, value: object) -> Any:
        """Return the value in its canonical form (lists become tuples).

        Raises: AttributeTypeError.
        """
        if isinstance(value, list):
            value = tuple(value)
        if value is None and self.default is None:
            return None
        if not KINDS[self.kind](value):
            raise AttributeTypeError(
                f"attribute {name!r} of {op} has the wrong type", found=repr(value), expected=self.kind
            )
        if self.choices and value not in self.choices:
            raise AttributeTypeError(
                f"attribute {name!r} of {op} is not a known choice", found=repr(value), expected=", ".join(self.choices)
            )
        return float(value) if self.kind == "float" else value  # pyright: ignore[reportArgumentType]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dim(value: object) -> bool:
    return _is_int(value) or isinstance(value, SymbolicDim)


def _tuple_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(map(check, value))


KINDS: dict[str, Callable[[object], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": lambda value: isinstance(value, float) or _is_int(value),
    "str": lambda value: isinstance(value, str),
    "dtype": lambda value: value in DTYPES,
    "dim": _is_dim,
    "ints": _tuple_of(_is_int),
    "floats": _tuple_of(lambda value: isinstance(value, float) or _is_int(value)),
    "strs": _tuple_of(lambda value: isinstance(value, str)),
    "dims": _tuple_of(_is_dim),
}


@record
class Sample:
    """Arguments that an op must handle: arrays for its inputs and values for its attributes.

    `rtol`/`atol` None means the tolerance of the dtype (see `kernelyard.testing`).
    """

    inputs: tuple[Any, ...]
    attributes: Attributes = field(default_factory=lambda: NO_ATTRIBUTES)
    label: str = ""


@record(eq=False)
class Op:
    """An entry of the operator vocabulary.

    inputs: names of its operands in order; a trailing "*" on the last makes it variadic; `optional_inputs` of them,
      counted from the end, may be left out.
    infer_type: operand types and attributes -> result type; raises TypeInferenceError.
    reference: arrays and attributes as keywords -> array, or tuple of arrays; the meaning of the op.
    samples: arguments that every implementation must handle.
    flops: operand types, result type and attributes -> number of floating-point operations; None: one per element.
    commutative: the two operands may be swapped. pure: no effect but its result.
    opaque_type: the result type cannot be inferred and is stated when a call is created (`call_tir`).
    introduces_symbols: sizes of the result are known only once it is there; the stated type names them by symbols of
      its own (`if`, `nonzero`), which later bindings may use.
    """

    name: str
    inputs: tuple[str, ...]
    infer_type: TypeRule
    reference: Callable[..., Any] | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    samples: Callable[[], Iterable[Sample]] = tuple
    flops: Callable[[Sequence[TensorType], Type, Attributes], Dim] | None = None
    optional_inputs: int = 0
    commutative: bool = False
    pure: bool = True
    opaque_type: bool = False
    introduces_symbols: bool = False
    summary: str = ""

    @property
    def is_variadic(self) -> bool:
        return bool(self.inputs) and self.inputs[-1].endswith("*")

    @property
    def arity(self) -> tuple[int, int | None]:
        """The least and the largest number of operands; None: any number."""
        least = len(self.inputs) - self.optional_inputs - self.is_variadic
        return least, None if self.is_variadic else len(self.inputs)

    @property
    def arity_text(self) -> str:
        """The numbers of operands in words, for messages: "2", "2 to 3", "1 or more"."""
        least, most = self.arity
        return f"{least} or more" if most is None else str(most) if least == most else f"{least} to {most}"

    def check_attributes(self, given: Attributes) -> Attributes:
        """Return the attributes in canonical form, with defaults, in declaration order.

        Raises: AttributeTypeError for unknown, missing or ill-typed ones.
        """
        for name in given:
            if name not in self.attributes:
                raise AttributeTypeError(
                    f"{self.name} has no attribute {name!r}",
                    expected=", ".join(self.attributes) or "no attributes",
                    hint=did_you_mean(name, self.attributes),
                )
        checked: dict[str, Any] = {}
        for name, attribute in self.attributes.items():
            value = given.get(name, attribute.default)
            if value is REQUIRED:
                raise AttributeTypeError(f"{self.name} needs the attribute {name!r}", expected=attribute.kind)
            checked[name] = attribute.check(self.name, name, value)
        return MappingProxyType(checked)

    def __repr__(self) -> str:
        return f"Op({self.name!r})"


_REGISTRY: dict[str, Op] = {}


def register_op(op: Op) -> Op:
    """Add an op to the vocabulary; a second declaration of the same name is an error."""
    if op.name in _REGISTRY:
        raise UnknownOpError(f"operator {op.name!r} is declared twice")
    _REGISTRY[op.name] = op
    return op


def get_op(name: str) -> Op:
    """Return the op of that name.

    Raises: UnknownOpError with the nearest name.
    """
    op = _REGISTRY.get(name)
    if op is None:
        raise UnknownOpError(
            f"no operator is called {name!r}",
            hint=did_you_mean(name, _REGISTRY) or "import kernelyard.ops first",
        )
    return op


def all_ops() -> tuple[Op, ...]:
    """Return every declared op, by name."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))
