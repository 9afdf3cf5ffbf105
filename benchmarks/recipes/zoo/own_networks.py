"""Networks that no package has here: of images, sound, graphs, tables and series, in their usual shapes."""

from __future__ import annotations

import importlib

from recipes.zoo.torch_models import Made

MODULES = ("images", "generators", "sound", "graphs", "series", "narrow")


def make(architecture: str) -> Made:
    """Return the network and its feeds. Raises: KeyError where there is none of that name."""
    for name in MODULES:
        if network := importlib.import_module(f"recipes.zoo.{name}").NETWORKS.get(architecture):
            return network()
    raise KeyError(architecture)
