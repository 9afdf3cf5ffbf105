"""Rewrite functions where patterns match."""
