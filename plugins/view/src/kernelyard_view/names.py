"""Names of a model's nodes, without what frontends write around them."""

from __future__ import annotations

import re

_ORIGIN = re.compile(r"node '([^']*)' \([^()]*\)")


def plain_name(origin: str) -> str:
    """Return the names of the nodes in an origin; what is none stays as it is.

    Example:
        >>> plain_name("node '/layers.0/Add' (Add)")
        '/layers.0/Add'
        >>> plain_name("node 'a' (Add); node 'b' (Mul)"), plain_name("exp")
        ('a; b', 'exp')
    """
    return _ORIGIN.sub(lambda found: found[1] or found[0], origin)
