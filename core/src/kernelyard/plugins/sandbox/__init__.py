"""Plugins' code within limits: guarded calls with an end, processes of their own, and a probe of what crashes."""
