"""The virtual machine: feeds are checked, plans are kept, many threads may call."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernelyard import dims, errors
from kernelyard.runtime.abi import threads
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.device.device import cpu, cuda
from kernelyard.runtime.execute import bound_program as bound_programs
from kernelyard.runtime.execute.executable import Executable, Program, Register, Step, TensorSpec
from kernelyard.runtime.execute.virtual_machine import VirtualMachine, VMInstrumentReturnKind

N = dims.symbol("n")


def feed(rows: int, columns: int = 4) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def expected(x, weight, bias=1.0):
    return (x @ weight) * np.float32(2) + np.float32(bias)


def test_run_by_name_and_by_position(executable, weight):
    x = feed(3)
    by_name = executable.run({"x": x})
    assert list(by_name) == ["y", "z"]
    np.testing.assert_array_equal(by_name["y"], expected(x, weight))
    y, z = executable(x)
    np.testing.assert_array_equal(y, by_name["y"])
    np.testing.assert_array_equal(z, by_name["y"].numpy().reshape(-1))


def test_inputs_and_outputs_are_described(executable):
    assert [(info.name, info.shape, info.dtype) for info in executable.inputs] == [("x", ("n", 4), "float32")]
    assert [(info.name, info.shape) for info in executable.outputs] == [("y", ("n", 3)), ("z", ("n * 3",))]


@pytest.mark.parametrize(
    ("feeds", "error", "words"),
    [
        ([feed(1)], errors.InputNameError, "found: list"),
        (feed(1), errors.InputNameError, "found: ndarray"),
        ({}, errors.InputNameError, "the feed 'x' is missing"),
        ({"y": feed(1)}, errors.InputNameError, "'y' is no input"),
        ({"x": feed(1), "w": feed(1)}, errors.InputNameError, "'w' is no input"),
        ({"x": feed(1).astype(np.float64)}, errors.InputTypeError, "float64"),
        ({"x": feed(1).astype(np.int32)}, errors.InputTypeError, "numpy.asarray"),
        ({"x": feed(1).astype(np.complex64)}, errors.InputTypeError, "complex64"),
        ({"x": np.array([["a", "b"]])}, errors.InputTypeError, "expected: float32"),
        ({"x": np.array([[object()]])}, errors.InputTypeError, "object"),
        ({"x": "text"}, errors.InputTypeError, "found: str"),
        ({"x": None}, errors.InputTypeError, "NoneType"),
        ({"x": [[1, 2], [3]]}, errors.InputTypeError, "equally long rows"),
        ({"x": feed(1)[0]}, errors.InputShapeError, "rank 1"),
        ({"x": np.float32(3)}, errors.InputShapeError, "rank 0"),
        ({"x": feed(2, 5)}, errors.InputShapeError, "axis 1"),
    ],
)
def test_wrong_feeds_are_refused_with_reasons(executable, feeds, error, words):
    with pytest.raises(error) as caught:
        executable.run(feeds)
    assert words in str(caught.value)
    assert "x" in (caught.value.where or "") or "main" in (caught.value.where or "")
    # nothing is left behind: the next call works
    assert executable.run({"x": feed(2)})["y"].shape == (2, 3)


def test_a_misspelt_feed_gets_a_suggestion(make_executable):
    program = Program(
        "main",
        (),
        (TensorSpec((2,), "float32", "input_ids"),),
        (TensorSpec((2,), "float32", "y"),),
        (Register((2,), "float32", "input", index=0),),
        (),
        (0,),
    )
    exe = Executable({"main": program}, [], {})
    with pytest.raises(errors.InputNameError) as caught:
        exe.run({"input_id": np.ones(2, np.float32)})
    assert caught.value.hint == "did you mean 'input_ids'?"


def test_a_wrong_number_of_arguments_is_refused(executable):
    with pytest.raises(errors.InputNameError, match="takes 1 inputs"):
        executable()


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: x.tolist(),
    ],
    ids=["fortran", "reversed", "strided", "big-endian", "unaligned", "lists"],
)
@pytest.mark.parametrize("moving", [False, True])
def test_any_layout_of_a_feed_is_taken(executable, weight, convert, moving, monkeypatch):
    if moving:
        monkeypatch.setattr(bound_programs, "REBIND_BYTES", 0)
    x = feed(3)
    for _ in range(2):
        np.testing.assert_array_equal(executable.run({"x": convert(x)})["y"], expected(x, weight))
        np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(x, weight))


@pytest.mark.parametrize("moving", [False, True])
def test_results_belong_to_the_caller(executable, weight, moving, monkeypatch):
    if moving:
        monkeypatch.setattr(bound_programs, "REBIND_BYTES", 0)
    first = executable.run({"x": feed(2)})
    second = executable.run({"x": feed(2) * 3})
    first["z"].numpy()[...] = 0
    np.testing.assert_array_equal(first["y"], expected(feed(2), weight))
    np.testing.assert_array_equal(second["y"], expected(feed(2) * 3, weight))


def test_plans_are_kept_and_the_oldest_forgotten(executable, acme):
    acme.AcmeRuntime.binds = 0
    for _ in range(3):
        for rows in range(1, 17):
            executable.run({"x": feed(rows)})
    assert acme.AcmeRuntime.binds == 2 * 16  # two steps, sixteen shapes, bound once each
    executable.run({"x": feed(17)})
    executable.run({"x": feed(16)})
    assert acme.AcmeRuntime.binds == 2 * 17
    executable.run({"x": feed(1)})  # was the oldest
    assert acme.AcmeRuntime.binds == 2 * 18


@pytest.mark.parametrize("moving", [False, True])
def test_many_threads_may_call_at_once(executable, weight, moving, monkeypatch):
    if moving:
        monkeypatch.setattr(bound_programs, "REBIND_BYTES", 0)
    start = threading.Barrier(6)

    def work(seed: int) -> bool:
        start.wait(timeout=30)
        rng = np.random.default_rng(seed)
        for _ in range(30):
            x = rng.standard_normal((int(rng.integers(1, 5)), 4), dtype=np.float32)
            if not np.array_equal(executable.run({"x": x})["y"].numpy(), expected(x, weight)):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


class Operations(RuntimeModule):
    """Python functions as a module: `symbols` reach those that ask for them."""

    kind = "operations"

    def __init__(self, **functions):
        self.functions = functions

    def symbols(self):
        return tuple(self.functions)

    def get_function(self, symbol):
        return self.functions[symbol]

    def save_to_bytes(self):
        return b""


def one_step(function, shape=(N,), out=(N,)) -> Executable:
    program = Program(
        "main",
        ("n",),
        (TensorSpec(shape, "float32", "x"),),
        (TensorSpec(out, "float32", "y"),),
        (Register(shape, "float32", "input", index=0), Register(out, "float32", "buffer")),
        (Step(0, "f", (0,), (1,), "node 'Sqrt_1'"),),
        (1,),
    )
    return Executable({"main": program}, [Operations(f=function)], {})


def test_a_python_function_gets_the_symbols():
    seen = {}

    def function(x, y, symbols=None):
        seen.update(symbols)
        np.sqrt(x, out=y)

    np.testing.assert_array_equal(one_step(function)(np.full(3, 4, np.float32)), [2, 2, 2])
    assert seen == {"n": 3}


def test_all_is_freed_with_the_last_reference_to_an_executable():
    """In a cycle, the memory of programs that are loaded and dropped would wait for the garbage collector."""
    exe = one_step(lambda x, y: np.sqrt(x, out=y))
    np.testing.assert_array_equal(exe(np.full(3, 4, np.float32)), [2, 2, 2])
    np.testing.assert_array_equal(exe.run({"x": np.full(2, 9, np.float32)})["y"], [3, 3])
    machine, context = weakref.ref(exe._machine), weakref.ref(next(iter(exe._machine.contexts)))
    gc.disable()
    try:
        del exe
        assert machine() is None
        assert context() is None
    finally:
        gc.enable()


def test_a_foreign_function_gets_tensors():
    tvm_ffi = pytest.importorskip("tvm_ffi")

    def function(x, y):
        np.negative(np.from_dlpack(x), out=np.from_dlpack(y))

    np.testing.assert_array_equal(one_step(tvm_ffi.convert(function))(np.ones(3, np.float32)), [-1, -1, -1])


def test_a_failing_step_is_named():
    def function(x, y):
        raise ValueError("no such luck")

    with pytest.raises(errors.ExecutionError) as caught:
        one_step(function)(np.ones(3, np.float32))
    assert caught.value.where == "node 'Sqrt_1', run by operations"
    place = f"test_virtual_machine.py:{function.__code__.co_firstlineno + 1}"
    assert caught.value.found == f"ValueError at {place}: no such luck"


def test_sizes_that_cannot_be_name_the_step():
    exe = one_step(lambda x, y: None, out=(N - 5,))
    with pytest.raises(errors.ShapeError, match="negative size") as caught:
        exe(np.ones(3, np.float32))
    assert (caught.value.where, caught.value.found) == ("node 'Sqrt_1'", "n = 3")


def test_too_large_sizes_are_an_error_not_a_crash():
    exe = one_step(lambda x, y: None, out=(N * (1 << 44), N * (1 << 44)))
    with pytest.raises(errors.ExecutionError, match="out of memory"):
        exe(np.ones(3, np.float32))


def test_symbols_are_solved_from_expressions():
    exe = one_step(lambda x, y, symbols: y.fill(symbols["n"]), shape=(N * 2 + 1,))
    assert exe(np.ones(7, np.float32)).shape == (3,)
    with pytest.raises(errors.InputShapeError) as caught:
        exe(np.ones(6, np.float32))
    assert caught.value.expected is not None


def test_one_symbol_must_have_one_value():
    x, y = TensorSpec((N,), "float32", "x"), TensorSpec((N,), "float32", "y")
    registers = (Register((N,), "float32", "input", index=0), Register((N,), "float32", "input", index=1))
    program = Program("main", ("n",), (x, y), (TensorSpec((N,), "float32", "z"),), registers, (), (1,))
    with pytest.raises(errors.InputShapeError) as caught:
        Executable({"main": program}, [], {})(np.ones(2, np.float32), np.ones(3, np.float32))
    assert caught.value.where == "input 'y'"
    assert caught.value.expected == "n = 2 (n = 2)"


def test_inputs_and_constants_may_be_results():
    constant = np.arange(3, dtype=np.float32)
    registers = (
        Register((3,), "float32", "input", index=0),
        Register((3,), "float32", "constant", digest="c" * 64),
        Register((3, 1), "float32", "alias", source=0),
    )
    specs = tuple(TensorSpec(r.shape, r.dtype, f"y{i}") for i, r in enumerate(registers))
    program = Program("main", (), (TensorSpec((3,), "float32", "x"),), specs, registers, (), (0, 1, 2))
    exe = Executable({"main": program}, [], {"c" * 64: constant})
    x = np.ones(3, np.float32)
    same, known, reshaped = exe(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(known, constant)
    assert reshaped.shape == (3, 1)
    same.numpy()[...] = 7
    known.numpy()[...] = 7
    assert x.tolist() == [1, 1, 1]
    assert exe(x)[1].numpy().tolist() == [0, 1, 2]


def test_an_instrument_sees_every_step_and_may_skip(executable, weight):
    machine = VirtualMachine(executable, cpu())
    seen = []

    def instrument(step, name, before_run, ret_value, *args):
        seen.append((step.label, name, before_run, ret_value is None, [arg.shape for arg in args]))
        return VMInstrumentReturnKind.SKIP_RUN if before_run and step.label == "skipped" else None

    machine.set_instrument(instrument)
    y, _ = machine["main"](feed(2))
    np.testing.assert_array_equal(y, expected(feed(2), weight))
    assert seen == [
        ("linear", "acme_0", True, True, [(2, 4)]),
        ("linear", "acme_0", False, False, [(2, 4)]),
        ("bias", "acme_1", True, True, [(2, 3), (3,)]),
        ("bias", "acme_1", False, False, [(2, 3), (3,)]),
    ]
    machine.set_instrument(None)
    machine["main"](feed(2))
    assert len(seen) == 4


def test_a_skipped_step_does_not_run():
    ran = []
    machine = VirtualMachine(one_step(lambda x, y: ran.append(1)))
    machine.set_instrument(lambda *args: VMInstrumentReturnKind.SKIP_RUN)
    machine["main"](np.ones(2, np.float32))
    assert ran == []


def test_a_saved_function_needs_no_arguments(executable, weight):
    machine = VirtualMachine(executable)
    machine.save_function("main", "again", feed(2))
    np.testing.assert_array_equal(machine["again"]()[0], expected(feed(2), weight))
    with pytest.raises(errors.ExecutionError, match="already"):
        machine.save_function("main", "main", feed(2))
    assert machine.time_evaluator("again", number=2)().mean > 0


def test_the_time_evaluator_measures(executable):
    result = VirtualMachine(executable).time_evaluator("main", number=3, repeat=4)(feed(2))
    assert len(result.results) == 4
    assert 0 < result.min <= result.median <= result.max
    assert result.min <= result.mean <= result.max
    assert result.std >= 0
    with pytest.raises(errors.ExecutionError):
        VirtualMachine(executable).time_evaluator("main", number=0)


def test_an_unknown_entry_function_gets_a_suggestion(executable):
    with pytest.raises(errors.ExecutionError) as caught:
        VirtualMachine(executable)["mian"]
    assert caught.value.hint == "did you mean 'main'?"


def test_devices_that_are_not_there_are_refused_with_the_reason(executable):
    with pytest.raises(errors.DeviceError, match="compiled for cpu cannot run on cuda:0"):
        VirtualMachine(executable, cuda(0))
    executable.target = "vulkan"
    with pytest.raises(errors.DeviceError, match="vulkan:0") as caught:
        VirtualMachine(executable)
    assert "no installed plugin" in str(caught.value)
    executable.target = "cuda -arch=sm_90"
    with pytest.raises(errors.DeviceError, match="compiled for cuda"):
        VirtualMachine(executable, cpu())


def test_threads_are_an_option(make_executable, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert make_executable().threads == 3
    executable = make_executable(threads=2)
    assert executable.threads == 2
    executable.run({"x": feed(1)})
    executable.threads = 1
    assert executable.threads == 1
    executable.run({"x": feed(1)})
    with pytest.raises(errors.ExecutionError):
        executable.threads = 0


@pytest.mark.parametrize(("wanted", "expected"), [(1, 1), (2, 2), (5, 2)])
def test_modules_are_bound_for_no_more_threads_than_processors(make_executable, monkeypatch, wanted, expected):
    monkeypatch.setattr(threads, "processors", lambda: 2)
    executable = make_executable(threads=wanted)
    (module,) = executable.modules
    given = []
    bind = module.bind
    monkeypatch.setattr(module, "bind", lambda *args: given.append(args[-1].threads) or bind(*args))
    executable.run({"x": feed(1)})
    assert set(given) == {expected}


def test_several_entry_functions(executable):
    main = executable.programs["main"]
    both = Executable({"first": main, "second": main}, executable.modules, executable.constants)
    assert VirtualMachine(both)["second"](feed(1))[0].shape == (1, 3)
    with pytest.raises(errors.ExecutionError, match="several entry functions"):
        both(feed(1))
