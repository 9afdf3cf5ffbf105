"""Benchmarks on a GPU: what is measured, by which engines, how, and what is kept of it."""
