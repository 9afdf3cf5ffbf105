"""Add the conformance kit's options to pytest, only where `kernelyard.testing` is what pytest is to run.

pytest imports this module in every run, so it imports nothing and, in other runs, does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGE = "kernelyard.testing"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add `--backend`, `--device`, `--scorecard`, `--write-gaps` and `--case-timeout`."""
    config = pluginmanager.get_plugin("pytestconfig")
    if config is None or PACKAGE not in map(str, config.invocation_params.args):
        return
    group = parser.getgroup("kernelyard", "conformance of Kernelyard backends")
    group.addoption("--backend", dest="kernelyard_backend", metavar="NAME", help="the backend to examine")
    device = "the index of the device to run on (default: the first; of CUDA the emulator)"
    group.addoption("--device", dest="kernelyard_device", metavar="N", default="", help=device)
    scorecard = "write FILE.json and FILE.md: every case, and sums by level"
    group.addoption("--scorecard", dest="kernelyard_scorecard", metavar="FILE", help=scorecard)
    gaps = "write FILE: a gap for each case that was declined or differs, for conformance.toml"
    group.addoption("--write-gaps", dest="kernelyard_gaps", metavar="FILE", help=gaps)
    timeout = "timeout of a case in seconds (default: 60)"
    group.addoption(
        "--case-timeout", dest="kernelyard_case_timeout", metavar="N", type=float, default=60.0, help=timeout
    )


def pytest_configure(config: pytest.Config) -> None:
    """Group failures, and keep score where that is asked for; with pytest-xdist in the process that hears of all."""
    if getattr(config.option, "kernelyard_backend", None) and not hasattr(config, "workerinput"):
        from kernelyard.testing.conformance.causes import CausesPlugin

        config.pluginmanager.register(CausesPlugin())
    file = getattr(config.option, "kernelyard_scorecard", None)
    if file and not hasattr(config, "workerinput"):
        from kernelyard.testing.conformance.scorecard import ScorecardPlugin

        config.pluginmanager.register(ScorecardPlugin(config.option.kernelyard_backend, file))
    file = getattr(config.option, "kernelyard_gaps", None)
    if file and not hasattr(config, "workerinput"):
        from kernelyard.testing.conformance.gaps import GapsPlugin

        config.pluginmanager.register(GapsPlugin(config.option.kernelyard_backend, file))
