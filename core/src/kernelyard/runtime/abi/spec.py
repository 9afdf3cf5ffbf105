"""TensorSpec, and the reading of JSON that came from outside: every value is checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kernelyard import dims, dtypes
from kernelyard.dims import MAX_DIM, Dim, Shape
from kernelyard.errors import ArtifactCorruptedError, ParseError, ShapeError
from kernelyard.records import NamedTuple, record

MAX_RANK = 32
MAX_ITEMS = 1 << 20
HEXADECIMAL = frozenset("0123456789abcdef")

T = TypeVar("T")


@record
class TensorSpec:
    """A tensor's dims (ints or symbolic), dtype and, where it has one, its name."""

    shape: Shape
    dtype: str
    name: str = ""

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    def evaluate(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape when the symbols are known.

        Raises: ShapeError.
        """
        return tuple([dim if isinstance(dim, int) else dims.evaluate(dim, values) for dim in self.shape])

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; symbolic dims become text."""
        named = {"name": self.name} if self.name else {}
        return {**named, "shape": shape_to_json(self.shape), "dtype": self.dtype}

    def __repr__(self) -> str:
        text = f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''}) {self.dtype}"
        return f"{self.name}: {text}" if self.name else text


class Signature(NamedTuple):
    """Specs of the inputs and outputs of a module's function."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Inputs, then outputs: the order of arguments."""
        return self.inputs + self.outputs

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(repr, specs)) for specs in (self.inputs, self.outputs))
        return f"({inputs}) -> {outputs}"


def shape_to_json(shape: Sequence[Dim]) -> list[int | str]:
    """Convert dims to integers and text."""
    return [dim if isinstance(dim, int) else str(dim) for dim in shape]


def corrupted(where: str, found: object, expected: str) -> ArtifactCorruptedError:
    """Return the error for JSON that is not what it should be."""
    text = repr(found)
    return ArtifactCorruptedError(
        "compiled data is malformed",
        where=where,
        found=text if len(text) <= 80 else text[:77] + "...",
        expected=expected,
    )


class Fields:
    """A JSON object whose members are taken out by type; what is missing or ill-typed is an error that says where.

    Example:
        >>> Fields({"count": 3}, "header").integer("count")
        3
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise corrupted(where, value, "an object")
        self.value: dict[str, Any] = value
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self.value

    def any(self, key: str) -> Any:
        """Return the member as it is."""
        if key not in self.value:
            raise corrupted(self.where, sorted(self.value), f"a member {key!r}")
        return self.value[key]

    def integer(self, key: str, least: int = 0, most: int = MAX_DIM) -> int:
        """Return an integer within bounds."""
        value = self.any(key)
        if not is_int(value) or not least <= value <= most:
            raise corrupted(f"{self.where}.{key}", value, f"an integer from {least} to {most}")
        return value

    def text(self, key: str) -> str:
        """Return a string."""
        value = self.any(key)
        if not isinstance(value, str):
            raise corrupted(f"{self.where}.{key}", value, "a string")
        return value

    def dtype(self, key: str = "dtype") -> str:
        """Return the name of a dtype."""
        value = self.text(key)
        if value not in dtypes.DTYPES:
            raise corrupted(f"{self.where}.{key}", value, "a dtype")
        return value

    def digest(self, key: str = "digest") -> str:
        """Return a SHA-256 in hexadecimal."""
        value = self.text(key)
        if not is_digest(value):
            raise corrupted(f"{self.where}.{key}", value, "64 hexadecimal digits")
        return value

    def items(self, key: str) -> Iterator[tuple[Any, str]]:
        """Return the items of an array, each with its place for messages."""
        value = self.any(key)
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise corrupted(f"{self.where}.{key}", value, "an array")
        return ((item, f"{self.where}.{key}[{number}]") for number, item in enumerate(value))

    def each(self, key: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Return an array whose items `read` understands."""
        return tuple(read(item, where) for item, where in self.items(key))

    def indices(self, key: str, limit: int) -> tuple[int, ...]:
        """Return an array of integers in [0, limit)."""

        given = self.value.get(key)
        if isinstance(given, list) and all(type(item) is int and 0 <= item < limit for item in given):
            return tuple(given)  # most by far are right, and need no places for messages

        def read(item: Any, where: str) -> int:
            if not is_int(item) or not 0 <= item < limit:
                raise corrupted(where, item, f"an integer below {limit}")
            return item

        return self.each(key, read)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings."""

        def read(item: Any, where: str) -> str:
            if not isinstance(item, str):
                raise corrupted(where, item, "a string")
            return item

        return self.each(key, read)

    def shape(self, key: str = "shape") -> Shape:
        """Dims: non-negative integers, or expressions as text."""
        given = self.value.get(key)
        if isinstance(given, list) and all(type(dim) is int and 0 <= dim <= MAX_DIM for dim in given):
            shape = tuple(given)
        else:
            shape = self.each(key, read_dim)
        if len(shape) > MAX_RANK:
            raise corrupted(f"{self.where}.{key}", len(shape), f"at most {MAX_RANK} dims")
        return shape

    def tensor(self) -> TensorSpec:
        """Return a TensorSpec of this object's "shape", "dtype" and "name"."""
        return TensorSpec(self.shape(), self.dtype(), self.text("name") if "name" in self else "")

    def strings(self, key: str) -> dict[str, str]:
        """Return an object whose members are strings."""
        value = self.any(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise corrupted(f"{self.where}.{key}", value, "an object of strings")
        return value


def is_int(value: object) -> bool:
    """Return True for integers that are not booleans."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_digest(text: str) -> bool:
    """Return True for a SHA-256 in hexadecimal."""
    return len(text) == 64 and HEXADECIMAL.issuperset(text)


def read_dim(value: Any, where: str) -> Dim:
    """Return a dim from its JSON form."""
    if is_int(value) and 0 <= value <= MAX_DIM:
        return value
    if not isinstance(value, str):
        raise corrupted(where, value, "a size, or an expression as text")
    try:
        return dims.parse(value)
    except (ParseError, ShapeError, ValueError, RecursionError) as error:
        raise corrupted(where, value, f"a dimension expression ({error})") from error


def read_json(data: bytes | memoryview, where: str) -> Any:
    """Parse JSON text from an untrusted source.

    Raises: ArtifactCorruptedError.
    """
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise corrupted(where, str(error), "JSON") from error


def write_json(value: Any) -> bytes:
    """Serialize to JSON text that is the same for equal values: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
