"""Measured placement: candidates are compiled, run in turns, and the fastest is taken."""

from __future__ import annotations

from kernelyard_tune.errors import TuneError as TuneError
from kernelyard_tune.tuner import tune as tune
