"""Fusion of loop-level functions into kernels."""
