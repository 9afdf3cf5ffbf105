"""Why PTX cannot be read, or a thread cannot go on."""

from __future__ import annotations


class PtxError(Exception):
    """What is wrong, with the line of the text, and where it is known the thread and the address."""
