"""The package's names: what the documentation and TVM's users look for is there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kernelyard import patterns, transform
from kernelyard.errors import PatternError
from kernelyard.patterns import is_function, is_op, is_tuple, is_tuple_get_item, wildcard

PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"
KNOWN_FROM_TVM = """
is_var is_gv is_dfv is_const is_expr is_op is_tuple is_tuple_get_item wildcard has_dtype is_shape is_call_tir
is_call_dps_packed is_call_packed reject has_attr make_fused_bias_activation_pattern PatternContext rewrite_call
rewrite_bindings PatternMatchingRewriter FusionPattern PatternCheckContext register_patterns get_patterns_with_prefix
get_pattern make_conv2d_pattern make_matmul_pattern make_residual_block_pattern make_attention_pattern
make_stacked_attention_pattern make_layer_norm_pattern make_rms_norm_pattern make_matmul_dequantize_pattern
make_matmul_multiply_pattern make_attention_rewrite_pattern has_ty same_shape_as used_by only_used_by fork_to dup
extract_matched_expr match_dfb varg_default_wildcard has_leaking_intermediate_variables
"""
PASSES = """
AnnotateTIROpPattern AttachExternModules BindParams BindSymbolicVars ConvertLayout DeadCodeElimination
EliminateCommonSubexpr FoldConstants FuseOps FuseOpsByPattern FuseTIR FuseTransposeMatmul LegalizeOps
MergeCompositeFunctions RunCodegen ToMixedPrecision
"""


def rows() -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8").partition("## Equivalents in TVM")[2]
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return [(left, right) for left, right in found if left != "TVM"]


def resolved(name: str) -> Any:
    """What a dotted name stands for, from the package on."""
    value: Any = patterns
    for part in name.split("."):
        value = import_module(f"{patterns.__name__}.{part}") if part.endswith("templates") else getattr(value, part)
    return value


@pytest.mark.parametrize("name", KNOWN_FROM_TVM.split())
def test_what_tvms_users_look_for_is_in_the_table(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", left) for left, _ in rows())


@pytest.mark.parametrize(("left", "right"), rows(), ids=[left[:40] for left, _ in rows()])
def test_every_name_of_the_table_is_there(left: str, right: str) -> None:
    for code in re.findall(r"`([^`]+)`", right):
        name = re.match(r"[A-Za-z_.]+", code)
        if name is not None and name[0] != "varargs":
            assert resolved(name[0]) is not None


@pytest.mark.parametrize("name", PASSES.split())
def test_passes_have_the_fields_names(name: str) -> None:
    assert issubclass(getattr(transform, name), transform.Pass)


def test_a_list_of_operands_is_refused_with_the_right_spelling() -> None:
    """As TVM writes tuples; nothing that is no pattern gets into one."""
    p: Any = wildcard()
    for wrong in (
        lambda: is_tuple([p, p]),  # pyright: ignore[reportArgumentType]
        lambda: is_op("add")([p, p]),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(PatternError, match="write them one after another"):
            wrong()
    for wrong in (
        lambda: p | 3,
        lambda: p & "x",
        lambda: is_function([3], p),  # pyright: ignore[reportArgumentType]
        lambda: is_tuple_get_item(3, 0),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(PatternError, match="is not a pattern"):
            wrong()
