"""Declare records as `dataclass` and `typing.NamedTuple` do, in a tenth of the time.

Methods are shared by all classes. What makes an object is written when a class makes its first, since a program that
starts declares many classes that it never needs.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import Parameter, Signature, get_annotations
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)


class _TupleSignature:
    """The signature of a named tuple's class, computed when somebody asks for it."""

    def __get__(self, instance: object, owner: Any) -> Signature:
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=owner._field_defaults.get(name, Parameter.empty),
                    annotation=owner.__annotations__[name],
                )
                for name in owner._fields
            ]
        )


class _Tuple(tuple[Any, ...]):
    """The methods of all named tuples."""

    __slots__ = ()
    __signature__ = _TupleSignature()
    _fields: tuple[str, ...] = ()
    _field_defaults: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """Make the first object of a class: write the `__new__` of its own that makes the others."""
        owner: Any = next(each for each in cls.__mro__ if "_fields" in each.__dict__)
        fields, default = owner._fields, owner._field_defaults
        parameters = ", ".join(f"{name}=_default[{name!r}]" if name in default else name for name in fields)
        text = f"lambda _cls, {parameters}: _new(_cls, ({''.join(f'{name}, ' for name in fields)}))"
        owner.__new__ = staticmethod(_function(owner, "__new__", text, {"_new": tuple.__new__, "_default": default}))
        return owner.__new__(cls, *values, **named)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__qualname__} has {len(cls._fields)} fields, not {len(made)}")
        return made

    def _replace(self, **named: Any) -> Any:
        made = self._make(named.pop(name, value) for name, value in zip(self._fields, self, strict=True))
        if named:
            raise TypeError(f"{type(self).__qualname__} has no field {', '.join(named)}")
        return made

    __replace__ = _replace  # of copy.replace

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__qualname__}({shown})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


# Properties that give an item of any tuple; they are faster than others, and classes may share them.
_ITEMS = [f"item{n}" for n in range(16)]
_GETTERS = itemgetter(*_ITEMS)(vars(namedtuple("_GETTERS", _ITEMS)))


class _NamedTupleType(type):
    """Make a class of tuples of a class statement, which needs annotations as texts."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        names = tuple(namespace["__annotations__"])
        defaults = {name: namespace[name] for name in names if name in namespace}
        getters = (_GETTERS[n] if n < len(_GETTERS) else property(itemgetter(n)) for n in range(len(names)))
        fixed = {"__slots__": (), "_fields": names, "_field_defaults": defaults, "__match_args__": names}
        return type(name, (_Tuple,), namespace | fixed | dict(zip(names, getters, strict=True)))


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    NamedTuple = type.__new__(_NamedTupleType, "NamedTuple", (), {"__doc__": "Declare as with `typing.NamedTuple`."})


@overload
def record(cls: Class, /) -> Class: ...
@overload
def record(*, eq: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, eq: bool = True) -> Any:
    """Make a frozen dataclass of a class, with methods that all such classes share.

    `dataclasses.replace`, `fields` and `asdict` take its objects. eq: False compares and hashes by identity, or as the
    base class does. Fields with `init=False` are set by `__post_init__`. Methods that the class defines itself stay.

    Example:
        >>> @record
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1) == Point(x=1, y=0), Point(2)
        (True, Point(x=2, y=0))
    """
    if cls is None:
        return lambda each: record_of(each, eq)
    return record_of(cls, eq)


def record_of(cls: Any, eq: bool) -> Any:
    """Give a class the methods of a record."""
    cls.__dataclass_fields__ = _fields_of(cls)
    cls.__dataclass_params__ = _Parameters(eq)
    cls.__signature__ = _ComputedSignature()
    _describe_fields(cls)
    shared: dict[str, Any] = {
        "__init__": _first_init(cls),
        "__repr__": _repr,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }
    if eq:
        shared |= {"__eq__": _eq, "__hash__": _hash}
    for name, method in shared.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _describe_fields(cls: Any) -> None:
    """Set what the shared methods read of a class: its parameters, and getters of compared fields."""
    declared = fields(cls)
    cls.__match_args__ = tuple(each.name for each in declared if each.init)
    compared = [each for each in declared if each.compare]
    cls._compared = _values_of(each.name for each in compared)
    cls._hashed = _values_of(each.name for each in compared if each.hash is not False)


def _fields_of(cls: Any) -> dict[str, Any]:
    """Return the fields of a class and its bases, as `dataclass` reads them; it is shown a class without methods."""
    own = get_annotations(cls)
    given = {name: cls.__dict__[name] for name in own if name in cls.__dict__}
    parts = {"__doc__": cls.__doc__ or cls.__name__, "__module__": cls.__module__, "__annotations__": own, **given}
    shown: Any = dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), parts))
    for name in given:
        if isinstance(given[name], Field):
            delattr(cls, name)
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        found |= base.__dict__.get("__dataclass_fields__", {})
    return {**found, **shown.__dataclass_fields__}


class _Parameters(NamedTuple):
    """Satisfy what `dataclass` asks of a base class: a frozen one may be derived from a frozen one alone."""

    eq: bool
    frozen: bool = True


def _values_of(names: Iterable[str]) -> Callable[[Any], Any]:
    wanted = tuple(names)
    return attrgetter(*wanted) if wanted else staticmethod(lambda _: ())


def _first_init(cls: Any) -> Callable[..., None]:
    """Return an `__init__` that makes the first object of a class, and gives it the one that makes the others."""

    def first(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = made = _init_of(cls)
        made(self, *values, **named)

    return first


def _init_of(cls: Any) -> Callable[..., None]:
    scope: dict[str, Any] = {"_absent": _ABSENT}
    parameters, values = ["self"], []
    for each in fields(cls):
        name, value, default = each.name, each.name, ""
        if each.default is not MISSING:
            scope[f"_{name}"], default = each.default, f"=_{name}"
        elif each.default_factory is not MISSING:
            scope[f"_{name}"], default = each.default_factory, "=_absent"
            value = f"_{name}() if {name} is _absent else {name}" if each.init else f"_{name}()"
        if each.init:
            parameters.append(f"{name}{default}")
        if each.init or default:
            values.append(f"{name}={value}")
    then = " or self.__post_init__()" if hasattr(cls, "__post_init__") else ""
    text = f"lambda {', '.join(parameters)}: self.__dict__.update({', '.join(values)}){then}"
    return _function(cls, "__init__", text, scope)


def _function(cls: Any, name: str, text: str, scope: dict[str, Any]) -> Any:
    """Return a method of a class, from its text, which is made of names of fields."""
    made = eval(text, scope)
    made.__name__, made.__qualname__, made.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return made


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> bool:
    if type(self) is not type(other):
        return NotImplemented
    return self is other or self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._hashed(self))


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__qualname__}")


class _ComputedSignature:
    """The signature of a record's class, computed when somebody asks for it."""

    def __get__(self, instance: object, owner: Any) -> Signature:
        declared = [each for each in fields(owner) if each.init]
        return Signature(
            [
                Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD, default=_default_of(each), annotation=each.type)
                for each in declared
            ],
            return_annotation=None,
        )


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Factory()


def _default_of(declared: Any) -> Any:
    if declared.default_factory is not MISSING:
        return _ABSENT
    return Parameter.empty if declared.default is MISSING else declared.default
