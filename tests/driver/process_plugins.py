"""Plugins that live in this process only."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelyard.plugins import hookimpl
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.hookspecs import HOOK_OF_PART
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.interfaces.frontend import Frontend
from kernelyard.plugins.interfaces.manifest import Manifest

Install = Callable[..., None]
PARTS = {"backend": Backend, "code_generator": CodeGenerator, "frontend": Frontend}


@pytest.fixture
def install() -> Iterator[Install]:
    """install(part, **manifest): a backend, code generator or frontend becomes a plugin of this process."""
    names: list[str] = []

    def add(part: Any, **facts: Any) -> None:
        kind = next(kind for kind, class_ in PARTS.items() if isinstance(part, class_))
        plugin = types.ModuleType(f"{part.name}_plugin")
        setattr(plugin, HOOK_OF_PART[kind], hookimpl(lambda: part))
        facts = {"api": ">=2.0,<3", "provides": (kind,), "targets": ("cpu",), **facts}
        get_manager().register(plugin, Manifest(name=part.name, **facts), f"kernelyard-{part.name}", "9.9")
        names.append(part.name)

    yield add
    for name in names:
        get_manager().unregister(name)
