"""Looking at what Kernelyard does: traces, and pages with the graph of a model."""

from __future__ import annotations

from kernelyard_view.show import view as view
