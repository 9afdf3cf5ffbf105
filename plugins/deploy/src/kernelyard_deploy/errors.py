"""Errors of deploying a compiled model."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class ExportError(KernelyardError):
    """An artifact cannot be exported as asked: a place that is taken, facts that do not fit it, a dtype that the other
    system lacks."""

    code = "KY760"
