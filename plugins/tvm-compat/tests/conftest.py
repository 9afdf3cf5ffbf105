"""Fixtures that the core's tests have."""

from pass_checker import check as check
from process_plugins import install as install
