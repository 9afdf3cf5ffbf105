"""A property that is computed once per object, without the lock of Python 3.11's `functools.cached_property`.

That lock is one for all objects of a class: it is held while a value is computed, so that a child process, forked by
another thread meanwhile, waits for it for ever; and taking it costs a microsecond. Python 3.12 has dropped it.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    from functools import cached_property
else:
    from collections.abc import Callable
    from typing import Any, Generic, Self, TypeVar, overload

    T = TypeVar("T")

    class cached_property(Generic[T]):  # noqa: N801  (the name in the standard library)
        """Compute an attribute when it is first read, and keep it in the object's `__dict__`.

        Threads that read it for the first time at the same time may each compute it; all get the value that came first.

        Example:
            >>> class Circle:
            ...     def __init__(self, radius):
            ...         self.radius = radius
            ...     @cached_property
            ...     def area(self):
            ...         return 3 * self.radius**2
            >>> Circle(2).area
            12
        """

        def __init__(self, compute: Callable[[Any], T]) -> None:
            self._compute = compute
            self._name = compute.__name__
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> T: ...
        def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
            # Found only where the object's `__dict__` has no such name yet.
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))


__all__ = ["cached_property"]
