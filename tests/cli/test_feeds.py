"""Feeds of commands: arrays from files, in one form for all commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx.parser
import pytest
from click.testing import CliRunner, Result

import kernelyard as ky
from kernelyard.cli.main import main

MODEL = '<ir_version: 8, opset_import: ["": 17]> net (float[n,3] x) => (float[n,3] y) { y = Relu(x) }'


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run commands in a folder with m.kyar (x (n, 3) -> y), and files of arrays."""
    ky.compile(onnx.parser.parse_model(MODEL)).save(tmp_path / "m.kyar")
    np.save(tmp_path / "x.npy", np.array([[-1, 0, 2]], np.float32))
    np.savez(tmp_path / "feeds.npz", x=np.array([[5, 5, 5], [-1, 0, 3]], np.float32))
    np.savez(tmp_path / "other.npz", xx=np.array([1], np.float32))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def facts(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("given", "shape", "largest"),
    [
        (("--input", "x=x.npy"), [1, 3], 2),
        (("--feeds", "feeds.npz"), [2, 3], 5),
        (("--feeds", "feeds.npz", "-i", "x=x.npy"), [1, 3], 2),  # what is given by itself counts
    ],
)
def test_arrays_come_from_files(cli, given: tuple[str, ...], shape: list[int], largest: float) -> None:
    found = facts(cli("run", "m.kyar", *given, "--json"))["y"]
    assert (found["shape"], found["max"]) == (shape, largest)
    assert facts(cli("bench", "m.kyar", "--repeat", "1", *given, "--json"))["shapes"] == {"x": shape}


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        (("--feeds", "gone.npz"), "gone.npz"),
        (("--feeds", "m.kyar"), "an .npz file with an array for each input"),
        (("--feeds", "x.npy"), "--input NAME=x.npy"),
        (("--feeds", "other.npz"), "did you mean 'x'?"),
        (("--input", "x=feeds.npz"), "--feeds feeds.npz"),
    ],
)
def test_refusals_name_the_way_out(cli, given: tuple[str, ...], fact: str) -> None:
    result = cli("run", "m.kyar", *given)
    assert result.exit_code == 1
    assert result.stderr.startswith("[KY")
    assert fact in result.stderr


def test_every_command_takes_them_in_both_forms() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    options = {
        name: {option for param in each.params for option in param.opts} for name, each in commands.items() if each
    }
    taking = {name for name, given in options.items() if given & {"--input", "--feeds"}}
    assert taking >= {"run", "bench", "trace", "view", "tune", "diff", "reduce", "bisect"}
    for name in taking:
        assert {"-i", "--input", "--feeds"} <= options[name], name
