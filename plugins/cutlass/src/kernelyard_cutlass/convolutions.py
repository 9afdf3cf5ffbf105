"""Convolutions of images with channels last: what is taken, and as what."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.plugins.api import Constant, Decline, Match
from kernelyard_cutlass.description import Description, Settings, check_dtypes, describe_epilogue
from kernelyard_cutlass.tiles import alignment_of

MOST_TAPS = 32  # of a window's row and column, for which there are bits where positions are kept


def describe_conv2d(match: Match, settings: Settings) -> Description | Decline:
    """Return a convolution between the permutations that make images with channels last of it, with what follows on
    it."""
    call = match.call_of("root")
    data, weight = match["data"].tensor_type, call.args[1].tensor_type
    objection = check_dtypes([match["data"], call.args[1]])
    if objection:
        return objection
    if call.attrs["groups"] != 1:
        return Decline("attribute", f"{call.attrs['groups']} groups; the template has one")
    filters, channels, *window = weight.shape
    for size, what in ((channels, "channels"), (filters, "filters"), *((tap, "the window") for tap in window)):
        if not isinstance(size, int):
            return Decline("dynamic-shape", f"the size {size} of {what} is not known", at=match["weight"])
    behind = describe_epilogue(match, match["image"].tensor_type.shape)
    if isinstance(behind, Decline):
        return behind
    batch, height, width, _ = match["image"].tensor_type.shape
    transposed = "transposed" in match.captures
    is_packed = isinstance(match["weight"], Constant) and not transposed
    roles = {"data": "x", "weight": "weight_first" if is_packed else "weight", **behind.roles}
    arguments = {
        "padding": call.attrs["padding"][:2],
        "strides": call.attrs["strides"],
        "dilation": call.attrs["dilation"],
        "weight_channels_first": not (transposed or is_packed),
        "tune": settings.tune,
    }
    is_short = all(isinstance(taps, int) and taps <= MOST_TAPS for taps in window)
    choices = {
        "family": "conv2d",
        "dtype": data.dtype,
        "output": match.root.tensor_type.dtype,
        "math": settings.math(data.dtype),
        "alignment_a": alignment_of(channels, data.dtype),
        "alignment_b": alignment_of(channels, data.dtype),
        "alignment_c": alignment_of(filters, match.root.tensor_type.dtype),
        "activation": behind.epilogue.activation,
        "combine": behind.epilogue.combine,
        "final": behind.epilogue.final,
        "problem": (batch * height * width, filters, dims.product(weight.shape[1:]), 1),
        "algorithm": "kOptimized" if is_short else "kAnalytic",
        "transposes": not (transposed or is_packed),
        "archs": settings.archs,
        "tune": settings.tune,
    }
    return Description("conv2d", roles, arguments, choices)
