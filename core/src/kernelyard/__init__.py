"""Kernelyard: a deep-learning compiler whose backends are pip packages."""

__version__ = "0.1.0"
