"""Exported libraries in C: functions by name, sizes solved as Python solves them, many threads, tensors of all sorts."""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
import threading

import numpy as np
import pytest
from c_library import BAD_CALL, BAD_TENSOR, NEEDS_PYTHON, Model, tensors

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import ArtifactError, InputShapeError, LibraryWarning, ShapeError
from kernelyard.ir import Constant, FunctionBuilder, IRModule, Tuple
from kernelyard.ir.op import get_op
from kernelyard.ops.reference_runtime import OpCall, ReferenceModule
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.jit.c_compiler import COMPILERS, find_compiler
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Program, Register, SizeCheck, Step
from kernelyard.runtime.program.vm_function import Instruction, VMFunction

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is installed here")
N, M = dims.symbol("n"), dims.symbol("m")
rng = np.random.default_rng(5)
WEIGHT = Constant((rng.standard_normal((8, 8)) / 4).astype(np.float32))


def feed(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def layers(count):
    """A function of `count` layers that all have one weight."""
    b = FunctionBuilder()
    x = b.input("x", (N, 8))
    for _ in range(count):
        x = b.op("tanh", b.op("matmul", x, WEIGHT))
    return b.function(x)


def export(folder, functions, **options):
    exe = ky.compile(IRModule(functions), backends=[])
    exe.export_library(folder / "m.so", **{"standalone": True, **options})
    return exe, folder / "m.so"


# --- functions by name ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [("main", "encode", "decode"), ("prefill", "decode")])
def test_every_entry_function_is_called_by_name(tmp_path, names):
    exe, path = export(tmp_path, {name: layers(count + 1) for count, name in enumerate(names)})
    model, machine, loaded = Model(path), ky.VirtualMachine(exe), ky.VirtualMachine(ky.load(path))
    assert {model.c.ky_function_name(i).decode() for i in range(model.c.ky_num_functions())} == set(names)
    for rows, name in itertools.product((3, 17, 3), names):
        x = feed(rows, 8)
        (found,) = model.run([x], name=name)
        np.testing.assert_array_equal(found, machine[name](x).numpy())
        np.testing.assert_array_equal(found, loaded[name](x).numpy())


def test_main_is_the_first_and_constants_are_stored_once(tmp_path):
    _, path = export(tmp_path, {"a": layers(1), "main": layers(2), "z": layers(3)})
    assert Model(path).c.ky_find_function(b"main") == 0
    assert path.read_bytes().count(WEIGHT.data.tobytes()) == 1


def test_a_function_that_is_not_there(tmp_path):
    model = Model(export(tmp_path, {"main": layers(1)})[1])
    assert model.c.ky_find_function(b"mian") == -1
    assert "there is no function mian" in model.error
    assert model.c.ky_find_function(None) == -1
    x = tensors([feed(2, 8)])
    for number in (-1, 1, 1 << 30):
        assert model.c.ky_run(model.model, number, x, 1, x, 1) == BAD_CALL
        assert f"there is no function {number}" in model.error
        assert model.c.ky_function_signature(number) is None


def test_functions_that_need_python_are_refused_and_the_others_run(tmp_path):
    exe = ky.compile(IRModule({"main": layers(1)}), backends=[])
    step = Step(len(exe.modules), "tanh_0", (0,), (1,), "node tanh")
    spec = TensorSpec((N, 8), "float32")
    registers = (Register(spec.shape, "float32", "input", 0), Register(spec.shape, "float32", "buffer"))
    slow = Program("slow", ("n",), (_named(spec, "x"),), (_named(spec, "y"),), registers, (step,), (1,))
    reference = ReferenceModule({"tanh_0": OpCall(get_op("tanh"), {})})
    both = Executable({"main": exe.main, "slow": slow}, (*exe.modules, reference), exe.constants)
    with pytest.raises(ArtifactError) as info:
        both.export_library(tmp_path / "m.so", standalone=True)
    assert info.value.where == "entry function 'slow'"
    assert info.value.found.startswith("the step node tanh is run by 'reference', which needs Python")
    assert "pip install 'kernelyard[cpu]'" in info.value.found
    with pytest.warns(LibraryWarning, match="slow: the step node tanh"):
        both.export_library(tmp_path / "m.so")
    model, x = Model(tmp_path / "m.so"), feed(4, 8)
    np.testing.assert_array_equal(model.run([x])[0], exe(x).numpy())
    assert model.shape([x], 0, "slow") == (4, 8)
    assert "is run by 'reference', which needs Python" in model.refuses([x], [feed(4, 8)], NEEDS_PYTHON, "slow")
    np.testing.assert_allclose(ky.VirtualMachine(ky.load(tmp_path / "m.so"))["slow"](x).numpy(), np.tanh(x), rtol=1e-6)


def test_functions_with_control_flow_are_described_and_run_in_python(tmp_path):
    """Given back by a VM function: the code has one instruction."""
    exe = ky.compile(IRModule({"main": layers(1)}), backends=[])
    x = TensorSpec((N, 8), "float32", "x")
    vm_function = VMFunction("again", ("n",), (x,), (_named(x, "y"),), (x,), (), (Instruction("ret", (0,)),))
    both = Executable(exe.programs, exe.modules, exe.constants, vm_functions={"again": vm_function})
    with pytest.warns(LibraryWarning, match="again: it has control flow"):
        both.export_library(tmp_path / "m.so")
    model, fed = Model(tmp_path / "m.so"), feed(3, 8)
    assert model.c.ky_function_signature(1) == b"again(x: (n, 8) float32) -> (y: (n, 8) float32)"
    np.testing.assert_array_equal(model.run([fed])[0], exe(fed).numpy())
    assert "again: it has control flow" in model.refuses([fed], [feed(3, 8)], NEEDS_PYTHON, "again")
    np.testing.assert_array_equal(ky.VirtualMachine(ky.load(tmp_path / "m.so"))["again"](fed).numpy(), fed)


def _named(spec, name):
    return TensorSpec(spec.shape, spec.dtype, name)


# --- sizes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shapes", "fed"),
    [
        ([(2 * N + 1, 8)], [(7, 8)]),
        ([(N + M, 3), (2 * N, 3)], None),  # two unknowns at once: Python does not guess either
        ([(M + 3, N * M), (M,)], [(5, 6), (2,)]),
        ([(dims.minimum(N, 5),), (N,)], [(5,), (9,)]),
    ],
)
def test_sizes_that_are_no_axis_by_themselves(tmp_path, shapes, fed):
    b = FunctionBuilder()
    total = b.op("sum", b.op("exp", b.input("x0", shapes[0])), axes=(0,), keepdims=False)
    for i, shape in enumerate(shapes[1:], 1):
        total = b.op("add", total, b.op("sum", b.input(f"x{i}", shape), axes=(0,), keepdims=False))
    exe, path = export(tmp_path, {"main": b.function(total)})
    model = Model(path)
    if fed is None:
        inputs = [feed(5, 3), feed(4, 3)]
        assert "which does not determine m and n" in model.refuses(inputs, [feed(3)])
        with pytest.raises(InputShapeError):
            exe(*inputs)
        return
    inputs = [feed(*shape) for shape in fed]
    np.testing.assert_array_equal(model.run(inputs)[0], exe(*inputs).numpy())
    odd = [feed(fed[0][0] + 1, *fed[0][1:]), *inputs[1:]]
    assert "x0: axis 0 has" in model.refuses(odd, [feed(*exe(*inputs).shape)])


def random_dim(choose):
    """Sums, products, quotients and extrema of up to three symbols."""
    dim = dims.symbol(choose.choice("abc"))
    for _ in range(choose.randint(0, 2)):
        other = choose.choice([1, 2, 3, dims.symbol(choose.choice("abc"))])
        build = choose.choice([
            lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y,
            dims.floordiv, dims.ceildiv, dims.maximum, dims.minimum, dims.broadcast,
        ])  # fmt: skip
        dim = build(dim, other)
    return dim


def random_program(number, choose):
    """A function that gives its inputs back, with any sizes and checks."""
    shapes = [tuple(random_dim(choose) for _ in range(choose.randint(1, 2))) for _ in range(choose.randint(1, 3))]
    specs = tuple(TensorSpec(shape, "int8", f"x{i}") for i, shape in enumerate(shapes))
    symbols = sorted({name for spec in specs for dim in spec.shape for name in dims.symbols_of(dim)})
    all_dims = [dim for shape in shapes for dim in shape]
    checks = tuple(
        SizeCheck(dims.maximum(choose.choice(all_dims), 2), dims.maximum(choose.choice(all_dims), 2), "a check")
        for _ in range(choose.randint(0, 1))
    )
    registers = tuple(Register(spec.shape, "int8", "input", i) for i, spec in enumerate(specs))
    results = tuple(range(len(specs)))
    return Program(f"f{number}", tuple(symbols), specs, specs, registers, (), results, checks)


@pytest.mark.parametrize("seed", range(3))
def test_c_and_python_solve_sizes_alike(tmp_path, seed):
    """C refuses as Python does, and beside it only empty inputs, which Python answers without running anything."""
    choose = random.Random(seed)
    programs = [random_program(number, choose) for number in range(60)]
    Executable({program.name: program for program in programs}, (), {}).export_library(tmp_path / "m.so")
    model, agreed = Model(tmp_path / "m.so"), [0, 0]
    for program, _ in itertools.product(programs, range(40)):
        values = {name: choose.randint(1, 5) for name in program.symbols}
        try:
            shapes = [tuple(dims.evaluate(dim, values) for dim in spec.shape) for spec in program.inputs]
        except ShapeError:
            shapes = [tuple(choose.randint(0, 6) for _ in spec.shape) for spec in program.inputs]
        if choose.random() < 0.3:
            shapes[0] = tuple(max(0, size + choose.choice([-1, 0, 1])) for size in shapes[0])
        if any(size < 0 for shape in shapes for size in shape):
            continue
        arrays = [np.zeros(shape, np.int8) for shape in shapes]
        try:
            expected = BAD_TENSOR if ExecutionPlan(program, tuple(shapes)).is_empty else 0
        except (InputShapeError, ShapeError):
            expected = BAD_TENSOR
        assert model.status(arrays, [array.copy() for array in arrays], program.name) == expected, (
            f"{program.inputs} {program.checks} {shapes} {model.error}"
        )
        agreed[expected == 0] += 1
    assert min(agreed) > 200


def test_sizes_that_overflow_are_refused(tmp_path):
    """Shapes only are read: no memory of that size is there."""
    spec = TensorSpec((N, N), "float32", "x")
    big = Register((N * N * N * N,), "float32", "alias", source=0)
    result = TensorSpec(big.shape, "float32", "y")
    program = Program("main", ("n",), (spec,), (result,), (Register(spec.shape, "float32", "input", 0), big), (), (1,))
    Executable({"main": program}, (), {}).export_library(tmp_path / "m.so")
    model = Model(tmp_path / "m.so")
    tensor = tensors([np.zeros((1, 1), np.float32)])
    shape = (ctypes.c_int64 * 2)()
    for size in (1 << 16, 1 << 31, (1 << 63) - 1):
        tensor[0].shape = (ctypes.c_int64 * 2)(size, size)
        assert model.c.ky_output_shape(0, tensor, 1, 0, shape) == BAD_TENSOR
        assert "y: the sizes of the inputs are inconsistent" in model.error


def test_what_is_written_in_c_compiles_without_warnings(tmp_path, monkeypatch):
    command = " ".join(find_compiler().command)
    monkeypatch.setenv("CC", f"{command} -Wall -Wextra -Werror -Wno-unused-function")
    b = FunctionBuilder()
    x, y = b.input("x", (2 * N + 1, M)), b.input("y", (M,))
    export(tmp_path, {"main": b.function(b.op("add", b.op("exp", x), y)), "other": layers(1)})


# --- tensors from outside ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def adder(tmp_path_factory):
    b = FunctionBuilder()
    x, y = b.input("x", (N, 8)), b.input("y", (N, 8))
    b = b.function(b.op("add", b.op("exp", x), y))
    return Model(export(tmp_path_factory.mktemp("adder"), {"main": b})[1])


def test_a_wrong_number_of_tensors(adder):
    x = tensors([feed(3, 8)] * 3)
    call = adder.c.ky_run
    assert call(adder.model, 0, x, 1, x, 1) == BAD_CALL
    assert adder.error == "main: 1 inputs, expected 2"
    assert call(adder.model, 0, x, 2, x, 3) == BAD_CALL
    assert adder.error == "main: 3 outputs, expected 1"
    assert call(adder.model, 0, None, 2, x, 1) == BAD_CALL
    assert adder.error == "main: the inputs are NULL"
    assert call(None, 0, x, 2, x, 1) == BAD_CALL
    assert adder.c.ky_output_shape(0, x, 2, 7, (ctypes.c_int64 * 2)()) == BAD_CALL
    assert adder.c.ky_output_shape(0, x, 2, 0, None) == BAD_CALL


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: setattr(t, "data", None), "x: the data is NULL"),
        (lambda t: setattr(t, "shape", None), "x: the shape is NULL"),
        (lambda t: setattr(t, "ndim", -5), "x: rank -5, expected 2"),
        (lambda t: setattr(t, "ndim", 1 << 30), "x: rank 1073741824, expected 2"),
        (lambda t: setattr(t.device, "type", 2), "x: the tensor is not on the CPU"),
        (lambda t: setattr(t.dtype, "code", 200), "x: dtype of unknown kind"),
        (lambda t: setattr(t.dtype, "lanes", 4), "x: dtype float32 with 4 lanes"),
        (lambda t: t.shape.__setitem__(0, -1), "x: axis 0 has -1 elements"),
        (lambda t: t.shape.__setitem__(0, 1 << 62), "y: axis 0 has 3 elements, expected n = 4611686018427387904"),
    ],
)
def test_broken_tensors_are_refused(adder, spoil, message):
    arrays = [feed(3, 8), feed(3, 8)]
    made, out = tensors(arrays), tensors([feed(3, 8)])
    spoil(made[0])
    assert adder.c.ky_run(adder.model, 0, made, 2, out, 1) == BAD_TENSOR
    assert adder.error.startswith(message)
    np.testing.assert_allclose(adder.run(arrays)[0], np.exp(arrays[0]) + arrays[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("over", [0, 1])
def test_an_output_may_be_written_over_an_input(adder, over):
    inputs = [feed(3, 8), feed(3, 8)]
    expected = np.exp(inputs[0]) + inputs[1]
    assert adder.status(inputs, [inputs[over]]) == 0, adder.error
    np.testing.assert_allclose(inputs[over], expected, rtol=1e-6, atol=1e-6)


def test_results_that_are_inputs_may_change_places(tmp_path):
    b = FunctionBuilder()
    x, y = b.input("x", (N,)), b.input("y", (N,))
    model = Model(export(tmp_path, {"main": b.function(Tuple((y, x)))})[1])
    first, second = feed(16), feed(16)
    before = first.copy(), second.copy()
    assert model.status([first, second], [first, second]) == 0, model.error
    np.testing.assert_array_equal(first, before[1])
    np.testing.assert_array_equal(second, before[0])


# --- many threads, many libraries -------------------------------------------------------------------------------------
def test_many_threads_call_one_model(tmp_path):
    """More sizes than a lane keeps plans for, two functions, and calls that fail in between."""
    names = ("main", "other")
    exe, path = export(tmp_path, {name: layers(count + 1) for count, name in enumerate(names)})
    model, machine, wrong = Model(path), ky.VirtualMachine(exe), []
    cases = [(name, feed(rows, 8)) for name in names for rows in range(1, 13)]
    expected = [machine[name](x).numpy() for name, x in cases]

    def work(seed):
        choose = random.Random(seed)
        for _ in range(100):
            number = choose.randrange(len(cases))
            name, x = cases[number]
            out = np.zeros_like(x)
            if model.status([x], [out], name) or not np.array_equal(out, expected[number]):
                wrong.append((name, x.shape))
            if model.status([x.T], [out], name) != BAD_TENSOR or "x: " not in model.error:
                wrong.append("error")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    model.c.ky_destroy(model.model)


def test_libraries_with_functions_of_the_same_names_keep_to_themselves(tmp_path):
    """Both are global: without care, the second would call kernels of the first."""
    results = []
    for number, op in enumerate(("exp", "tanh")):
        b = FunctionBuilder()
        function = b.function(b.op("add", b.op(op, b.input("x", (N,))), np.float32(number)))
        (tmp_path / op).mkdir()
        exe, path = export(tmp_path / op, {"main": function})
        results.append((Model(path, mode=ctypes.RTLD_GLOBAL), exe))
    x = feed(9)
    for model, exe in results:
        np.testing.assert_array_equal(model.run([x])[0], exe(x).numpy())
