"""Continuous batching over a paged KV cache."""
