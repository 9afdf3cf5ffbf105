"""Norms of rows: what is taken, and as what."""

from __future__ import annotations

from kernelyard.plugins.api import Decline, Match
from kernelyard_cutlass.description import Description, Settings, check_dtypes
from kernelyard_cutlass.tiles import alignment_of

MOST_THREADS = 1024
ELEMENTS_OF_A_THREAD = 8
SYMBOL_COLUMNS = 1024


def describe_norm(match: Match, settings: Settings) -> Description | Decline:
    """Return a layer norm, or one by the root of the mean square, over the last axis."""
    call = match.call_of("root")
    type_ = call.args[0].tensor_type
    objection = check_dtypes(call.args)
    if objection:
        return objection
    if call.attrs["axes"] != (type_.rank - 1,):
        return Decline("attribute", f"normalised over the axes {call.attrs['axes']}; only the last axis is supported")
    columns = type_.shape[-1]
    alignment = alignment_of(columns, type_.dtype)
    known = columns if isinstance(columns, int) else SYMBOL_COLUMNS
    if known == 0:
        return Decline("attribute", "rows without elements have no mean")
    warps = -(-known // (32 * max(alignment, ELEMENTS_OF_A_THREAD)))
    is_rms = call.op_name == "nn.rms_norm"
    roles = {"data": "x", "weight": "gamma"} if is_rms else {"data": "x", "gamma": "gamma", "beta": "beta"}
    choices = {
        "family": "norm",
        "dtype": type_.dtype,
        "is_rms": is_rms,
        "alignment": alignment,
        "threads": min(MOST_THREADS, 32 * warps),
        "archs": settings.archs,
    }
    return Description("rms_norm" if is_rms else "layer_norm", roles, {"epsilon": call.attrs["epsilon"]}, choices)
