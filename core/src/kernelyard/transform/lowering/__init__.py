"""Lowering: operators to loop-level functions, and to operators for which rules exist."""
