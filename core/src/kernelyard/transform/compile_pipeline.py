"""CompilePipeline: the stages of a compile, with passes of one's own before, after or in place of any of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kernelyard.errors import PassError, did_you_mean
from kernelyard.ir import Call, IRModule
from kernelyard.ops.quantization import STORED_BITS
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext, Sequential
from kernelyard.transform.pipelines import channels_last as convert_channels_last
from kernelyard.transform.pipelines import fuse_attention, get_pipeline, integer_products, widen_floats

PRECISION, OFFLOAD = "precision", "offload"


class _DriverStage(Pass):
    """A stage that `compile` carries out itself, as its arguments say; as a pass it does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return module


class CompilePipeline(Sequential):
    """The stages of a compile, in order; immutable. `get_default_pipeline` returns that of a target.

    Stages are pipelines by name, and two that `compile` carries out itself: "precision" (what its argument of that name
    stands for) and "offload" (backends take their regions and compile them). A point is a stage, "simplify", or a pass
    of one, "simplify.fold_batch_norm"; where that occurs several times, `before` is before the first and `after` after
    the last, and each is replaced. Called as a pass, it does all that needs no backend.

    changes: what distinguishes it from the default, for people; the report shows them.

    Example:
        >>> pipeline = default_pipeline().without("legalize.fuse_siblings").after("simplify", get_pipeline("clean"))
        >>> [stage.name for stage in pipeline.passes]
        ['import', 'simplify', 'clean', 'precision', 'quantized', 'offload', 'legalize']
        >>> pipeline.changes
        ('without legalize.fuse_siblings', 'clean after simplify')
    """

    def __init__(self, stages: Sequence[Pass], changes: Sequence[str] = ()) -> None:
        super().__init__(stages, "compile")
        self.changes = tuple(changes)

    @property
    def points(self) -> tuple[str, ...]:
        """The points, in order, each once."""
        return tuple(dict.fromkeys(point for stage in self.passes for point in _points_of(stage)))

    def before(self, point: str, *passes: Pass) -> CompilePipeline:
        """Return a pipeline with passes before a point. Raises: PassError with the points that there are."""
        return self._edit(
            point,
            lambda found, name: _insert(found, _indices_of(found, name)[0], passes),
            f"{_join_names(passes)} before",
        )

    def after(self, point: str, *passes: Pass) -> CompilePipeline:
        """Return a pipeline with passes after a point. Raises: PassError with the points that there are."""
        return self._edit(
            point,
            lambda found, name: _insert(found, _indices_of(found, name)[-1] + 1, passes),
            f"{_join_names(passes)} after",
        )

    def replace(self, point: str, *passes: Pass) -> CompilePipeline:
        """Return a pipeline with passes in place of a point; a stage keeps its name.

        Raises: PassError with the points that there are, and for the two stages that `compile` carries out.
        """
        return self._replace_point(point, passes, f"{_join_names(passes)} in place of")

    def without(self, point: str) -> CompilePipeline:
        """Return a pipeline without a pass, or with an empty stage. Raises: PassError as `replace`."""
        return self._replace_point(point, (), "without")

    def between(self, after: str | None, before: str | None) -> tuple[Pass, ...]:
        """Return the stages after one and before another; None stands for the beginning, and for the end."""
        start = _indices_of(self.passes, after)[-1] + 1 if after is not None else 0
        return self.passes[start : _indices_of(self.passes, before)[0] if before is not None else None]

    def _replace_point(self, point: str, passes: Sequence[Pass], change: str) -> CompilePipeline:
        if point in (PRECISION, OFFLOAD):
            raise PassError(
                f"compile carries out the stage {point!r} as its arguments say, so that it cannot be replaced",
                expected="passes before or after it",
                hint="precision, backends and exclude_patterns are arguments of compile",
            )
        new = [Sequential(passes, point)] if "." not in point else passes

        def replace_passes(found: Sequence[Pass], name: str) -> list[Pass]:
            return [part for each in found for part in (new if each.name == name else [each])]

        return self._edit(point, replace_passes, change)

    def _edit(self, point: str, edit: Callable[[Sequence[Pass], str], Sequence[Pass]], change: str) -> CompilePipeline:
        if point not in self.points:
            raise _unknown(point, self.points)
        changes = (*self.changes, f"{change} {point}")
        stage, _, inner = point.partition(".")
        if not inner:
            return CompilePipeline(edit(self.passes, stage), changes)
        stages = [
            type(each)(edit(each.passes, inner), each.name)
            if isinstance(each, Sequential) and each.name == stage
            else each
            for each in self.passes
        ]
        return CompilePipeline(stages, changes)


def default_pipeline(
    composes_attention: bool = False,
    widened: Sequence[str] = (),
    fuses_attention: Callable[[Call], bool] | None = None,
    multiplies_integers: bool = False,
    multiplies_digits: Collection[int] = STORED_BITS,
    channels_last: Sequence[str] = (),
    sums_in_16_bits: bool = False,
) -> CompilePipeline:
    """Return the stages of a compile. The parameters are what a `CodeGenerator` answers of these names;
    multiplies_digits: the bits of weights for which it says yes."""
    attention = [get_pipeline("compose_attention")] if composes_attention else []
    widening = [widen_floats(widened)] if widened else []
    first = [get_pipeline("import"), get_pipeline("simplify"), *widening, _DriverStage(PRECISION), *attention]
    fusing = [fuse_attention(fuses_attention)] if fuses_attention and not composes_attention else []
    products = [integer_products(multiplies_digits, sums_in_16_bits)] if multiplies_integers else []
    converting = [convert_channels_last(channels_last)] if channels_last else []
    last = [get_pipeline("quantized"), _DriverStage(OFFLOAD), *fusing, *products, *converting]
    return CompilePipeline([*first, *last, get_pipeline("legalize")])


def _points_of(stage: Pass) -> list[str]:
    inner = stage.passes if isinstance(stage, Sequential) else ()
    return [stage.name, *(f"{stage.name}.{each.name}" for each in inner)]


def _indices_of(passes: Sequence[Pass], name: str) -> list[int]:
    return [place for place, each in enumerate(passes) if each.name == name]


def _insert(passes: Sequence[Pass], place: int, new: Sequence[Pass]) -> list[Pass]:
    return [*passes[:place], *new, *passes[place:]]


def _join_names(passes: Sequence[object]) -> str:
    """Return the passes' names, for people. Raises: PassError where one is no pass, or there are none."""
    for each in passes:
        if not isinstance(each, Pass):
            hint = "create it" if isinstance(each, type) and issubclass(each, Pass) else "module_pass makes one"
            raise PassError("this is no pass", found=repr(each), expected="an instance of Pass", hint=hint)
    if not passes:
        raise PassError("no pass is given", expected="one or more", hint="without(point) removes passes")
    return ", ".join(each.name for each in passes if isinstance(each, Pass))


def _unknown(point: str, points: Sequence[str]) -> PassError:
    return PassError(
        f"the pipeline has no point {point!r}",
        expected=", ".join(points),
        hint=did_you_mean(point, points),
    )
