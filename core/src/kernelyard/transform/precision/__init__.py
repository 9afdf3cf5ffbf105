"""Precision: compute in narrower or wider floats."""
