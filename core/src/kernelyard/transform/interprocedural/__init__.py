"""Passes over functions and their calls: inlining, closures, signatures, parameters bound to constants and sizes."""
