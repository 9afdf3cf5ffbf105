"""Errors of deploying a compiled model."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class ExportError(KernelyardError):
    """An artifact cannot be exported as asked: a place that is taken, facts that do not fit it, a dtype that the other
    system lacks."""

    code = "KY760"


class BatchJobError(KernelyardError):
    """A batch job cannot be run as asked, or some of its shards failed again and again; what is done is kept."""

    code = "KY761"
