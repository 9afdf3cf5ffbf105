"""Why PTX cannot be read, or a thread cannot go on."""

from __future__ import annotations


class PtxError(Exception):
    """Say what is wrong with PTX: the line of the text, and where they are known the thread and the address."""
