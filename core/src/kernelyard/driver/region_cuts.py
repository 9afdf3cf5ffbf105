"""Find the operators that cut a backend's regions: no pattern of it names them, and it would have larger regions with
them. Each is tried: the model is placed once more with a pattern for it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelyard.dims import Bounds
from kernelyard.driver.compile import simplify
from kernelyard.driver.session.precision import DEFAULT
from kernelyard.driver.session.session import CompileSession, Options, open_session
from kernelyard.errors import OptionError
from kernelyard.ir import Call, Constant, Function, GlobalVar, IRModule, Op
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.composite import CODEGEN
from kernelyard.patterns.language.constructors import is_op
from kernelyard.patterns.registry import FusionPattern
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.support.roofline import nbytes_of
from kernelyard.runtime.text_table import align_rows, amount
from kernelyard.target import Target

MAX_TRIED = 40  # operators, the most frequent ones: each takes as long as a placement


@dataclass(frozen=True)
class RegionSizes:
    """Count what a backend takes of a model: ops, their regions, and the bytes that these are handed and hand over."""

    ops: int
    regions: int
    handover_bytes: int


@dataclass(frozen=True)
class RegionCut:
    """An operator that a backend has no pattern for, `count` times in the model; sizes: the regions with it."""

    op: str
    count: int
    sizes: RegionSizes


@dataclass(frozen=True)
class RegionCuts:
    """Say what cuts a backend's regions: `sizes` as they are; each operator by itself, the best first; all at once.

    untried: operators that are too rare to have been tried.
    """

    backend: str
    sizes: RegionSizes
    cuts: tuple[RegionCut, ...]
    together: RegionSizes
    untried: tuple[str, ...] = ()

    def lines(self, width: int | None = None) -> list[str]:
        """Return a table for people."""
        now = self.sizes
        head = f"{self.backend} takes {now.ops} ops in {now.regions} regions, {amount(now.handover_bytes)}B handed over"
        if not self.cuts:
            return [f"{head}; no operator without a pattern cuts them"]
        rows = [("with a pattern for", "times", "regions", "fewer", "bytes saved", "ops more")]
        rows += [(cut.op, str(cut.count), *self._gain(cut.sizes)) for cut in self.cuts]
        rows += [("all of these", "", *self._gain(self.together))] if len(self.cuts) > 1 else []
        more = [f"not tried: {', '.join(self.untried)}"] if self.untried else []
        return [head, *align_rows(rows, width), *more]

    def _gain(self, sizes: RegionSizes) -> tuple[str, str, str, str]:
        saved = self.sizes.handover_bytes - sizes.handover_bytes
        fewer, more = self.sizes.regions - sizes.regions, sizes.ops - self.sizes.ops
        return str(sizes.regions), str(fewer), f"-{amount(-saved)}" if saved < 0 else amount(saved), str(more)

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON data."""
        return asdict(self)


def region_cuts(
    model: object,
    backend: str,
    target: Target | str = "cpu",
    backends: Sequence[str] | str | None = None,
    options: Options | None = None,
    *,
    require: Mapping[str, float] | None = None,
    strict: bool = False,
    exclude_patterns: Sequence[str] = (),
    precision: str = DEFAULT,
    bounds: Mapping[str, Bounds] | None = None,
) -> RegionCuts:
    """Return what cuts the regions of a backend in a model; the other arguments are those of `compile`.

    backends: None for this one alone. An operator that a pattern names is declined for a reason, which the report has.
    Raises: as `compile`; OptionError for a backend that is not asked.
    """
    asked = [backend] if backends is None else backends
    chosen: dict[str, Any] = {"exclude_patterns": exclude_patterns, "precision": precision, "bounds": bounds}
    session = open_session(target, asked, options, require=require, strict=strict, **chosen)
    names = [each.name for each in session.backends]
    if backend not in names:
        raise OptionError(f"the backend {backend} is not asked for this model", expected=", ".join(names) or None)
    module = simplify(session, session.import_model(model))
    sizes, unnamed = _place_wider(session, module, backend, ())
    tried = [op for op, _ in unnamed.most_common(MAX_TRIED)]
    cuts = [RegionCut(op, unnamed[op], _place_wider(session, module, backend, (op,))[0]) for op in tried]
    cuts = [cut for cut in cuts if cut.sizes != sizes and _is_larger(cut.sizes, sizes)]
    cuts.sort(key=lambda cut: (cut.sizes.regions, cut.sizes.handover_bytes, cut.op))
    together = _place_wider(session, module, backend, [cut.op for cut in cuts])[0] if cuts else sizes
    return RegionCuts(backend, sizes, tuple(cuts), together, tuple(sorted(set(unnamed) - set(tried))))


def _is_larger(sizes: RegionSizes, before: RegionSizes) -> bool:
    return sizes.regions < before.regions or sizes.handover_bytes < before.handover_bytes


def _place_wider(
    session: CompileSession, module: IRModule, backend: str, more: Sequence[str]
) -> tuple[RegionSizes, Counter[str]]:
    """Place a module with patterns for more operators of a backend; return its regions, and the operators left that no
    pattern of it ends in."""
    recorder = Recorder(session.manager.label_of)
    backends = [_extend_backend(each, more) if each.name == backend else each for each in session.backends]
    placed = partition(module, backends, replace(session.placement, recorder=recorder))
    known = recorder.offers.get(backend, frozenset())
    calls = (call for function in placed.entry_functions().values() for call in _calls(function))
    return _sizes(placed, backend), Counter(c.op_name for c in calls if isinstance(c.op, Op) and c.op_name not in known)


def _extend_backend(backend: Backend, more: Sequence[str]) -> Backend:
    """Return a copy of a backend that takes more operators, of any kind."""
    if not more:
        return backend
    extra = [FusionPattern(f"{backend.name}.{op}", is_op(op)(varargs=True)) for op in more]

    extended = copy.copy(backend)
    vars(extended)["patterns"] = lambda target: [*backend.patterns(target), *extra]  # whatever its class allows
    return extended


def _sizes(placed: IRModule, backend: str) -> RegionSizes:
    ops = regions = handover = 0
    for function in placed.entry_functions().values():
        for call in _calls(function):
            region = placed[call.op_name] if isinstance(call.op, GlobalVar) else None
            if isinstance(region, Function) and region.attrs.get(CODEGEN) == backend:
                inner = [_callee(placed, each) for each in _calls(region)]
                ops += sum(1 if f is None else len(list(_calls(f))) for f in inner)
                regions += 1
                given = [arg for arg in call.args if not isinstance(arg, Constant)]
                types = [*(each for arg in given for each in tensors_of(arg.type)), *tensors_of(call.type)]
                handover += sum(map(nbytes_of, types))
    return RegionSizes(ops, regions, handover)


def _calls(function: Function) -> Iterator[Call]:
    return (binding.value for binding in function.bindings if isinstance(binding.value, Call))


def _callee(module: IRModule, call: Call) -> Function | None:
    found = module[call.op_name] if isinstance(call.op, GlobalVar) else None
    return found if isinstance(found, Function) else None
