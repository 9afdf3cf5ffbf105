"""CodeGenerator: turns loop-level functions into kernels of a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from kernelyard.ir import Call
from kernelyard.patterns import Match
from kernelyard.patterns.cost import Cost
from kernelyard.plugins.interfaces.backend import Unavailable
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.tir.packing import Packing
from kernelyard.transform.partition.region import Region


class CodeGenerator(ABC):
    """A target's own kernels, for operators that no library accepts.

    name: the plugin's.
    composes_attention: attention is one kernel on its targets, so that matmuls and softmax are composed into it before
    backends are asked; where it is not set, `fuses_attention` is asked after them.
    channels_last: dtypes of convolutions that are faster on channels-last tensors; those that backends left, and what
    lies between them, are converted.
    """

    name: str
    targets: tuple[str, ...]
    composes_attention: bool = False
    channels_last: tuple[str, ...] = ()

    def probe(self) -> Unavailable | None:
        """Return None when kernels can be generated here."""
        return None

    def facts(self) -> Mapping[str, str]:
        """Return labelled facts for `kernelyard doctor`."""
        return {}

    def complete(self, target: Target) -> Target:
        """Return the target with what it leaves open settled for this machine, before backends see it; by default
        itself. The report names the result."""
        return target

    def widened(self, target: Target) -> tuple[str, ...]:
        """Return the floats narrower than float32 for which the target has no arithmetic; none by default.

        Models that state them are computed in float32, before backends are asked.
        """
        return ()

    def multiplies_integers(self, target: Target) -> bool:
        """Return True where the target sums products of 8-bit integers by an instruction; by default False.

        Products of quantized values that no library takes are then products of integers, not of floats.
        """
        return False

    def sums_in_16_bits(self, target: Target) -> bool:
        """Return True where products of 8-bit integers are faster if two of them add up to a number of 16 bits, or if
        both factors are signed; by default False."""
        return False

    def multiplies_digits(self, target: Target, bits: int) -> bool:
        """Return True where products of 16-bit integers, each as two digits of 8 bits, with weights of 4 or 8 bits are
        faster than those of floats; by default wherever 8-bit integers are multiplied."""
        return self.multiplies_integers(target)

    def packings(self, function: PrimFunc, constants: Collection[int], target: Target) -> Mapping[int, Packing]:
        """Choose packed layouts for inputs of a function that are constant at every call; none by default.

        constants: the positions of such inputs. `generate` gets the function that reads them packed.
        """
        return {}

    def fuses_attention(self, attention: Call, target: Target) -> bool:
        """Return True for a call of nn.attention or nn.attention_bias that is faster as one kernel than as its
        products and its softmax, which backends have left; False by default."""
        return False

    def cost(self, work: Match | Region, target: Target) -> Cost | None:
        """Estimate what this work costs as kernels of this generator; None, the default, if it is unknown.

        Called if the choice is the compiler's; if the cost is unknown, libraries come first.
        work: a match, whatever stands beside it; later each region of those that were left to the library.
        """
        return None

    @abstractmethod
    def generate(self, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]) -> RuntimeModule:
        """Compile functions; the module answers to each name with (inputs..., outputs...).

        Every function must be taken: one that fails is a broken contract, and all of them then run on the reference
        interpreter. Raises: CodegenError; TargetError for a target of its kind that it does not know.
        """
