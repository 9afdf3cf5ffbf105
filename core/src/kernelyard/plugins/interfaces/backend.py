"""Backend: what a vendor implements. Patterns say what a library can do, codegen turns regions into a RuntimeModule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard.ir import IRModule
from kernelyard.patterns.registry import Accept, Answer, FusionPattern
from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.transform.layout.border_agreement import BorderLayouts
from kernelyard.transform.partition.region import Region


@dataclass(frozen=True)
class Unavailable:
    """The reason why an installed plugin is unusable on this machine, and a hint."""

    reason: str
    hint: str | None = None


class Backend(ABC):
    """A named library (or device) that takes regions of a model.

    merge_composites: True when codegen can run several composites as one region; neighbours are then merged.
    states_costs: True when its answers say what work costs (`Accept.cost`). With `backends="auto"` such backends are
    asked first, and one of unknown speed gets only what the target's code generator does not know.
    """

    name: str
    merge_composites: bool = False
    states_costs: bool = False

    def probe(self) -> Unavailable | None:
        """Return None when the library and device are there; asked once, before anything else.

        Raises: BackendUnavailableError, which is taken as `Unavailable`.
        """
        return None

    def facts(self) -> Mapping[str, str]:
        """Return labelled facts for `kernelyard doctor`: the library's path, its version."""
        return {}

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """Return the backend for a compile with these options, which `codegen` gets too; itself where they change
        neither patterns nor checks.

        Raises: OptionError for a value that it does not take.
        """
        return self

    @abstractmethod
    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """Return the patterns to offload for a target, most wanted first."""

    def quantization_schemes(self, target: Target) -> Sequence[QuantizationScheme]:
        """Return the schemes whose integers this backend computes with, most wanted first.

        `kernelyard.quantize(..., scheme="auto")` takes the first; each can be asked for by its name.
        """
        return ()

    def prepare(self, module: IRModule) -> IRModule:
        """Rewrite the module before matching (layouts, canonical forms); must keep its meaning."""
        return module

    def check_region(self, region: Region) -> Answer:
        """Accept or decline a region of merged composites; called if `merge_composites` is True.

        A region that is declined is plain operators again, which the backends that come later are offered; one that is
        too large is halved, and the halves are asked for, with `Decline(..., divide=True)`. The cost of
        one that is accepted is compared as that of a match is.
        """
        return Accept()

    def optimize(self, region: IRModule) -> IRModule:
        """Rewrite a region before codegen; must keep its type and meaning.

        region: a module of the region, as an ordinary function under its own name, and the composites that it calls.
        Composites may be rewritten, added and left out. A failure breaks the contract; the region is used as it was.
        """
        return region

    def border_layouts(self, region: Region) -> BorderLayouts | None:
        """Return in which order of dims a region would read its parameters and write its results; None: row-major.

        Where a region that writes a tensor and those that read it, of any backends, name the same order, the tensor is
        handed over in it: codegen then gets regions in which composites `<backend>.border_layout`, each a
        `permute_dims`, stand behind such parameters and before such results. Only a backend that takes these answers.
        """
        return None

    def may_refuse(self, region: Region) -> bool:
        """Return True where the runtime half may raise NoImplementationError when it binds a region.

        Asked after `codegen`. Such a region has a fallback: its operators, compiled as if no backend had taken them.
        """
        return False

    @abstractmethod
    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Compile regions; the module answers to each region's symbol.

        Raises: CodegenError; after an accepting check this breaks the contract and is reported as such.
        """
