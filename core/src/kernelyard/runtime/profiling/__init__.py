"""Profiling: the time of a program, step by step and within them, as a table and as a trace."""
