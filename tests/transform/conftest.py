"""Fixtures of the pass tests."""

from pass_checker import check as check
