"""Codegen: how backends write regions for their runtimes, as JSON graphs or as C text."""
