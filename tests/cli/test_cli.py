"""The command line: what each command says to people and to machines, and how it refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import statistics
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import kernelyard as ky
from kernelyard.cli.main import COMMANDS, main
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.runtime.jit.c_compiler import COMPILERS

WITH_MODEL = ("bench", "compile", "explain", "inspect", "run")
LONG = "x" * 300  # of letters: no file system takes such a name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with m.onnx (x (batch, 3) -> y, z), the same compiled for dnnl as m.kyar, and x.npy."""
    from onnx import TensorProto, helper

    folder = tmp_path_factory.mktemp("models")
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Div", ["x", "x"], ["z"])]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xyz"}
    graph = helper.make_graph(nodes, "g", [values["x"]], [values["y"], values["z"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"author": "somebody", "story": "word " * 50})
    onnx.save(model, folder / "m.onnx")
    ky.compile(folder / "m.onnx", backends=["dnnl"]).save(folder / "m.kyar")
    np.save(folder / "x.npy", np.float32([[-1, 0, 2]]))
    return folder


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """cli(*arguments): run a command in the folder of models."""
    monkeypatch.chdir(folder)
    return lambda *arguments: CliRunner().invoke(main, list(arguments), prog_name="kernelyard")


def done(result: Result) -> str:
    """The output of a command that succeeded and had nothing to complain about."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def data(result: Result) -> Any:
    """The JSON of a command that succeeded; nothing that JSON does not have."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(done(result), parse_constant=refuse)


# --- each command -----------------------------------------------------------------------------------------------------
def test_help_lists_every_command(cli) -> None:
    text = done(cli("--help"))
    for name, summary in COMMANDS.items():
        assert f"  {name} " in text
        assert summary.split()[0] in text
    assert "kernelyard, version" in done(cli("--version"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(cli, name: str) -> None:
    text = done(cli(name, "--help"))
    assert text.startswith(f"Usage: kernelyard {name}")
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80


def test_compile(cli, folder: Path) -> None:
    lines = done(cli("compile", "m.onnx", "-o", "new.kyar", "--backends", "dnnl")).splitlines()
    assert lines[0].startswith("dnnl ")
    assert lines[1].startswith("new.kyar")
    assert (folder / "new.kyar").read_bytes() == (folder / "m.kyar").read_bytes()
    facts = data(cli("compile", "m.onnx", "-o", "new.kyar", "--backends", "none", "--json"))
    assert facts["artifact"] == "new.kyar"
    assert facts["bytes"] == (folder / "new.kyar").stat().st_size
    assert list(facts["report"]["coverage"]) == ["native-cpu"]


def test_compile_writes_all_or_nothing(cli, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "bad.onnx").write_bytes((folder / "m.onnx").read_bytes()[:50])
    for arguments in (
        ("bad.onnx", "-o", "m.kyar"),
        ("bad.onnx",),
        ("m.onnx", "-o", "no/such/folder/m.kyar"),
        ("m.onnx", "-o", "."),
        ("m.onnx", "-o", "m.onnx"),  # the model
        ("m.onnx", "-o", "pipe"),
        ("m.onnx", "-o", LONG),
        ("",),
        (LONG,),
        ("m.onnx", "-o", "m.kyar", "--backends", "nonsense"),
    ):
        result = cli("compile", *arguments)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("[KY")
    (folder / "bad.onnx").unlink()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "pipe").unlink()


def test_run_on_files_and_on_random_numbers(cli, folder: Path) -> None:
    for model in ("m.onnx", "m.kyar"):
        facts = data(cli("run", model, "-i", "x=x.npy", "-o", "results", "--json"))
        assert facts["y"] == {
            "dtype": "float32", "shape": [1, 3], "min": 0.0, "mean": pytest.approx(2 / 3), "max": 2.0,
            "file": os.path.join("results", "0.npy"),
        }  # fmt: skip
        assert facts["z"]["min"] is None  # 0 / 0, which JSON cannot say
        assert np.load(folder / facts["y"]["file"]).tolist() == [[0, 0, 2]]
    assert data(cli("run", "m.kyar", "--dim", "batch=5", "--threads", "1", "--json"))["y"]["shape"] == [5, 3]
    assert done(cli("run", "m.kyar")).startswith("y: dtype float32, shape [1, 3], min ")
    assert done(cli("run", "m.kyar")) == done(cli("run", "m.kyar"))


def test_bench(cli) -> None:
    facts = data(
        cli("bench", "m.kyar", "--repeat", "3", "--warm-up", "0", "--dim", "batch=2", "--threads", "1", "--json")
    )
    assert list(facts) == [
        "ready_s", "first_run_ms", "p10_ms", "p50_ms", "p90_ms", "p99_ms", "runs_per_second", "repeat", "threads", "shapes",
    ]  # fmt: skip
    assert (facts["threads"], facts["shapes"], facts["repeat"]) == (1, {"x": [2, 3]}, 3)
    assert 0 < facts["p10_ms"] <= facts["p99_ms"]
    assert "runs/s" in done(cli("bench", "m.onnx", "--repeat", "3"))


def test_bench_shows_where_the_time_goes(cli, folder: Path) -> None:
    facts = data(cli("bench", "m.kyar", "--repeat", "1", "--profile", "--trace", "trace.json", "--json"))
    steps = facts["profile"]["steps"]
    assert steps
    assert sum(step["share"] for step in steps) == pytest.approx(1)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and not event["cat"].endswith(" part")]
    calls = [event for event in slices if event["cat"] == "call"]
    assert len(calls) == facts["profile"]["calls"]
    timed = [event for event in slices if event not in calls]
    assert [event["args"]["function"] for event in timed] == [step["symbol"] for step in steps] * len(calls)
    for number, step in enumerate(steps):
        durations = [event["dur"] for event in timed[number :: len(steps)]]
        assert statistics.median(durations) == pytest.approx(step["seconds"] * 1e6)
    assert facts["profile"]["explained"] > 0
    shown = done(cli("bench", "m.onnx", "--backends", "dnnl", "--repeat", "1", "--profile"))
    assert all(word in shown for word in ("share", "GFLOP/s", steps[0]["symbol"], "a whole call", "% of a call"))
    (folder / "trace.json").unlink()


def test_explain(cli, folder: Path) -> None:
    report = data(cli("explain", "m.onnx", "--json"))
    assert list(report) == [
        "target", "precision", "summary", "coverage", "placed", "regions", "declined", "kernels", "violations", "nodes",
    ]  # fmt: skip
    assert report["regions"] == data(cli("compile", "m.onnx", "-o", "new.kyar", "--json"))["report"]["regions"]
    text = done(cli("explain", "m.onnx"))
    assert text.splitlines()[0] == report["summary"]
    assert text.rstrip("\n") == str(ky.explain(folder / "m.onnx"))


def test_explain_requires(cli) -> None:
    assert cli("explain", "m.onnx", "--require", "native-cpu=0", "--strict").exit_code == 0
    facts = json.loads(cli("explain", "m.onnx", "--backends", "none", "--require", "dnnl=0.9", "--json").output)
    assert facts["error"]["code"] == "KY150"
    assert cli("explain", "m.onnx", "--require", "dnnl").exit_code == 2
    assert "did you mean" in cli("explain", "m.onnx", "--exclude-pattern", "dnnl.matmull").output


def test_explain_honours_options(cli) -> None:
    fixed = data(cli("explain", "m.onnx", "--option", 'onnx.shapes={"x": [2, 3]}', "--backends", "none", "--json"))
    assert fixed["coverage"]["native-cpu"]["flops"] == 12
    refused = cli("explain", "m.onnx", "--option", "onnx.shape=3")
    assert refused.exit_code == 1
    assert "did you mean 'shapes'" in refused.stderr


def test_precision(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that compiles takes it; an artifact says it, and has none to choose."""
    monkeypatch.setattr("kernelyard.driver.session.precision.cpu_flags", lambda _: frozenset({"avx512_bf16"}))
    facts = data(cli("explain", "m.onnx", "--precision", "bf16", "--json"))
    assert (facts["precision"], facts["summary"][:4]) == ("bf16", "bf16")
    assert done(cli("compile", "m.onnx", "-o", "narrow.kyar", "--precision", "bf16")).startswith("bf16")
    assert data(cli("inspect", "narrow.kyar", "--json"))["precision"] == "bf16"
    assert "in bf16" in done(cli("inspect", "narrow.kyar"))
    for command in (["run"], ["bench", "--repeat", "1"]):
        assert data(cli(*command, "m.onnx", "--precision", "bf16", "--json"))
        refused = cli(*command, "narrow.kyar", "--precision", "bf16")
        assert refused.exit_code == 2
        assert "compiled already" in refused.output
    refused = cli("explain", "m.onnx", "--precision", "bf1")
    assert refused.exit_code == 1
    assert "did you mean 'bf16'" in refused.stderr


def test_inspect(cli, folder: Path) -> None:
    facts = data(cli("inspect", "m.kyar", "--json"))
    keys = ["target", "precision", "programs", "modules", "variants", "sizes", "alternatives", "constants", "metadata"]
    assert list(facts) == [*keys, "report"]
    (program,) = facts["programs"]
    assert program["name"] == "main"
    assert program["inputs"] == [{"name": "x", "shape": ["batch", 3], "dtype": "float32"}]
    assert [spec["name"] for spec in program["outputs"]] == ["y", "z"]
    assert facts["metadata"]["story"] == "word " * 50
    assert facts["modules"][0]["requires"]["distribution"] == "kernelyard-dnnl"
    text = done(cli("inspect", "m.kyar"))
    for fact in ("input  x: float32 [batch, 3]", "module dnnl of kernelyard-dnnl", "metadata author: somebody", "..."):
        assert fact in text
    assert "main(" in done(cli("inspect", "m.kyar", "--code"))
    assert "main(" in data(cli("inspect", "m.kyar", "--code", "--json"))["code"]


@pytest.mark.parametrize("kind", ["artifact", "library"])
@pytest.mark.parametrize("name", ["m", "m.bin", "also.onnx"])
def test_what_a_file_is_does_not_follow_from_its_name(cli, folder: Path, name: str, kind: str) -> None:
    if kind == "library" and not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C compiler is installed here")
    exe = ky.compile(folder / "m.onnx", backends=[])
    exe.save(folder / name) if kind == "artifact" else exe.export_library(folder / name)
    assert data(cli("run", name, "-i", "x=x.npy", "--json"))["y"]["max"] == 2
    assert data(cli("bench", name, "--repeat", "1", "--json"))["shapes"] == {"x": [1, 3]}
    assert data(cli("inspect", name, "--json"))["programs"][0]["name"] == "main"
    assert data(cli("explain", name, "--json")) == data(cli("inspect", name, "--json"))["report"]
    assert "compiled already" in cli("explain", name, "--backends", "none").stderr
    (folder / name).unlink()


def test_a_model_may_be_called_as_an_artifact_is(cli, folder: Path) -> None:
    (folder / "model.kyar").write_bytes((folder / "m.onnx").read_bytes())
    for command in ("run", "bench", "explain"):
        refused = cli(command, "model.kyar")  # the frontend for ONNX goes by names; the artifact loader is not asked
        assert "no installed frontend reads this model" in refused.stderr
    (folder / "model.kyar").unlink()


def test_explain_wants_a_report(cli, folder: Path) -> None:
    exe = ky.load(folder / "m.kyar")
    exe.report_json = None
    exe.save(folder / "silent")
    refused = cli("explain", "silent")
    assert refused.exit_code == 1
    assert "saved without a report" in refused.stderr
    (folder / "silent").unlink()


@pytest.mark.parametrize("name", ["run", "bench", "explain", "inspect"])
def test_a_library_without_an_artifact(cli, folder: Path, name: str) -> None:
    (folder / "plain.so").write_bytes(Path(np.linalg._umath_linalg.__file__).read_bytes())
    refused = cli(name, "plain.so")
    assert refused.exit_code == 1
    assert "a library without a Kernelyard artifact" in refused.stderr
    (folder / "plain.so").unlink()


def test_inspect_needs_no_plugin(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelyard.runtime.abi import runtime_halves

    monkeypatch.setattr(runtime_halves, "runtime_entry_points", lambda: ())
    monkeypatch.setattr(runtime_halves, "find_distribution", lambda name: None)
    assert "kernelyard-dnnl" in done(cli("inspect", "m.kyar"))
    refused = cli("run", "m.kyar")
    assert refused.exit_code == 1
    assert "pip install 'kernelyard-dnnl" in refused.stderr


def installed() -> set[str]:
    """The plugins that this Python has."""
    return {entry.name for entry in entry_points(group="kernelyard")}


def test_backends(cli) -> None:
    infos = data(cli("backends", "--json"))
    states = {info["name"]: info["state"] for info in infos}
    assert set(states) == installed()
    assert {states[name] for name in ("dnnl", "native-cpu", "native-cuda", "onnx")} == {"active"}
    assert list(infos[0])[:6] == ["name", "dist", "version", "api", "state", "reason"]
    text = done(cli("backends"))
    assert re.search(r"dnnl +active +backend for cpu", text)
    places = {info["name"]: info["asked"]["cpu"] for info in infos if "cpu" in info["asked"]}
    assert sorted(places.values()) == list(range(1, len(places) + 1))
    assert places["dnnl"] == 1
    assert "asked for cpu with backends='auto': dnnl (states costs)" in text


def test_explain_shows_kernels(cli) -> None:
    lines = done(cli("explain", "m.onnx", "--kernels", "--backends", "none")).splitlines()
    assert lines[0].startswith(f"{len(lines) - 2} kernel")
    assert lines[1].split() == ["kernel", "by", "calls", "ops", "fused", "into", "it"]
    assert all(line.split()[1] == "native-cpu" for line in lines[2:])


def test_doctor(cli) -> None:
    facts = data(cli("doctor", "--json"))
    assert facts["healthy"] is True
    assert facts["versions"]["kernelyard"] == ky.__version__
    assert facts["runtimes"]["dnnl"]["reason"] == ""
    assert facts["generators"]["native-cpu"]["kernel cache"]
    assert done(cli("doctor")).endswith("all in order\n")


def test_doctor_says_which_settings_cannot_be(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "many")
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", "/proc/nowhere")
    size, folder = data(cli("doctor", "--json"))["notes"]
    assert "KERNELYARD_CACHE_MB=many is no number" in size
    assert "/proc/nowhere is not writable" in folder


# --- how it refuses ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_missing_file(cli, name: str) -> None:
    result = cli(name, "absent.kyar" if name == "inspect" else "absent.onnx")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("[KY")
    assert "absent" in result.stderr
    assert "Traceback" not in result.stderr
    error = json.loads(cli(name, "absent.onnx", "--json").stdout)["error"]
    assert list(error) == ["code", "error", "message", "where", "found", "expected", "hint", "page"]
    assert error["code"] in {"KY400", "KY600"}
    assert error["page"] == f"docs/errors.md#{error['code'].lower()}"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "fact"),
    [
        (["comple"], 2, "did you mean 'compile'?"),
        (["zzz"], 2, "one of backends, bench"),
        (["compile"], 2, "MODEL"),
        (["run", "m.kyar", "--threds", "1"], 2, "--threads"),
        (["run", "m.kyar", "--threads", "0"], 2, "--threads"),
        (["run", "m.kyar", "--backends", "dnnl"], 2, "compiled already"),
        (["run", "m.kyar", "--dim", "batch"], 2, "write NAME=N"),
        (["run", "m.kyar", "--dim", "btch=2"], 1, "did you mean 'batch'?"),
        (["run", "m.kyar", "--dim", f"batch={10**12}"], 1, "no array can have"),
        (["run", "m.kyar", "--dim", f"batch={10**20}"], 1, "no array can have"),
        (["run", LONG], 1, "no such model file"),
        (["bench", "m.kyar", "--repeat", "1", "--trace", "no/such/folder/t.json"], 2, "cannot be written"),
        (["run", "m.kyar", "--input", "x"], 2, "write NAME=FILE.npy"),
        (["run", "m.kyar", "--input", "xx=x.npy"], 1, "did you mean 'x'?"),
        (["run", "m.kyar", "--input", "x=gone.npy"], 1, "gone.npy"),
        (["run", "m.kyar", "--input", "x=m.onnx"], 1, ".npy file"),
        (["run", "m.kyar", "-o", "x.npy"], 1, "cannot be written"),
        (["explain", "m.onnx", "--option", "speed"], 2, "write PLUGIN.KEY=VALUE"),
        (["explain", "m.onnx", "--backends", "dnl"], 1, "did you mean 'dnnl'?"),
        (["explain", "m.onnx", "--backends", "DNNL"], 1, "did you mean 'dnnl'?"),
        (["explain", "m.onnx", "--backends", ""], 2, "auto, or none"),
        (["explain", "m.onnx", "--precision", "FLOAT32"], 1, "did you mean 'float32'?"),
        (["explain", "m.onnx", "--precision", ""], 1, "int8_weights"),
        (["explain", "m.onnx", "--target", "gpu"], 1, "did you mean 'cuda'?"),
        (["explain", "m.onnx", "--target", "CPU"], 1, "did you mean 'cpu'?"),
        (["explain", "m.onnx", "--target", ""], 1, "an identifier"),
        (["-p", "dnnl", "backends"], 2, "write -p no:NAME"),
        (["-p", "no:dnl", "backends"], 1, "did you mean 'dnnl'?"),
        (["inspect", "m.onnx"], 1, "no Kernelyard artifact"),
    ],
)
def test_refusals_name_the_way_out(cli, arguments: list[str], exit_code: int, fact: str) -> None:
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert fact in result.stderr
    as_json = cli(*arguments, "--json")
    assert as_json.exit_code == exit_code
    assert fact in json.dumps(json.loads(as_json.stdout)["error"], ensure_ascii=False)


def test_explain_shows_what_patterns_meet(cli) -> None:
    text = done(cli("explain", "m.onnx", "--offered"))
    assert "= nn.relu(" in text
    assert "call_tir" not in text  # no kernels yet
    assert cli("explain", "m.onnx", "--offered", "--kernels").exit_code == 2


def test_blocking_a_plugin_lasts_for_one_command(cli) -> None:
    states = {info["name"]: info for info in data(cli("-p", "no:dnnl", "-p", "no:onnx", "backends", "--json"))}
    assert states["dnnl"]["state"] == states["onnx"]["state"] == "blocked"
    assert states["dnnl"]["hint"] == "leave out -p no:dnnl"
    assert "blocked by the caller" in done(cli("-p", "no:dnnl", "backends"))
    refused = cli("-p", "no:onnx", "explain", "m.onnx")
    assert refused.exit_code == 1
    assert "KY404" in refused.stderr
    assert "blocked" not in done(cli("backends"))


# --- as a process -----------------------------------------------------------------------------------------------------
def run_process(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    command = [sys.executable, "-c", "from kernelyard.cli.main import main; main()", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_commands_are_installed() -> None:
    script = Path(sys.executable).with_name("kernelyard")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == f"kernelyard, version {ky.__version__}\n"


def test_a_process_prints_plain_text_and_valid_json(folder: Path) -> None:
    plain = run_process(folder, "explain", "m.onnx")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "\x1b" not in plain.stdout
    assert json.loads(run_process(folder, "bench", "m.kyar", "--repeat", "2", "--json").stdout)["threads"] >= 1
    refused = run_process(folder, "run", "absent.kyar", "--json")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert json.loads(refused.stdout)["error"]["code"] == "KY400"  # what is not there is no artifact


def test_a_fallback_is_a_warning(folder: Path) -> None:
    blocked = [word for name in installed() if name != "onnx" for word in ("-p", f"no:{name}")]
    done = run_process(folder, *blocked, "run", "m.onnx")
    assert done.returncode == 0
    assert done.stderr == "warning: these ops run on the slow reference interpreter: divide, nn.relu\n"


def test_variables_block_plugins(folder: Path) -> None:
    def states(**environment: str) -> dict[str, str]:
        done = run_process(folder, "backends", "--json", **environment)
        return {info["name"]: info["state"] for info in json.loads(done.stdout)}

    blocked = dict.fromkeys(installed(), "blocked")
    assert states(KERNELYARD_PLUGINS="onnx") == {**blocked, "onnx": "active"}
    assert set(states(KERNELYARD_DISABLE_PLUGIN_AUTOLOAD="1").values()) == {"blocked"}


def test_a_broken_plugin_is_named_and_the_rest_works(folder: Path, tmp_path: Path) -> None:
    from fake_distribution import install

    install(tmp_path, "acme", plugin="raise RuntimeError('no luck')")
    install(tmp_path, "dnnl", distribution="acme-tools")
    install(tmp_path, "older", manifest='name = "older"\napi = "<1"\nprovides = ["backend"]')
    doctor = run_process(folder, "doctor", PYTHONPATH=str(tmp_path))
    assert doctor.returncode == 1
    for fact in (
        "to mend: acme (kernelyard-acme): broken",
        "RuntimeError: no luck",
        "to mend: dnnl (acme-tools): broken",
        "to mend: older (kernelyard-older): incompatible",
    ):
        assert fact in doctor.stdout
    listed = run_process(folder, "backends", PYTHONPATH=str(tmp_path))
    assert listed.returncode == 0
    assert "RuntimeError: no luck" in listed.stdout
    assert run_process(folder, "run", "m.onnx", PYTHONPATH=str(tmp_path)).returncode == 0


def test_progress_is_for_terminals_only(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from kernelyard.cli.main import main; main()",
        "compile",
        "m.onnx",
        "-o",
        "new.kyar",
    ]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    process = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=theirs, timeout=120)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "compiling m.onnx" in shown
    assert b"compiling" not in process.stdout
    assert run_process(folder, "compile", "m.onnx", "-o", "new.kyar").stderr == ""


@pytest.fixture(autouse=True, scope="module")
def fresh_manager():
    """Leave no blocked plugins behind."""
    yield
    get_manager.cache_clear()


def test_explain_writes_a_page(cli, folder: Path) -> None:
    assert "m.html" in done(cli("explain", "m.onnx", "--html", "m.html"))
    assert (folder / "m.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    refused = cli("explain", "m.onnx", "--html", "missing/m.html")
    assert refused.exit_code == 2
    assert "No such file" in refused.output


def test_the_interpreter_runs_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "kernelyard", "--version"], capture_output=True, text=True, check=True)
    assert ky.__version__ in done.stdout
