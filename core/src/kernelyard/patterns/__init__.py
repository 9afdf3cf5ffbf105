"""The dataflow pattern language, its matcher, and the patterns that backends register."""

from kernelyard.patterns.dataflow import Dataflow as Dataflow
from kernelyard.patterns.matcher import Match as Match
from kernelyard.patterns.matcher import Matcher as Matcher
from kernelyard.patterns.matcher import match as match
from kernelyard.patterns.matcher import matches as matches
from kernelyard.patterns.pattern import Pattern as Pattern
from kernelyard.patterns.pattern import is_const as is_const
from kernelyard.patterns.pattern import is_op as is_op
from kernelyard.patterns.pattern import is_tuple as is_tuple
from kernelyard.patterns.pattern import is_tuple_get_item as is_tuple_get_item
from kernelyard.patterns.pattern import is_var as is_var
from kernelyard.patterns.pattern import wildcard as wildcard
from kernelyard.patterns.registry import Accept as Accept
from kernelyard.patterns.registry import Answer as Answer
from kernelyard.patterns.registry import Decline as Decline
from kernelyard.patterns.registry import FusionPattern as FusionPattern
from kernelyard.patterns.registry import get_pattern as get_pattern
from kernelyard.patterns.registry import get_patterns as get_patterns
from kernelyard.patterns.registry import register_patterns as register_patterns
from kernelyard.patterns.registry import unregister_patterns as unregister_patterns
from kernelyard.patterns.rewriter import RewriteRule as RewriteRule
from kernelyard.patterns.rewriter import rewrite as rewrite
