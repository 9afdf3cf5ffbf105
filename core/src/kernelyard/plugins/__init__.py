"""Plugins: how backends, code generators and frontends are described, found and kept apart.

This front door is what a plugin imports; it is cheap.
"""

from kernelyard.plugins.hookspecs import API_VERSION as API_VERSION
from kernelyard.plugins.hookspecs import hookimpl as hookimpl
