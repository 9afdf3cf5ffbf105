"""MergeComposite: a table of patterns, one after another over the whole module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kernelyard.ir import Binding, Call, IRModule, TupleGetItem
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import FusionPattern, MatchRecorder, PatternLike, as_fusion_pattern
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

PARTITIONED_FROM_PATTERN = "PartitionedFromPattern"


class MergeComposite(Pass):
    """Lift matches into composites; an earlier pattern of the table wins over a later one wherever both match.

    `FuseOpsByPattern` prefers the longest chain instead, whatever the order. Each composite also says what it was made
    from: "PartitionedFromPattern" = the ops' names, each followed by "_", so that a pattern of the form "a convolution,
    followed by something" knows what it matched.

    table: FusionPatterns, or tuples (name, pattern) or (name, pattern, check). Raises: PatternError.
    """

    name = "MergeComposite"

    def __init__(self, table: Sequence[PatternLike], recorder: MatchRecorder | None = None) -> None:
        self.table = tuple(_with_origin(as_fusion_pattern(pattern)) for pattern in table)
        self.recorder = recorder

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        for pattern in self.table:
            module = FuseOpsByPattern([pattern], recorder=self.recorder).run(module, context)
        return module


def _with_origin(pattern: FusionPattern) -> FusionPattern:
    return replace(pattern, attrs_getter=partial(_attributes, pattern))


def _attributes(pattern: FusionPattern, match: Match) -> Mapping[str, Any]:
    own = {} if pattern.attrs_getter is None else pattern.attrs_getter(match)
    return {**own, PARTITIONED_FROM_PATTERN: "".join(map(_part, match.bindings))}


def _part(binding: Binding) -> str:
    value = binding.value
    if isinstance(value, Call):
        return f"{value.op_name}_"
    return f"TupleGetItem{value.index}_" if isinstance(value, TupleGetItem) else f"{type(value).__name__}_"
