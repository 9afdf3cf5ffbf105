"""Installed distributions and their entry points, and what is cached on this machine."""
