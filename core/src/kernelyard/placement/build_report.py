"""Builds the Report of a partitioned module: walks it once and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.ir import Call, Function, GlobalVar, IRModule, Op, TensorType, Var
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL, op_names
from kernelyard.placement.recorder import Recorder, node_label
from kernelyard.runtime.report import SYMBOL_SIZE, VIEW, Kernel, Placed, PlacedRegion, Report


def build_report(
    module: IRModule,
    recorder: Recorder,
    target: str = "cpu",
    rest: str | Callable[[Call], str] = "native-cpu",
    kernels: Sequence[Kernel] = (),
) -> Report:
    """The report of a module after partitioning, before `RunCodegen`.

    rest: the name of what runs the ops that no backend took, or a function from a call to that name (`VIEW` for calls
    that nothing has to run). Regions whose codegen failed (recorded violations) count among the rest.
    """
    failed = {symbol for violation in recorder.violations for symbol in violation.functions}
    count = _Count(module, failed, rest if callable(rest) else lambda _: rest)
    for function in module.entry_functions().values():
        count.entry(function)
    return Report(
        target,
        placed=tuple(count.rows()),
        regions=tuple(count.regions),
        declined=recorder.declined_matches(),
        kernels=tuple(kernels),
        violations=tuple(recorder.violations),
    )


class _Count:
    def __init__(self, module: IRModule, failed: set[str], rest: Callable[[Call], str]) -> None:
        self.module = module
        self.failed = failed
        self.rest = rest
        self.regions: list[PlacedRegion] = []
        self._offloaded: dict[tuple[str, str], list[int]] = {}
        self._others: dict[tuple[str, str], list[int]] = {}

    def rows(self) -> Iterator[Placed]:
        """Work by backend and op: backends of regions in order of appearance, then the rest, then views."""
        for table in (self._offloaded, self._others):
            backends = dict.fromkeys(backend for backend, _ in table)
            for backend in sorted(backends, key=lambda name: name == VIEW):
                for (owner, op), (calls, flops, nbytes) in table.items():
                    if owner == backend:
                        yield Placed(owner, op, calls, flops, nbytes)

    def entry(self, function: Function) -> None:
        for binding in function.bindings:
            if not isinstance(binding.value, Call):
                continue
            region = self._callee(binding.value)
            if region is None:
                self._op(binding.value, None)
            elif CODEGEN in region.attrs:
                self._region(region, region.attrs.get(GLOBAL_SYMBOL, binding.value.op_name), binding.var)

    def _region(self, region: Function, symbol: str, caller: Var) -> None:
        owner = None if symbol in self.failed else region.attrs[CODEGEN]
        for binding in region.bindings:
            composite = self._callee(binding.value) if isinstance(binding.value, Call) else None
            if composite is None:
                continue
            for inner in composite.bindings:
                if isinstance(inner.value, Call):
                    self._op(inner.value, owner)
            if owner is not None:
                node = next((v for v in (binding.var, caller) if v.origin), composite.bindings[-1].var)
                pattern, ops = composite.attrs[COMPOSITE], op_names(composite)
                self.regions.append(PlacedRegion(owner, pattern, ops, symbol, node_label(node)))

    def _callee(self, call: Call) -> Function | None:
        function = self.module[call.op.name] if isinstance(call.op, GlobalVar) else None
        return function if isinstance(function, Function) else None

    def _op(self, call: Call, owner: str | None) -> None:
        table = self._others if owner is None else self._offloaded
        owner = owner or self.rest(call)
        row = table.setdefault((owner, call.op_name), [0, 0, 0])
        row[0] += 1
        if owner != VIEW:
            row[1] += flops_of(call)
            row[2] += bytes_of(call)


def flops_of(call: Call) -> int:
    """The estimated floating-point operations of an op call, each symbolic dim taken as 64."""
    types = [arg.type for arg in call.args if isinstance(arg.type, TensorType)]
    if isinstance(call.op, Op) and call.op.flops is not None:
        return _estimate(lambda: call.op.flops(types, call.type, call.attrs))  # pyright: ignore[reportAttributeAccessIssue, reportOptionalCall]
    return sum(_estimate(lambda tensor=tensor: tensor.numel) for tensor in tensors_of(call.type))


def bytes_of(call: Call) -> int:
    """The estimated bytes that an op call reads and writes, each symbolic dim taken as 64."""
    types = [tensor for arg in call.args for tensor in tensors_of(arg.type)] + list(tensors_of(call.type))
    return sum(_estimate(lambda tensor=tensor: tensor.nbytes) for tensor in types)


def _estimate(work: Callable[[], Dim]) -> int:
    amount = work()
    try:
        return max(0, dims.evaluate(amount, dict.fromkeys(dims.symbols_of(amount), SYMBOL_SIZE)))
    except ShapeError:  # 64 is no possible size for every symbol of this call; it stays uncounted
        return 0
