"""The dataflow pattern language, its matcher, and the patterns that backends register."""

from typing import TYPE_CHECKING

from kernelyard.lazy import lazy_names
from kernelyard.patterns.language.constructors import is_call_dps_packed as is_call_dps_packed
from kernelyard.patterns.language.constructors import is_call_tir as is_call_tir
from kernelyard.patterns.language.constructors import is_const as is_const
from kernelyard.patterns.language.constructors import is_expr as is_expr
from kernelyard.patterns.language.constructors import is_extern as is_extern
from kernelyard.patterns.language.constructors import is_function as is_function
from kernelyard.patterns.language.constructors import is_gv as is_gv
from kernelyard.patterns.language.constructors import is_op as is_op
from kernelyard.patterns.language.constructors import is_shape as is_shape
from kernelyard.patterns.language.constructors import is_tuple as is_tuple
from kernelyard.patterns.language.constructors import is_tuple_get_item as is_tuple_get_item
from kernelyard.patterns.language.constructors import is_var as is_var
from kernelyard.patterns.language.constructors import wildcard as wildcard
from kernelyard.patterns.language.pattern import Pattern as Pattern
from kernelyard.patterns.language.pattern_context import PatternContext as PatternContext
from kernelyard.patterns.language.pattern_context import PatternSeq as PatternSeq
from kernelyard.patterns.matching.dataflow import Dataflow as Dataflow
from kernelyard.patterns.matching.match_result import Match as Match
from kernelyard.patterns.matching.matcher import Matcher as Matcher
from kernelyard.patterns.matching.matcher import extract as extract
from kernelyard.patterns.matching.matcher import match as match
from kernelyard.patterns.matching.matcher import matches as matches
from kernelyard.patterns.matching.matcher import matches_function as matches_function
from kernelyard.patterns.op_rules import accept_all as accept_all
from kernelyard.patterns.op_rules import register_op_rule as register_op_rule
from kernelyard.patterns.op_rules import unregister_op_rules as unregister_op_rules
from kernelyard.patterns.registry import Accept as Accept
from kernelyard.patterns.registry import Answer as Answer
from kernelyard.patterns.registry import Decline as Decline
from kernelyard.patterns.registry import FusionPattern as FusionPattern
from kernelyard.patterns.registry import get_pattern as get_pattern
from kernelyard.patterns.registry import get_patterns as get_patterns
from kernelyard.patterns.registry import register_patterns as register_patterns
from kernelyard.patterns.registry import unregister_patterns as unregister_patterns

if TYPE_CHECKING:
    from kernelyard.patterns.language.traced import item as item
    from kernelyard.patterns.language.traced import op as op
    from kernelyard.patterns.language.traced import trace as trace
    from kernelyard.patterns.language.traced import tuple_of as tuple_of
    from kernelyard.patterns.matching.graph_matcher import graph_matches as graph_matches
    from kernelyard.patterns.matching.graph_matcher import match_graph as match_graph
    from kernelyard.patterns.rewriting.function_rewriter import Rewriter as Rewriter
    from kernelyard.patterns.rewriting.function_rewriter import rewriter_from_module as rewriter_from_module
    from kernelyard.patterns.rewriting.function_rewriter import rewriter_of as rewriter_of
    from kernelyard.patterns.rewriting.rewriter import GraphRewriteRule as GraphRewriteRule
    from kernelyard.patterns.rewriting.rewriter import RewriteRule as RewriteRule
    from kernelyard.patterns.rewriting.rewriter import rewrite as rewrite
    from kernelyard.patterns.rewriting.rewriter import rewrite_bindings as rewrite_bindings
    from kernelyard.patterns.rewriting.rewriter import rewrite_call as rewrite_call

__getattr__ = lazy_names(
    __name__,
    {
        "kernelyard.patterns.rewriting.function_rewriter": "Rewriter rewriter_from_module rewriter_of",
        "kernelyard.patterns.matching.graph_matcher": "graph_matches match_graph",
        "kernelyard.patterns.rewriting.rewriter": "GraphRewriteRule RewriteRule rewrite rewrite_bindings rewrite_call",
        "kernelyard.patterns.language.traced": "item op trace tuple_of",
    },
)
