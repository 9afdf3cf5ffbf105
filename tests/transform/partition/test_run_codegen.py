"""RunCodegen: regions become external calls; broken promises become plain ops again, and are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, InterpretedModule, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.errors import PluginContractError, UnknownBackendError
from kernelyard.ir import Function, FunctionBuilder, IRModule, Var
from kernelyard.ir.verify import verify
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.interprocedural.inline_functions import inline_functions
from kernelyard.transform.partition.region import Region
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES, RunCodegen

X = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)


def network(shape: Sequence[dims.Dim] = X.shape) -> IRModule:
    """relu -> sin -> tanh -> split -> add, with a second result."""
    b = FunctionBuilder()
    r = b.op("nn.relu", b.input("x", shape))
    t = b.op("tanh", b.op("sin", r))
    parts = b.op("split", t, axis=1, sections=(2, 2))
    return verify(IRModule({"main": b.function(b.op("add", b.get(parts, 0), b.get(parts, 1)), r)}))


def backend(**options: Any) -> InterpretedBackend:
    return InterpretedBackend("acme", ["nn.relu", "tanh", "split", "add"], **options)


def attached(module: IRModule) -> tuple[RuntimeModule, ...]:
    return module.attrs[EXTERNAL_MODULES]


@pytest.mark.parametrize("merge", [True, False])
def test_regions_become_external_calls(merge: bool) -> None:
    module = network()
    acme = backend(merge_composites=merge)
    compiled = RunCodegen({"acme": acme.codegen}, {"acme": {"threads": 2}})(partition(module, [acme]))
    verify(compiled)
    assert_same_meaning(module, compiled, [X])
    assert list(compiled.functions) == ["main"]
    externals = [name for name in called(compiled) if name.startswith("extern")]
    assert externals == [f"extern acme_{i}" for i in range(2 if merge else 4)]
    (runtime_module,) = attached(compiled)
    assert runtime_module.symbols() == tuple(name.removeprefix("extern ") for name in externals)
    assert acme.options == [{"threads": 2}]


def test_symbolic_shapes() -> None:
    module = network((dims.symbol("n"), 4))
    acme = backend()
    compiled = RunCodegen({"acme": acme.codegen})(partition(module, [acme]))
    verify(compiled)
    assert_same_meaning(module, compiled, [X])


def test_one_external_function_for_equal_regions_of_all_entries() -> None:
    def entry() -> Function:
        b = FunctionBuilder()
        y = b.input("x", (2,))
        for _ in range(2):
            y = b.op("sin", b.op("nn.relu", y))
        return b.function(y)

    acme = backend()
    compiled = RunCodegen({"acme": acme.codegen})(partition(IRModule({"one": entry(), "two": entry()}), [acme]))
    verify(compiled)
    assert called(compiled, "one") == called(compiled, "two") == ["extern acme_0", "sin", "extern acme_0", "sin"]
    assert attached(compiled)[0].symbols() == ("acme_0",)


def test_backends_are_attached_in_order_of_appearance_and_kept_by_a_second_run() -> None:
    module = network()
    one, two = InterpretedBackend("zeta", ["nn.relu"]), InterpretedBackend("beta", ["tanh"])
    both = {"beta": two.codegen, "zeta": one.codegen}
    compiled = RunCodegen(both)(partition(module, [two, one]))
    assert [m.symbols() for m in attached(compiled)] == [("zeta_0",), ("beta_0",)]
    three = InterpretedBackend("sines", ["sin"])
    again = RunCodegen({"sines": three.codegen})(partition(compiled, [three]))
    verify(again)
    assert [m.symbols() for m in attached(again)] == [("zeta_0",), ("beta_0",), ("sines_0",)]
    assert_same_meaning(module, again, [X])


def test_nothing_to_do_is_no_change() -> None:
    module = network()
    assert RunCodegen({})(module) is module


def test_only_chosen_entry_functions() -> None:
    module = network()
    module = module.with_functions({"other": network()["main"]})
    acme = backend()
    compiled = RunCodegen({"acme": acme.codegen}, entry_functions=["main"])(partition(module, [acme]))
    verify(compiled)
    assert called(compiled, "other")[0] == "@acme_0"
    assert called(compiled)[0] == "extern acme_0"


def test_a_backend_without_codegen_is_named_with_the_way_out() -> None:
    with pytest.raises(UnknownBackendError) as error:
        RunCodegen({"other": backend().codegen})(partition(network(), [backend()]))
    assert "acme" in str(error.value)
    assert "install the package that brings it" in str(error.value)
    assert "kernelyard-acme" not in str(error.value)  # whoever published that name would be installed


def test_codegens_of_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by nobody: each backend's own is found."""
    one, two = InterpretedBackend("one", ["sin"]), InterpretedBackend("two", ["tanh"])
    found = {backend.name: backend for backend in (one, two)}
    manager = SimpleNamespace(get=lambda name, part: found[name] if part == "backend" else None)
    monkeypatch.setattr("kernelyard.plugins.discovery.manager.get_manager", lambda: manager)
    module = network()
    compiled = verify(RunCodegen()(partition(module, [one, two])))
    assert [name for name in called(compiled) if name.startswith("extern")] == ["extern one_0", "extern two_0"]
    assert_same_meaning(module, compiled, [X])


def test_a_backend_that_is_not_installed_is_named_with_the_way_out() -> None:
    with pytest.raises(UnknownBackendError, match="install the package that brings it"):
        RunCodegen()(partition(network(), [backend()]))


def returns(result: object) -> Any:
    return lambda regions, options: result


@pytest.mark.parametrize(
    ("codegen", "message"),
    [
        (backend(fails=["nn.relu", "tanh", "split", "add"]).codegen, "cannot generate"),
        (returns(None), "no RuntimeModule"),
        (returns(InterpretedModule([])), "lacks functions: "),
        (lambda regions, options: 1 / 0, "division by zero"),
    ],
)
def test_a_codegen_that_fails_is_recorded_and_its_ops_run_elsewhere(codegen: Any, message: str) -> None:
    module = network()
    recorder = Recorder()
    placed = partition(module, [backend()], PlacementSettings(recorder=recorder))
    compiled = RunCodegen({"acme": codegen}, recorder=recorder)(placed)
    verify(compiled)
    assert called(compiled) == called(module)
    assert list(compiled.functions) == ["main"]
    assert attached(compiled) == ()
    assert_same_meaning(module, compiled, [X])
    assert recorder.violations
    assert {symbol for v in recorder.violations for symbol in v.functions} == {"acme_0", "acme_1"}
    assert all(message in violation.message for violation in recorder.violations)
    with pytest.raises(PluginContractError, match=message):
        RunCodegen({"acme": codegen}, strict=True)(placed)


def test_only_the_region_that_fails_goes_back() -> None:
    module = network()
    recorder = Recorder()
    acme = backend(fails=["split"])
    compiled = RunCodegen({"acme": acme.codegen}, recorder=recorder)(partition(module, [acme]))
    verify(compiled)
    assert called(compiled) == ["extern acme_0", "sin", "tanh", "split", "add"]
    assert_same_meaning(module, compiled, [X])
    assert [violation.functions for violation in recorder.violations] == [("acme_1",)]


def test_a_codegen_that_fails_only_on_all_regions_together() -> None:
    def moody(regions: list[Region], options: Mapping[str, Any]) -> RuntimeModule:
        if len(regions) > 1:
            raise RuntimeError("one at a time")
        return InterpretedModule(regions)

    recorder = Recorder()
    module = network()
    compiled = RunCodegen({"acme": moody}, recorder=recorder)(partition(module, [backend()]))
    assert called(compiled) == called(module)
    assert [violation.functions for violation in recorder.violations] == [("acme_0", "acme_1")]


def test_regions_tell_what_is_in_them() -> None:
    seen: list[Region] = []

    def codegen(regions: list[Region], options: Mapping[str, Any]) -> RuntimeModule:
        seen.extend(regions)
        return InterpretedModule(regions)

    RunCodegen({"acme": codegen})(partition(network(), [backend()]))
    assert [region.symbol for region in seen] == ["acme_0", "acme_1"]
    assert [region.ops for region in seen] == [("nn.relu",), ("tanh", "split", "add")]
    assert seen[1].composites()[0][1].attrs["Composite"] == "acme.tanh"
    assert [type(value) for value in seen[0].inputs] == [Var]


def test_inlining_gives_the_ops_back() -> None:
    module = network()
    for merge in (True, False):
        placed = partition(module, [backend(merge_composites=merge)])
        inlined = inline_functions(placed, set(placed.functions) - {"main"})
        verify(inlined)
        assert called(inlined) == called(module)
        assert_same_meaning(module, inlined, [X])
    assert inline_functions(module, ()) is module
