"""Names and operators of a model's nodes, without what frontends write around them."""

from __future__ import annotations

import re

_ORIGIN = re.compile(r"node '([^']*)' \(([^()]*)\)")


def plain_name(origin: str) -> str:
    """Return the names of the nodes in an origin; what is none stays as it is.

    Example:
        >>> plain_name("node '/layers.0/Add' (Add)")
        '/layers.0/Add'
        >>> plain_name("node 'a' (Add); node 'b' (Mul)"), plain_name("exp")
        ('a; b', 'exp')
    """
    return _ORIGIN.sub(lambda found: found[1] or found[0], origin)


def model_ops(origin: str) -> str:
    """Return the operators of the model that an origin names, each once; "" where it names none.

    Example:
        >>> model_ops("node 'a' (Add); node 'b' (Mul); node 'c' (Add)"), model_ops("exp")
        ('Add; Mul', '')
    """
    return "; ".join(dict.fromkeys(found[2] for found in _ORIGIN.finditer(origin)))
