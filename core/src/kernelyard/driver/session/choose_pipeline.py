"""The pipeline of a compile: the default one of its target, or one that the user gives."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.driver.session.choose_backends import choose_code_generator
from kernelyard.driver.session.choose_target import choose_target
from kernelyard.errors import OptionError
from kernelyard.ir import Call
from kernelyard.ops.quantization import STORED_BITS
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.target import Target
from kernelyard.transform.compile_pipeline import CompilePipeline, default_pipeline
from kernelyard.transform.pass_infra.pass_base import Pass
from kernelyard.transform.pipelines import get_pipeline


def get_default_pipeline(target: Target | str = "cpu") -> CompilePipeline:
    """Return the pipeline by which `compile` compiles for a target: to look at, to change and to give to it.

    Raises: TargetError, BackendUnavailableError.

    Example:
        >>> from kernelyard.transform import DeadCodeElimination
        >>> pipeline = get_default_pipeline("cpu").after("simplify", DeadCodeElimination())
        >>> pipeline.changes
        ('dead_code_elimination after simplify',)
    """
    manager = get_manager()
    choice = choose_code_generator(manager, choose_target(manager, target))
    return pipeline_for(choice.generator, choice.target)


@dataclass(frozen=True)
class FusesAttention:
    """Ask a code generator whether it fuses an attention for a target; two that ask the same are equal, so that the
    rewriters that ask are made once.
    """

    generator: CodeGenerator
    target: Target

    def __call__(self, attention: Call) -> bool:
        return self.generator.fuses_attention(attention, self.target)


def pipeline_for(generator: CodeGenerator | None, target: Target) -> CompilePipeline:
    """Return the default pipeline of a target, which may have a code generator."""
    if generator is None:
        return default_pipeline()
    return default_pipeline(
        generator.composes_attention,
        generator.widened(target),
        FusesAttention(generator, target),
        generator.multiplies_integers(target),
        [bits for bits in STORED_BITS if generator.multiplies_digits(target, bits)],
        generator.channels_last,
        generator.sums_in_16_bits(target),
    )


def choose_pipeline(given: CompilePipeline | Pass | str | None, default: CompilePipeline) -> CompilePipeline:
    """Return what `pipeline=` means: a plain pass, or a pipeline by its name, stands in place of "simplify".

    Raises: PassError for the name of no pipeline, OptionError for another object.
    """
    if given is None:
        return default
    if isinstance(given, CompilePipeline):
        return given
    if isinstance(given, str):
        return default.replace("simplify", get_pipeline(given))
    if isinstance(given, Pass):
        return default.replace("simplify", given)
    raise OptionError(
        "pipeline is no pipeline",
        found=repr(given),
        expected="a name, a Pass, or what get_default_pipeline(target) returns, with changes",
    )
