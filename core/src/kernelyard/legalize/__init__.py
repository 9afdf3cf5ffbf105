"""Legalization: how operators become loop-level functions, one file of rules per operator family."""

from kernelyard.legalize import activation as activation
from kernelyard.legalize import creation as creation
from kernelyard.legalize import elementwise as elementwise
from kernelyard.legalize import indexing as indexing
from kernelyard.legalize import reduction as reduction
from kernelyard.legalize import shape as shape
from kernelyard.legalize.registry import has_rule as has_rule
from kernelyard.legalize.registry import legalize as legalize
from kernelyard.legalize.registry import legalize_call as legalize_call
