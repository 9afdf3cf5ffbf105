"""Show a docstring's "Example:" as code in the reference of the API: an extension of griffe, which reads docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Writes the heading as griffe knows it, in the plural."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring. griffe calls it for each that it has read."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub("Examples:", obj.docstring.value)
