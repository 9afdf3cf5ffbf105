"""Attention: what is taken, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelyard.dims import Dim, Shape
from kernelyard.plugins.api import ROLES, Decline, Match, are_thirds
from kernelyard_cutlass.description import Description, Settings, check_dtypes, text
from kernelyard_cutlass.kernels import MOST_ACCESS_NBYTES
from kernelyard_cutlass.tiles import alignment_of

LEAST_ALIGNMENT = 4  # elements that a row of a head is read by at once


def describe_attention(match: Match, settings: Settings) -> Description | Decline:
    """Describe attention of separate queries, keys and values, optionally with a bias."""
    operands = [match[role] for role in ROLES]
    objection = check_dtypes(operands) or _check_heads(match)
    if objection:
        return objection
    roles = {role: role for role in (*ROLES, "bias") if role in match.captures}
    return Description("attention", roles, _arguments(match), _choices(match, settings))


def describe_var_len(match: Match, settings: Settings) -> Description | Decline:
    """Describe attention within packed sequences of variable length."""
    objection = check_dtypes([match[role] for role in ROLES]) or _check_heads(match)
    if objection:
        return objection
    if match["query"].tensor_type.shape[0] != 1:
        return Decline(
            "batch", f"a batch of {match['query'].tensor_type.shape[0]}; sequences are packed in a batch of one"
        )
    starts = ("seqstart_q", "seqstart_k")
    objection = check_dtypes([match[name] for name in starts], ("int32",))
    if objection:
        return objection
    roles = {name: name for name in (*ROLES, *starts)}
    return Description("attention", roles, _arguments(match), _choices(match, settings))


def describe_stacked(match: Match, settings: Settings) -> Description | Decline:
    """Describe attention of thirds of one tensor (batch, sequence, 3 * heads * size), which are read where they are."""
    stacked, query = match["stacked"].tensor_type, match["query"].tensor_type
    objection = check_dtypes([match["stacked"]]) or _check_heads(match)
    if objection:
        return objection
    if stacked.rank != 3:
        return Decline("rank", f"the stacked tensor is {text(stacked.shape)}; three axes are needed")
    axis = match.call_of("split").attrs["axis"] if "split" in match.captures else _find_sliced_axis(match)
    if axis not in (2, -1):
        return Decline("layout", "queries, keys and values are not thirds of the last axis, one after the other")
    if any(match[role].tensor_type.shape != query.shape for role in ROLES) or query.shape[:2] != stacked.shape[:2]:
        return Decline("layout", "the thirds are not just split into heads")
    roles = {name: name for name in ("stacked", "bias") if name in match.captures}
    arguments = {**_arguments(match), "heads": query.shape[2]}
    return Description("stacked_attention", roles, arguments, _choices(match, settings))


def _find_sliced_axis(match: Match) -> int | None:
    if not are_thirds(match):
        return None
    return match.call_of("query_slice").attrs["axes"][0]


def _arguments(match: Match) -> Mapping[str, Any]:
    attrs = match.call_of("root").attrs
    return {"scale": attrs["scale"], "causal": attrs["causal"]}


def _choices(match: Match, settings: Settings) -> Mapping[str, Any]:
    query, value = match["query"].tensor_type, match["value"].tensor_type
    size, value_size = query.shape[3], value.shape[3]
    most = MOST_ACCESS_NBYTES // (4 if query.dtype == "float32" else 2)
    has_bias = "bias" in match.captures
    columns = match["key"].tensor_type.shape[1]
    return {
        "family": "attention",
        "dtype": query.dtype,
        "is_aligned": min(alignment_of(size, query.dtype), alignment_of(value_size, query.dtype)) == most,
        "has_bias": has_bias,
        "value_size": value_size,
        "pads": has_bias and not (isinstance(columns, int) and columns % most == 0),
        "archs": settings.archs,
    }


def _check_heads(match: Match) -> Decline | None:
    query, key, value = (match[role].tensor_type.shape for role in ROLES)
    for size, what in (
        (query[3], "head"),
        (value[3], "head of values"),
        (query[2], "number of heads"),
        (key[2], "number of heads of keys"),
    ):
        if not isinstance(size, int):
            return Decline("dynamic-shape", f"the {what}, {size}, is not known")
    for size in (query[3], value[3]):
        if size == 0 or alignment_of(size, "int32") < LEAST_ALIGNMENT:
            return Decline("alignment", f"heads of {size} elements; a multiple of {LEAST_ALIGNMENT} is needed")
    causal = match.call_of("root").attrs["causal"]
    if causal == "bottom_right" and isinstance(query[1], int) and isinstance(key[1], int) and query[1] > key[1]:
        return Decline("attribute", f"{query[1]} queries and {key[1]} keys: the first queries see nothing")
    return _check_bias(match, (query[0], query[2], query[1], key[1]))


def _check_bias(match: Match, full: Shape) -> Decline | None:
    bias = match.get("bias")
    if bias is None:
        return None
    if bias.tensor_type.dtype != match["query"].tensor_type.dtype:
        return Decline("dtype", f"a bias of {bias.tensor_type.dtype}", bias)
    shape: tuple[Dim, ...] = (1,) * (4 - bias.tensor_type.rank) + bias.tensor_type.shape
    fits = all(size == 1 or _is_whole(size, whole) for size, whole in zip(shape[:3], full[:3], strict=True))
    if len(shape) == 4 and fits and _is_whole(shape[3], full[3]):
        return None
    return Decline(
        "operand", f"a bias of {text(bias.tensor_type.shape)}; each axis of {text(full)} but the last may be 1", bias
    )


def _is_whole(size: Dim, whole: Dim) -> bool:
    """Return True if two sizes are equal, by proof or by a check in the program: a known size that is not 1 cannot
    broadcast.
    """
    return size == whole or (isinstance(size, int) and size != 1 and not isinstance(whole, int))
