"""What a plugin's runtime half fails on names the step, the plugin with its version, and how to go on."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import errors
from kernelyard.runtime.abi.module import BoundCall

X = np.ones((2, 4), np.float32)
OWNER = "linear, run by acme of acme-runtime 1.2"
HINT = (
    "pip install --upgrade acme-runtime, or compile the model again without it "
    "(backends that leave acme out, or kernelyard -p no:acme)"
)


def error_of(executable) -> errors.ExecutionError:
    with pytest.raises(errors.ExecutionError) as caught:
        executable.run({"x": X})
    return caught.value


def place_of(function):
    return f"test_step_errors.py:{function.__code__.co_firstlineno}"


def test_a_graph_that_cannot_be_built(executable, acme, monkeypatch):
    monkeypatch.setattr(acme.AcmeRuntime, "build", lambda self, graph, *args: {}["relu"])
    error = error_of(executable)
    assert error.message == "the acme module cannot prepare acme_0 for these shapes"
    found = f"KeyError at {place_of(acme.AcmeRuntime.build)}: 'relu'"
    assert (error.where, error.found, error.hint) == (OWNER, found, HINT)


def test_a_step_in_python_that_raises(executable, acme, monkeypatch):
    monkeypatch.setattr(acme.AcmeRuntime, "build", lambda self, graph, *args: BoundCall([lambda: 1 / 0]))
    error = error_of(executable)
    found = f"ZeroDivisionError at {place_of(acme.AcmeRuntime.build)}: division by zero"
    assert (error.where, error.found, error.hint) == (OWNER, found, HINT)


def test_a_step_in_python_that_raises_one_of_ours(executable, acme, monkeypatch):
    def refuse():
        raise errors.ExecutionError("the device is lost")

    monkeypatch.setattr(acme.AcmeRuntime, "build", lambda self, graph, *args: BoundCall([refuse]))
    error = error_of(executable)
    assert (error.message, error.where) == ("the device is lost", OWNER)


@pytest.mark.parametrize("answer", [1, None, X], ids=repr)
def test_what_a_step_in_python_returns_is_no_failure(executable, acme, monkeypatch, answer):
    """`ctypes.memmove` returns an address, and a function of C that returns nothing seems to return a number."""
    ran = []
    monkeypatch.setattr(
        acme.AcmeRuntime, "build", lambda self, graph, *args: BoundCall([lambda: (ran.append(1), answer)[1]])
    )
    executable.run({"x": X})
    assert ran


def test_a_native_step_that_says_no(executable, acme, monkeypatch):
    monkeypatch.setitem(acme.KERNELS, "matmul", None)
    error = error_of(executable)
    assert error.message == "a native step failed"
    assert (error.where, error.found, error.hint) == (OWNER, "status 7", HINT)


def test_a_step_of_a_profile(executable, acme, monkeypatch):
    monkeypatch.setitem(acme.KERNELS, "matmul", None)
    with pytest.raises(errors.ExecutionError) as caught:
        executable.profile({"x": X}, calls=1)
    assert (caught.value.where, caught.value.hint) == (OWNER, HINT)


def test_a_function_that_is_called_by_itself(executable, acme, monkeypatch):
    monkeypatch.setitem(acme.KERNELS, "matmul", None)
    with pytest.raises(errors.ExecutionError) as caught:
        executable.modules[0].get_function("acme_0")(X, np.empty((2, 3), np.float32))
    assert caught.value.where == "acme_0, run by acme of acme-runtime 1.2"
