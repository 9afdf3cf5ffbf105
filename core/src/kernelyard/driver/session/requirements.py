"""Requirements on a placement: shares of the FLOPs that backends must run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kernelyard.errors import CoverageError, OptionError
from kernelyard.plugins.discovery.manager import PluginManager
from kernelyard.runtime.report import Report

MAX_REASONS = 3


def check_requirements(manager: PluginManager, require: Mapping[str, float] | None) -> dict[str, float]:
    """Return the required shares, from 0 to 1, by backend or code generator.

    Raises: OptionError, UnknownBackendError, BackendUnavailableError.
    """
    wanted: Any = {} if require is None else require
    if not isinstance(wanted, Mapping):
        raise OptionError("require must be a dictionary", found=repr(wanted), expected='{"dnnl": 0.9}')
    for backend, share in wanted.items():
        manager.get_any(backend, ("backend", "code_generator"))
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise OptionError(
                f"the required share of {backend} is out of range",
                found=repr(share),
                expected="a number from 0 to 1, such as 0.9",
            )
    return {backend: float(share) for backend, share in wanted.items()}


def check_coverage(report: Report, require: Mapping[str, float]) -> None:
    """Check that each backend runs the required share of the model's FLOPs (of its ops if it has no FLOPs).

    Raises: CoverageError with the coverage found and the reasons that cost most.
    """
    for backend, share in require.items():
        found = _share(report, backend)
        if found < share:
            raise CoverageError(
                f"{backend} runs {100 * found:.1f} % of the model's FLOPs; {100 * share:g} % are required",
                found=report.summary,
                expected=f"at least {100 * share:g} %",
                where=_reasons(report, backend),
                hint="`kernelyard explain` shows each op with its reasons; require less, or change the model",
            )


def _share(report: Report, backend: str) -> float:
    work = report.coverage.get(backend, {})
    has_flops = any(row.flops for row in report.placed)
    return work.get("flops_fraction" if has_flops else "ops_fraction", 0.0 if report.placed else 1.0)


def _reasons(report: Report, backend: str) -> str | None:
    """Return the reasons behind most of the work that the backend does not run."""
    work: Counter[tuple[str, str]] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    message: dict[tuple[str, str], str] = {}
    for node in report.nodes:
        if node.backend == backend:
            continue
        given = [reason for reason in node.reasons if reason.backend == backend]
        code, text = (given[-1].code, given[-1].message) if given else ("no-pattern", "it has no pattern for this op")
        key = node.op, code
        work[key] += node.flops
        calls[key] += 1
        message.setdefault(key, text)
    worst = sorted(work, key=lambda key: (-work[key], -calls[key], key))[:MAX_REASONS]
    return "; ".join(f"{op}×{calls[op, code]}: {code}: {message[op, code]}" for op, code in worst) or None
