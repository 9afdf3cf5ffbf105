"""Environment variables: each is declared once, beside what reads it; docs/variables.md lists them."""

from __future__ import annotations

import os

PREFIX = "KERNELYARD_"


class EnvironmentVariable(str):
    """A variable of the environment, which is its name, with what it does and what holds where it is not set.

    Example:
        >>> variable = EnvironmentVariable("KERNELYARD_EXAMPLE", "nothing: an example", "off")
        >>> f"set {variable}=1", variable.get("0"), variable.is_set
        ('set KERNELYARD_EXAMPLE=1', '0', False)
    """

    __slots__ = ("default", "effect")
    effect: str
    default: str

    def __new__(cls, name: str, effect: str, default: str) -> EnvironmentVariable:
        variable = super().__new__(cls, name)
        variable.effect = effect
        variable.default = default
        return variable

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what copies and pickles hold is the name

    @property
    def is_set(self) -> bool:
        """True where the environment has it, be it empty."""
        return str(self) in os.environ

    def get(self, default: str = "") -> str:
        """Return the value without spaces around it; the given default where it is not set."""
        return os.environ.get(self, default).strip()
