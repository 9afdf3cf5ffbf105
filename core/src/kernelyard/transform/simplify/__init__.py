"""Simplification: canonicalization, constant folding, common subexpressions, dead code, types."""
