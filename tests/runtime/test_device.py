"""Programs on a device with memory of its own: a driver of numbers that mean nothing to the host."""

from __future__ import annotations

import ctypes
import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest

from kernelyard import dims, errors
from kernelyard.runtime.abi import memory
from kernelyard.runtime.artifact import kyar
from kernelyard.runtime.device.device import Device
from kernelyard.runtime.device.driver import DeviceDriver
from kernelyard.runtime.execute.executable import Executable, Program, Register, Step, TensorSpec
from kernelyard.runtime.execute.virtual_machine import VirtualMachine, VMInstrumentReturnKind
from kernelyard.runtime.program.replace_steps import replace_steps

FAR = 1 << 60  # no address of the host: following one ends the process


class FarDriver(DeviceDriver):
    kind = "far"
    dlpack_type = 12  # kDLExtDev

    def __init__(self) -> None:
        self.held: dict[int, np.ndarray] = {}
        self.uploads = self.downloads = self.waits = 0

    def allocate(self, nbytes: int) -> int:
        array = memory.aligned_bytes(nbytes)
        address = memory.address_of(array) + FAR
        self.held[address] = array
        return address

    def free(self, address: int, is_shared: bool = False) -> None:
        del self.held[address]

    def upload(self, address: int, array: np.ndarray) -> None:
        self.uploads += 1
        ctypes.memmove(address - FAR, memory.address_of(array), array.nbytes)

    def download(self, address: int, array: np.ndarray) -> None:
        self.downloads += 1
        ctypes.memmove(memory.address_of(array), address - FAR, array.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(to - FAR, source - FAR, nbytes)

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def driver(monkeypatch) -> FarDriver:
    driver = FarDriver()
    monkeypatch.setattr(Device, "open", lambda device: driver if device.kind == "far" else None)
    return driver


@pytest.fixture
def machine(driver, executable) -> VirtualMachine:
    executable.target = "far"
    return VirtualMachine(executable, Device("far"))


def expected(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return (x @ weight) * np.float32(2) + np.float32(1)


def test_feeds_go_there_and_results_come_back(machine, weight):
    """The program's modules work on host memory: their arguments are copied around them."""
    for rows in (3, 1, 200):
        x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
        y, z = machine["main"](x)
        np.testing.assert_allclose(y, expected(x, weight), rtol=1e-6)
        np.testing.assert_array_equal(z, y.numpy().reshape(-1))
        again = machine.run("main", {"x": x[:, :].astype(">f4")})
        np.testing.assert_array_equal(again["y"], y)


def test_memory_is_given_back(driver, executable, weight):
    executable.target = "far"
    machine = VirtualMachine(executable)
    machine["main"](np.ones((2, 4), np.float32))
    assert driver.held
    del machine
    gc.collect()
    assert not driver.held


def test_constants_are_copied_once(machine, driver):
    x = np.ones((2, 4), np.float32)
    machine["main"](x)
    before = driver.uploads, driver.downloads
    machine["main"](x)
    assert driver.uploads - before[0] == 3  # the feed, and what each of the two steps gives
    assert driver.downloads - before[1] == 2  # what each step reads; the host has the constants


def test_instruments_see_copies_and_may_skip(machine, weight):
    seen: list[tuple[str, bool, tuple[float, ...]]] = []

    def instrument(step, name, before, ret, *args):
        seen.append((name, before, () if ret is None else tuple(ret[0].numpy().ravel())))
        return VMInstrumentReturnKind.NO_OP

    machine.set_instrument(instrument)
    x = np.ones((1, 4), np.float32)
    y, _ = machine["main"](x)
    np.testing.assert_allclose(y, expected(x, weight), rtol=1e-6)
    assert [name for name, before, _ in seen if before] == ["acme_0", "acme_1"]
    np.testing.assert_array_equal(seen[-1][2], y.numpy().ravel())


def test_modules_of_another_device_are_refused(machine, executable, monkeypatch):
    monkeypatch.setattr(type(executable.modules[0]), "device_kind", "elsewhere")
    with pytest.raises(errors.DeviceError, match="does not run here"):
        machine["main"](np.ones((2, 4), np.float32))


def test_results_stay_there_and_are_fed_again(driver, make_executable):
    weight = np.random.default_rng(0).standard_normal((4, 4), dtype=np.float32)
    executable = make_executable(weight)
    executable.target = "far"
    machine = VirtualMachine(executable)
    x = np.ones((2, 4), np.float32)
    y, _ = machine["main"](x)
    assert y.device == Device("far")
    assert y.__dlpack_device__() == (12, 0)
    assert len(y) == 2
    machine.save_function("main", "again", y)
    before = driver.uploads
    for z, _ in (machine["main"](y), machine["again"](), (machine.run("main", {"x": y})["y"], None)):
        np.testing.assert_allclose(z, expected(expected(x, weight), weight), rtol=1e-5)
    assert driver.uploads - before == 3 * 2  # of what the two steps give, as they run on the host; not of y
    with pytest.raises(errors.InputTypeError, match="dtype"):
        machine["main"](machine["main"](y)[1].numpy().astype(np.int32).reshape(2, 4))


def test_numpy_gets_a_copy(machine):
    y, _ = machine["main"](np.ones((2, 4), np.float32))
    first = y.numpy()
    first[...] = 0
    assert y.numpy().any()
    np.testing.assert_array_equal(np.asarray(y), y.numpy())


def test_measuring_waits_for_the_device(driver, machine):
    before = driver.waits
    machine.time_evaluator("main", number=3, repeat=2)(np.ones((2, 4), np.float32))
    assert driver.waits == before + 3  # once before, and once after each repetition


# --- fallbacks --------------------------------------------------------------------------------------------------------
N = dims.symbol("n")


def fallback_of(executable: Executable, *, flat: bool = False) -> Program:
    """A fallback for acme_0: acme_1 twice, with a bias of ones. flat: what they write has one axis, and the result is a view of it."""
    bias = executable.main.registers[1]
    registers = [
        Register((N, 3), "float32", "input", index=0),
        bias,
        Register((N, 3), "float32", "buffer"),
        Register((N * 3,) if flat else (N, 3), "float32", "buffer"),
        Register((N, 3), "float32", "alias", source=3),
    ]
    steps = (Step(0, "acme_1", (0, 1), (2,), "one"), Step(0, "acme_1", (2, 1), (3,), "two"))
    inputs, outputs = (TensorSpec((N, 3), "float32", "x"),), (TensorSpec((N, 3), "float32", "y"),)
    return Program("acme_0", ("n",), inputs, outputs, tuple(registers), steps, (4,))


@pytest.fixture
def refusing(driver, make_executable, acme, monkeypatch) -> Executable:
    """`y = x @ eye * 2 + 1`, whose product the library has for two rows alone; instead of it 2 is added."""
    executable = make_executable(np.eye(3, dtype=np.float32))
    build = acme.AcmeRuntime.build

    def refuse(module, graph, args, values, context):
        if graph.symbol == "acme_0" and values["n"] != 2:
            raise errors.NoImplementationError("acme multiplies two rows")
        return build(module, graph, args, values, context)

    monkeypatch.setattr(acme.AcmeRuntime, "build", refuse)
    fallbacks = {"acme_0": fallback_of(executable)}
    constants, report = executable.constants, executable.report_json
    return Executable(executable.programs, executable.modules, constants, None, report, "far", fallbacks=fallbacks)


def test_a_fallback_runs_where_the_library_refuses(refusing):
    machine = VirtualMachine(refusing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows, wanted in ((2, 2 * 5 + 1), (3, 5 + 2 + 1), (200, 5 + 2 + 1), (2, 2 * 5 + 1)):
            y, z = machine["main"](np.full((rows, 3), 5, np.float32))
            np.testing.assert_array_equal(y, np.full((rows, 3), wanted, np.float32))
            np.testing.assert_array_equal(z, np.full(rows * 3, wanted, np.float32))
    (only,) = caught
    assert only.category is errors.PerformanceWarning
    assert str(only.message) == (
        "acme does not run acme_0 (linear): acme multiplies two rows, n = 3; these kernels run instead: acme_1, acme_1"
    )


def test_instruments_see_the_steps_of_a_fallback(refusing):
    seen = []
    machine = VirtualMachine(refusing)
    machine.set_instrument(lambda step, name, before, ret, *args: seen.append(step.label) if before else None)
    with pytest.warns(errors.PerformanceWarning):
        machine["main"](np.ones((3, 3), np.float32))
    machine["main"](np.ones((2, 3), np.float32))
    assert seen == ["one", "two", "bias", "linear", "bias"]


def test_without_a_fallback_the_refusal_is_the_error(refusing):
    refusing.fallbacks.clear()
    with pytest.raises(errors.NoImplementationError, match="two rows") as caught:
        VirtualMachine(refusing)["main"](np.ones((3, 3), np.float32))
    assert str(caught.value.where).startswith("linear, run by acme")


def test_fallbacks_are_saved(refusing, tmp_path):
    refusing.save(tmp_path / "m.kyar")
    again = kyar.load(tmp_path / "m.kyar")
    assert again.fallbacks == refusing.fallbacks
    again.save(tmp_path / "again.kyar")
    assert (tmp_path / "again.kyar").read_bytes() == (tmp_path / "m.kyar").read_bytes()
    refusing.fallbacks.clear()
    refusing.save(tmp_path / "without.kyar")
    assert b"fallback" not in (tmp_path / "without.kyar").read_bytes()


def test_a_result_may_be_a_view_of_what_a_fallback_writes(refusing):
    """The registers of the program stay as they are: others may be views of them."""
    main = refusing.main
    found = replace_steps(main, {"acme_0": fallback_of(refusing, flat=True)})
    assert found.registers[: len(main.registers)] == main.registers
    assert [step.label for step in found.steps] == ["one", "two", "bias"]
    written = found.steps[1].outputs[0]
    assert found.registers[written] == Register((N * 3,), "float32", "alias", source=main.steps[0].outputs[0])


def broken(fallback: Program, what: str) -> Program:
    wider = TensorSpec((N, 4), "float32", "x"), Register((N, 4), "float32", "input", index=0)
    changes = {
        "input": {"inputs": wider[:1], "registers": (wider[1], *fallback.registers[1:])},
        "symbols": {"symbols": ("m", "n")},
        "input as result": {"results": (0,)},
        "itself": {"steps": (replace(fallback.steps[0], symbol="acme_0", outputs=(3,)),)},
        "function": {"steps": (fallback.steps[0], replace(fallback.steps[1], symbol="acme_9"))},
    }
    return replace(fallback, **changes[what])


@pytest.mark.parametrize("what", ["input", "symbols", "input as result", "itself", "function"])
def test_fallbacks_that_do_not_fit_are_refused(what, refusing):
    fallbacks = {"acme_0": broken(refusing.fallbacks["acme_0"], what)}
    with pytest.raises(errors.ArtifactCorruptedError, match="acme_0"):
        Executable(refusing.programs, refusing.modules, refusing.constants, fallbacks=fallbacks)
