"""Passes and commands of distributions: found by their names, and imported when these are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_distribution import GOOD_PLUGIN, install

import kernelyard.ops  # noqa: F401
from kernelyard import transform
from kernelyard.cli.main import main
from kernelyard.errors import PluginError
from kernelyard.ir import FunctionBuilder, IRModule

ADDED = """
import click
from kernelyard.ir import Call, FunctionMutator
from kernelyard.transform import FunctionPass

class RemoveFloor(FunctionPass):
    name = "remove_floor"

    def transform(self, function, module, context):
        class Remover(FunctionMutator):
            def rewrite(self, var, value):
                return value.args[0] if isinstance(value, Call) and value.op_name == "floor" else value

        return Remover().mutate(function)

@click.command()
def polish():
    \"\"\"Polish.\"\"\"
    click.echo("polished by {name}")
"""
SOURCE = GOOD_PLUGIN + ADDED
PASSES, COMMANDS = "kernelyard.passes", "kernelyard.commands"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("fake_kernelyard_")]:
        del sys.modules[name]
    vars(transform).pop("RemoveFloor", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="kernelyard")


# --- passes -----------------------------------------------------------------------------------------------------------
def test_a_pass_of_a_distribution_is_a_name_of_the_package(site: Path) -> None:
    install(site, "acme", plugin=SOURCE, others={PASSES: "RemoveFloor = RemoveFloor"})
    assert "RemoveFloor" in dir(transform)
    assert "fake_kernelyard_acme.plugin" not in sys.modules
    from kernelyard.transform import RemoveFloor

    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("abs", b.op("floor", b.input("x", (2,)))))})
    assert [binding.value.op_name for binding in RemoveFloor()(module)["main"].bindings] == ["abs"]


def test_a_name_that_nobody_brings(site: Path) -> None:
    with pytest.raises(AttributeError, match="no attribute 'RemoveFloor', nor does an installed distribution bring it"):
        getattr(transform, "RemoveFloor")  # noqa: B009
    with pytest.raises(ImportError, match="RemoveFloor"):
        from kernelyard.transform import RemoveFloor  # noqa: F401


def test_the_cores_passes_stay_its_own(site: Path) -> None:
    vars(transform).pop("SinkReshape", None)
    install(site, "acme", plugin=SOURCE, others={PASSES: "SinkReshape = RemoveFloor"})
    assert transform.SinkReshape.__module__ == "kernelyard.transform.algebraic.sink_reshape"


def test_a_pass_of_two_distributions_is_refused(site: Path) -> None:
    for name in ("acme", "bolt"):
        install(site, name, plugin=SOURCE, others={PASSES: "RemoveFloor = RemoveFloor"})
    with pytest.raises(PluginError, match="several distributions provide 'RemoveFloor'") as caught:
        getattr(transform, "RemoveFloor")  # noqa: B009
    assert caught.value.found == "kernelyard-acme 1.0, kernelyard-bolt 1.0"
    assert "uninstall" in (caught.value.hint or "")


@pytest.mark.parametrize("source", ["import no_such_library", "raise SystemExit(3)", "x = 1 / 0", "x = 1"])
def test_a_pass_that_cannot_be_imported_names_its_distribution(site: Path, source: str) -> None:
    install(site, "acme", plugin=source, others={PASSES: "RemoveFloor = RemoveFloor"})
    with pytest.raises(PluginError, match="provides 'RemoveFloor', which cannot be imported"):
        getattr(transform, "RemoveFloor")  # noqa: B009
    assert transform.FuseOps.name == "fuse_ops"


# --- commands ---------------------------------------------------------------------------------------------------------
def test_a_command_of_a_distribution(site: Path) -> None:
    install(site, "acme", plugin=SOURCE, others={COMMANDS: "polish = polish"})
    assert "kernelyard-acme polish" in " ".join(run("--help").output.split())
    assert "fake_kernelyard_acme.plugin" not in sys.modules
    result = run("polish")
    assert (result.exit_code, result.output) == (0, "polished by acme\n")
    assert "did you mean 'polish'?" in run("polishs").output


def test_the_cores_commands_stay_its_own(site: Path) -> None:
    install(site, "acme", plugin=SOURCE, others={COMMANDS: "backends = polish"})
    assert "kernelyard-acme" not in run("--help").output
    assert "List the installed plugins" in run("backends", "--help").output


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_library", "cannot be imported"),
        ("raise SystemExit(3)", "cannot be imported"),
        ("def polish(): pass", "is something else"),
    ],
)
def test_a_broken_command_is_named_and_the_others_work(site: Path, source: str, message: str) -> None:
    install(site, "acme", plugin=source, others={COMMANDS: "polish = polish"})
    assert "kernelyard-acme polish" in " ".join(run("--help").output.split())
    result = run("polish")
    assert result.exit_code == 1
    assert f"kernelyard-acme 1.0 provides 'polish', which {message}" in result.stderr
    assert run("inspect", "--help").exit_code == 0


def test_a_command_of_two_distributions_is_refused(site: Path) -> None:
    for name in ("acme", "bolt"):
        install(site, name, plugin=SOURCE, others={COMMANDS: "polish = polish"})
    assert "kernelyard-acme polish kernelyard-bolt polish" in " ".join(run("--help").output.split())
    result = run("polish")
    assert result.exit_code == 1
    assert "several distributions provide 'polish'" in result.stderr
