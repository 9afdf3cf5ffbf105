"""Wheels of models: pip installs them, and they run without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from deployed_model import FACTS, expected

from kernelyard.cli.main import main
from kernelyard_deploy import ExportError, Facts, export_wheel
from kernelyard_deploy.wheel import package_name

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/read_page"
# What compiles: the compiler's own rooms, and the libraries that generate code. PATH has no C compiler.
WITHOUT_COMPILER = """
import sys
rooms = ("ir", "ops", "tir", "legalize", "patterns", "transform", "placement", "driver", "cli", "plugins")
for name in ("llvmlite", "onnx", *(f"kernelyard.{room}" for room in rooms)):
    sys.modules[name] = None
"""


def install(wheel: Path, site: Path) -> None:
    """Install a wheel as pip does, without what it requires, which is here already."""
    options = ("-q", "--no-index", "--no-deps", "--disable-pip-version-check", "--target", str(site))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True, capture_output=True)


def run(code: str, site: Path, *arguments: str) -> str:
    """Return the output of Python where the wheel is installed and nothing compiles."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": "", "CC": "/nowhere"}
    command = [sys.executable, "-c", WITHOUT_COMPILER + code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name).decode()


def test_a_wheel_brings_the_model_and_a_function(artifact: Path, tmp_path: Path) -> None:
    wheel = export_wheel(artifact, tmp_path / "dist", replace(FACTS, description="Scores rows"))
    assert wheel.name.startswith("scorer-1.2-py3-none-manylinux_2_17_")
    install(wheel, tmp_path / "site")
    np.save(tmp_path / "x.npy", X)
    code = "import numpy as np, scorer; np.save(sys.argv[2], scorer.predict(x=np.load(sys.argv[1]))['output_0'])"
    run(code, tmp_path / "site", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(X), rtol=1e-5)
    assert "x: float32 ['n', 4] -> output_0" in run("import scorer; print(scorer.__doc__)", tmp_path / "site")


def test_pip_is_told_what_the_model_needs(artifact: Path, tmp_path: Path) -> None:
    lines = metadata(export_wheel(artifact, tmp_path, FACTS, requires=["pillow >= 10"])).splitlines()
    assert {"Name: scorer", "Version: 1.2", "License-Expression: Apache-2.0"} <= set(lines)
    needed = [line.removeprefix("Requires-Dist: ").split(">=")[0] for line in lines if line.startswith("Requires-Dist")]
    assert needed == ["kernelyard", "kernelyard-native-cpu", "pillow"]


def test_the_same_model_gives_the_same_wheel(artifact: Path, tmp_path: Path) -> None:
    first, second = (export_wheel(artifact, tmp_path / name, FACTS) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert first.name == second.name


def test_several_models_and_code(artifact: Path, compiled: Callable[..., Path], tmp_path: Path) -> None:
    other = compiled(lambda b: b.op("exp", b.input("x", (3,))), "second")
    package = tmp_path / "code"
    package.mkdir()
    (package / "__init__.py").write_text("from ._models import NAMES, load\nfrom .tools import twice\n")
    (tmp_path / "tools.py").write_text("def twice(x):\n    return 2 * x\n")
    wheel = export_wheel(
        [artifact, other], tmp_path / "dist", replace(FACTS, name="two"), code=[package, tmp_path / "tools.py"]
    )
    install(wheel, tmp_path / "site")
    code = (
        "import numpy as np, two; print(two.NAMES, two.twice(4), two.load('second')(np.zeros(3, np.float32)).numpy())"
    )
    assert run(code, tmp_path / "site") == "('scorer', 'second') 8 [1. 1. 1.]\n"


def test_a_wheel_for_another_architecture_says_so(tmp_path: Path) -> None:
    import kernelyard as ky
    from kernelyard.ir import FunctionBuilder, IRModule

    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("exp", b.input("x", (3,))))})
    ky.compile(module, ky.Target("cpu", arch="aarch64", mcpu="cortex-a72"), backends=[]).save(tmp_path / "m.kyar")
    assert export_wheel(tmp_path / "m.kyar", tmp_path).name == "m-1.0-py3-none-manylinux_2_17_aarch64.whl"


@pytest.mark.parametrize(
    ("name", "package"), [("Page-Reader", "page_reader"), ("3d.net", "model_3d_net"), ("class", "model_class")]
)
def test_package_names(name: str, package: str) -> None:
    assert package_name(name) == package


def test_what_cannot_be_a_wheel_is_refused(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "_models.py").write_text("")
    refused = {"code": [tmp_path / "_models.py"]}, {"code": [tmp_path / "none.py"]}, {"requires": ["pillow >"]}
    for options in refused:
        with pytest.raises(ExportError):
            export_wheel(artifact, tmp_path / "dist", FACTS, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ExportError, match="the same name"):
        export_wheel([artifact, artifact], tmp_path / "dist", FACTS)
    with pytest.raises(ExportError, match="at least one"):
        export_wheel([], tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_text_of_facts_is_no_code(artifact: Path, tmp_path: Path) -> None:
    evil = Facts(name="evil", description='""" + print("ran") + """ \\')
    install(export_wheel(artifact, tmp_path / "dist", evil), tmp_path / "site")
    assert "ran" not in run("import evil", tmp_path / "site")


def test_the_command_makes_a_wheel(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("")
    arguments = ["--wheel", str(tmp_path / "dist"), "--code", str(tmp_path / "tools.py"), "--name", "scores"]
    result = CliRunner().invoke(main, ["export", str(artifact), *arguments])
    assert result.exit_code == 0, result.output
    (wheel,) = (tmp_path / "dist").iterdir()
    assert result.output.strip() == str(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert {"scores/tools.py", "scores/_models.py", "scores/models/scorer.kyar"} <= set(archive.namelist())
    assert CliRunner().invoke(main, ["export", str(artifact), "--code", "tools.py"]).exit_code == 2


@pytest.mark.slow
def test_the_page_reader_reads_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel of the example: three networks and the code between them, without a compiler."""
    from page import LINES, draw_page

    monkeypatch.syspath_prepend(str(EXAMPLE))
    import wheel as example

    draw_page().save(tmp_path / "page.png")
    wheel = example.make_wheel(tmp_path / "dist")
    install(wheel, tmp_path / "site")
    code = "import page_reader; print(*(line.text for line in page_reader.read(sys.argv[1])), sep='\\n')"
    lines = run(code, tmp_path / "site", str(tmp_path / "page.png")).splitlines()
    assert lines == [text for text, _ in LINES]
    assert "kernelyard-native-cpu" in metadata(wheel)


@pytest.mark.deploy_tools
def test_the_page_reader_in_a_bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip brings all that the wheel names: the core and the runtime halves from this checkout, the rest from its index."""
    from page import LINES, draw_page

    monkeypatch.syspath_prepend(str(EXAMPLE))
    import wheel as example

    draw_page().save(tmp_path / "page.png")
    wheel = example.make_wheel(tmp_path / "dist", backends=[])
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"
    sources = [str(ROOT), *(str(ROOT / "plugins" / name) for name in ("llvm", "native-cpu"))]
    subprocess.run([python, "-m", "pip", "install", "-q", *sources, wheel], check=True, capture_output=True)
    code = "import sys, page_reader; print(*(line.text for line in page_reader.read(sys.argv[1])), sep='\\n')"
    environment = {"PATH": "", "CC": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run([python, "-c", code, tmp_path / "page.png"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [text for text, _ in LINES]
