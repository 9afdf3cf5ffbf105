"""Backends may answer to a compile's options; one that fails at that is named, and breaks nothing else."""

from __future__ import annotations

import pytest
from interpreted_backend import InterpretedBackend

from kernelyard.driver.session.choose_backends import choose_backends
from kernelyard.errors import OptionError, PluginContractError
from kernelyard.target import Target


class Configurable(InterpretedBackend):
    """Does as its option says."""

    def __init__(self, name="acme", level=0):
        super().__init__(name, ["nn.relu"])
        self.level = level

    def configured(self, options):
        level = options.get("level", 0)
        if level == "raise":
            raise RuntimeError("no options today")
        if level == "foreign":
            return Configurable("other")
        if level == "nothing":
            return None
        if not isinstance(level, int):
            raise OptionError("a level is a number", found=repr(level))
        return Configurable(self.name, level)


class Manager:
    """One installed backend."""

    plugins = ()  # it registered itself, without a manifest

    def active(self, part, target):
        return [Configurable()]

    def providers(self, part, target):
        return [Configurable()]

    def unavailable(self, part, target):
        return []

    def get_any(self, name, parts, target):
        return Configurable()

    def priority_of(self, name):
        return 0

    def label_of(self, name):
        return f"plugin {name!r} of kernelyard-acme 2.1"


def choose(wanted, level):
    return choose_backends(Manager(), Target("cpu"), wanted, {"acme": {"level": level}})


@pytest.mark.parametrize("wanted", ["auto", ["acme"]])
def test_the_option_reaches_the_backend(wanted):
    (backend,) = choose(wanted, 3)
    assert isinstance(backend, Configurable)
    assert backend.level == 3


@pytest.mark.parametrize("wanted", ["auto", ["acme"]])
def test_a_refused_value_is_the_users_error(wanted):
    with pytest.raises(OptionError, match="a level is a number") as caught:
        choose(wanted, "high")
    assert caught.value.where == "plugin 'acme' of kernelyard-acme 2.1"


RETURNED = r"configured\(\) of acme returned another object"
FAULTS = [("raise", "the backend acme"), ("foreign", RETURNED), ("nothing", RETURNED)]


@pytest.mark.parametrize(("level", "message"), FAULTS)
def test_a_backend_that_fails_is_left_out_or_named(level, message, caplog):
    assert choose("auto", level) == []
    assert "acme is left out" in caplog.text
    with pytest.raises(PluginContractError, match=message) as caught:
        choose(["acme"], level)
    assert caught.value.where == "plugin 'acme' of kernelyard-acme 2.1"
