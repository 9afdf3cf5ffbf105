"""Compile with a backend in a process of its own."""
