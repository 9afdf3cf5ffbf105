"""Regions as C text: the plan that the runtime would make, written as calls of the oneDNN C API."""
