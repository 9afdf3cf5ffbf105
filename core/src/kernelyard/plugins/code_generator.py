"""CodeGenerator: turns loop-level functions into kernels of a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from kernelyard.plugins.backend import Unavailable
from kernelyard.runtime.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.tir import PrimFunc


class CodeGenerator(ABC):
    """A target's own kernels: what no library takes."""

    name: str
    targets: tuple[str, ...]

    def probe(self) -> Unavailable | None:
        """None when kernels can be generated here."""
        return None

    def facts(self) -> Mapping[str, str]:
        """What `kernelyard doctor` is to say of it, by a few words each."""
        return {}

    @abstractmethod
    def generate(self, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]) -> RuntimeModule:
        """Compile functions; the module answers to each name with (inputs..., outputs...).

        Every function must be taken: one that fails is a broken contract, and all of them then run on the reference
        interpreter. Raises: CodegenError; TargetError for a target of its kind that it does not know.
        """
