"""Cases: what follows from a backend's claims, by level. Making them runs nothing of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import DTYPES
from kernelyard.errors import KernelyardError
from kernelyard.ir import IRModule
from kernelyard.ir.types import TensorType
from kernelyard.testing.conformance import loading
from kernelyard.testing.conformance.bench import DENSE, Bench
from kernelyard.testing.conformance.chains import (
    RECAST_FROM,
    Chain,
    ChainBuilder,
    Claimed,
    QuantizedChainBuilder,
    find_claimed_samples,
    power_of_two,
)
from kernelyard.testing.conformance.claims import Claims
from kernelyard.testing.conformance.layouts import IN_GRAPH, IN_MEMORY, LaidOut, changes, insert_into_graph
from kernelyard.testing.conformance.random_graphs import random_cases
from kernelyard.testing.op_cases import one_symbol_per_size
from kernelyard.testing.reference import evaluate

LEVELS = {
    "L0": "loads and negotiates",
    "L1": "every claimed operator, dtype and layout",
    "L2": "fused patterns and regions",
    "L3": "unknown sizes, threads",
    "L4": "saved, and run in a fresh process",
    "L5": "random graphs",
}
Run = Callable[[Bench], None]


@dataclass(frozen=True)
class Case:
    """One thing to try; `name` starts with the level. `run` returns when it holds and raises when it does not."""

    name: str
    run: Run
    op: str = ""
    dtype: str = ""

    @property
    def level(self) -> str:
        """L0 to L5."""
        return self.name.split(" ", 1)[0]


def all_cases(backend: str, claims: Claims) -> dict[str, Case]:
    """Return the cases of a backend by name, lowest level first."""
    cases: dict[str, Case] = {}
    for case in _cases(claims):
        if case.name in cases:
            raise AssertionError(f"two cases are called {case.name!r}")
        cases[case.name] = case
    unmatched = [gap.cases for gap in claims.gaps if not any(claims.gap_of(name) is gap for name in cases)]
    name = "L0 every gap is about a case"
    return {name: Case(name, partial(_check_idle_gaps, unmatched)), **cases}


def _cases(claims: Claims) -> Iterator[Case]:
    for name, check in loading.CHECKS.items():
        yield Case(f"L0 {name}", partial(check, claims=claims))
    by_op = [list(find_claimed_samples(op, claimed)) for op, claimed in claims.ops.items()]
    samples = [sample for of_op in by_op for sample in of_op]
    yield Case("L0 every claim is about a sample", partial(_check_idle_claims, samples, claims))
    for sample in samples:
        yield from _single_cases(sample, claims.layouts)
    yield from _unclaimed_cases(claims)
    for make, chains in ((_fused_cases, claims.fused), (_quantized_cases, claims.quantized)):
        yield from (case for chain in chains for case in make(chain, claims))
    for sample in samples:
        yield from _symbolic_cases(sample, claims)
    firsts = [sample for of_op in by_op for sample in _drop_gaps(of_op, claims)[:1]]
    for sample in firsts:
        yield _case_of(sample, f"L3 {sample.name('threads')}", partial(_check_threads, sample))
    for sample in firsts:
        yield _case_of(sample, f"L4 {sample.name('saved')}", partial(_check_saved, sample))
    for name, run in random_cases(claims):
        yield Case(name, run)


def _check_idle_gaps(unmatched: Sequence[str], bench: Bench) -> None:
    assert not unmatched, f"no case matches {unmatched[0]!r}"


def _check_idle_claims(samples: Sequence[Claimed], claims: Claims, bench: Bench) -> None:
    tried = {(sample.case.op.name, sample.dtype) for sample in samples}
    idle = [f"{op} in {dtype}" for op, claimed in claims.ops.items() for dtype in claimed if (op, dtype) not in tried]
    assert not idle, f"there is no sample of {', '.join(idle)}: leave it out, as nothing would test it"


def _case_of(sample: Claimed, name: str, run: Run) -> Case:
    return Case(name, run, sample.case.op.name, sample.dtype)


def _drop_gaps(samples: Sequence[Claimed], claims: Claims) -> list[Claimed]:
    """Return the samples that the backend takes with parameters and with constant operands."""
    forms = ("parameters", "constants")
    return [s for s in samples if not any(claims.gap_of(f"L1 {s.name(form)}") for form in forms)]


def _other_operands(sample: Claimed) -> range:
    """Return all operands but the first."""
    return range(1, len(sample.case.sample.inputs))


# --- L1 ---------------------------------------------------------------------------------------------------------------
def _single_cases(sample: Claimed, layouts: Sequence[str]) -> Iterator[Case]:
    """Yield cases with operands as parameters, in each memory layout, and as constants."""

    def case(form: str, run: Run) -> Case:
        return _case_of(sample, f"L1 {sample.name(form)}", run)

    yield case("parameters", partial(_check_fed, sample, DENSE))
    for form in IN_MEMORY:
        if form in layouts and changes(form, sample.case.inputs()):
            yield case(form, partial(_check_fed, sample, form))
    for form in IN_GRAPH:
        laid_out = insert_into_graph(form, sample.case) if form in layouts else None
        if laid_out is not None:
            yield case(form, partial(_check_laid_out, laid_out))
    if _other_operands(sample):
        yield case("constants", partial(_check_with_constants, sample))


def _check_fed(sample: Claimed, layout: str, bench: Bench) -> None:
    exe, module = bench.compile_offloaded_once(sample.name("parameters"), sample.case.module)
    bench.right(exe, module, sample.case.inputs(), layout)


def _check_laid_out(given: LaidOut, bench: Bench) -> None:
    bench.right(bench.compile_offloaded(given.module, given.added), given.module, given.feeds)


def _check_with_constants(sample: Claimed, bench: Bench) -> None:
    constants = tuple(_other_operands(sample))
    module = sample.case.module(constants)
    bench.right(bench.compile_offloaded(module), module, sample.case.inputs(constants))


def _unclaimed_cases(claims: Claims) -> Iterator[Case]:
    for op, claimed in claims.ops.items():
        yield Case(f"L1 unclaimed dtypes of {op}", partial(_check_unclaimed, op, claimed), op)


def _check_unclaimed(op: str, claimed: Sequence[str], bench: Bench) -> None:
    """Check that what the backend takes beyond its claims is right, too: kernels read the bytes of any dtype."""
    tried: set[str] = set()
    for sample in find_claimed_samples(op, [dtype for dtype in DTYPES if dtype not in claimed]):
        if sample.dtype in tried:
            continue
        tried.add(sample.dtype)
        module = sample.case.module()
        exe = bench.compile(module)
        if bench.has_taken(exe):
            with bench.naming(
                f"it takes {sample.dtype}, which it does not claim: decline it in the check, or claim it"
            ):
                bench.right(exe, module, sample.case.inputs())


# --- L2 ---------------------------------------------------------------------------------------------------------------
def _fused_cases(chain: Chain, claims: Claims) -> Iterator[Case]:
    """Yield a chain as one composite; then its forms in a larger graph, for the first sample."""
    samples = list(find_claimed_samples(chain[0], claims.ops.get(chain[0], (RECAST_FROM,))))
    usable = [s for s in _drop_gaps(samples, claims) if isinstance(_result_type(s), TensorType)]
    for sample in usable:
        yield _case_of(sample, f"L2 {sample.name('fused', chain)}", partial(_check_as_one, sample, chain))
    for sample in usable[:1]:
        yield _case_of(sample, f"L2 {sample.name('read by others', chain)}", partial(_check_observed, sample, chain))
        yield _case_of(sample, f"L2 {sample.name('twins', chain)}", partial(_check_twins, sample, chain))
        yield _case_of(sample, f"L4 {sample.name('saved', chain)}", partial(_check_saved_chain, sample, chain))


def _result_type(sample: Claimed) -> object:
    return sample.case.op.infer_type(sample.case.types, sample.case.op.check_attributes(sample.case.sample.attributes))


def _chain_module(sample: Claimed, chain: Chain) -> tuple[IRModule, list[np.ndarray]]:
    made = ChainBuilder(sample)
    result = made.extend(made.anchor(), chain[1:])
    return made.module(result), made.feeds


def _check_as_one(sample: Claimed, chain: Chain, bench: Bench) -> None:
    module, feeds = _chain_module(sample, chain)
    bench.right(bench.compile_as_one(module), module, feeds)


def _check_observed(sample: Claimed, chain: Chain, bench: Bench) -> None:
    """Check a chain whose anchor is an output too, so that it must not vanish in a composite."""
    made = ChainBuilder(sample)
    anchor = made.anchor()
    module = made.module(made.extend(anchor, chain[1:]), anchor)
    bench.right(bench.compile_among_others(module, [sample.case.op.name]), module, made.feeds)


def _check_twins(sample: Claimed, chain: Chain, bench: Bench) -> None:
    """Check that two chains of one input that differ in their constants alone stay two."""
    made = ChainBuilder(sample)
    results = [made.extend(made.anchor(factor), chain[1:]) for factor in ((1, 2) if _other_operands(sample) else (1,))]
    module = made.module(*results)
    bench.right(bench.compile_offloaded(module), module, made.feeds)


def _check_saved_chain(sample: Claimed, chain: Chain, bench: Bench) -> None:
    module, feeds = _chain_module(sample, chain)
    bench.right_after_saving(bench.compile_as_one(module), module, feeds)


# --- L2, quantized ----------------------------------------------------------------------------------------------------
MOST_OFF = 0.05  # of the integers of a result, as halves may be rounded either way


def _quantized_cases(chain: Chain, claims: Claims) -> Iterator[Case]:
    """Yield a chain of stored integers as one composite, for each dtype that they are stored in."""
    for dtype in claims.stored:
        for sample in (replace(each, dtype=dtype) for each in find_claimed_samples(chain[0], (RECAST_FROM,))):
            alone, name = (f"L2 {sample.name('quantized', part)}" for part in (chain[:1], chain))
            if not isinstance(_result_type(sample), TensorType) or (alone != name and claims.gap_of(alone)):
                continue
            yield _case_of(sample, name, partial(_check_quantized, sample, chain))
            if not claims.gap_of(name):
                yield _case_of(
                    sample, f"L4 {sample.name('quantized', chain)}", partial(_check_saved_quantized, sample, chain)
                )


def _build_quantized_module(sample: Claimed, chain: Chain) -> tuple[IRModule, list[np.ndarray]]:
    floats = QuantizedChainBuilder(sample, sample.dtype)
    module = floats.module(floats.extend(floats.anchor(), chain[1:]))
    scale = power_of_two(evaluate(module, floats.feeds)[0], 100)
    made = QuantizedChainBuilder(sample, sample.dtype)
    return made.module(made.quantize(made.extend(made.anchor(), chain[1:]), scale)), made.feeds


def _check_quantized(sample: Claimed, chain: Chain, bench: Bench) -> None:
    module, feeds = _build_quantized_module(sample, chain)
    bench.right_but_for_halves(bench.compile_as_one(module), module, feeds, MOST_OFF)


def _check_saved_quantized(sample: Claimed, chain: Chain, bench: Bench) -> None:
    module, feeds = _build_quantized_module(sample, chain)
    exe = bench.compile_as_one(module)
    bench.right_after_saving(exe, module, feeds, bench.outputs(exe, feeds))


# --- L3, L4 -----------------------------------------------------------------------------------------------------------
def _leading(operand: int, axis: int, size: int) -> Dim:
    return dims.symbol("n") if (operand, axis) == (0, 0) and size > 1 else size


def _symbolic_cases(sample: Claimed, claims: Claims) -> Iterator[Case]:
    """Yield cases with sizes that are symbolic at compile time, where the operator allows that."""
    forms = {"leading": (_leading, tuple(_other_operands(sample))), "all": (one_symbol_per_size, ())}
    for form in claims.symbolic:
        dim_of, constants = forms[form]
        try:
            module = sample.case.module(constants, dim_of)
        except KernelyardError:
            continue  # the operator must know these sizes
        params = module.graph_functions()["main"].params
        if any(not isinstance(dim, int) for param in params for dim in param.tensor_type.shape):
            run = partial(_check_unknown_sizes, sample, module, constants)
            yield _case_of(sample, f"L3 {sample.name(f'symbolic {form}')}", run)


def _check_unknown_sizes(sample: Claimed, module: IRModule, constants: Sequence[int], bench: Bench) -> None:
    """Check one program for the sample's sizes and, where these go together, for twice as many rows."""
    exe, feeds = bench.compile_offloaded(module), sample.case.inputs(constants)
    bench.right(exe, module, feeds)
    if constants:
        larger = [np.concatenate([feeds[0], feeds[0]]), *feeds[1:]]
        try:
            evaluate(module, larger)
        except (KernelyardError, ValueError):
            return  # the constants fit the sample's size alone
        bench.right(exe, module, larger)
        bench.right(exe, module, feeds)


def _check_threads(sample: Claimed, bench: Bench) -> None:
    module = sample.case.module()
    bench.right_with_threads(bench.compile_offloaded(module), module, sample.case.inputs())


def _check_saved(sample: Claimed, bench: Bench) -> None:
    constants = tuple(_other_operands(sample))
    module = sample.case.module(constants)
    bench.right_after_saving(bench.compile_offloaded(module), module, sample.case.inputs(constants))
