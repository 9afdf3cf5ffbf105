"""Discover installed plugins: their states, and the manager that loads one when it is first needed."""
