"""The conformance kit: dnnl and the template pass, and a backend that lies, crashes or hangs does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_products import needs_byte_products
from fake_distribution import install

import kernelyard as ky
from kernelyard.errors import DeviceError, PluginError, UnknownBackendError
from kernelyard.plugins.sandbox.worker_process import Worker
from kernelyard.testing import assert_offloaded
from kernelyard.testing.conformance.bench import Bench, Differs
from kernelyard.testing.conformance.cases import LEVELS, all_cases
from kernelyard.testing.conformance.causes import ALIKE, PRINTED, cause_of
from kernelyard.testing.conformance.claims import Gap, parse_claims, read_claims
from kernelyard.testing.conformance.gaps import drop_idle, gap_tables, gaps_of
from kernelyard.testing.conformance.place import device_for, plugins_for
from kernelyard.testing.conformance.scorecard import Line

TEMPLATE = Path(__file__).parents[2] / "_template"


def environment_with(site: Path | None) -> dict[str, str]:
    """Variables of a process that finds the distributions in `site`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELYARD_", "PYTEST_"))}
    path = [str(site)] if site else []
    kept["KERNELYARD_PLUGIN_TRIAL"] = "0"  # the kit runs the plugin in a process of its own anyway
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH")]))}


def examine(backend: str, folder: Path, *arguments: str, site: Path | None = None) -> tuple[dict[str, Any], str]:
    """The scorecard of a run of the kit, and what pytest printed."""
    environment = environment_with(site)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "kernelyard.testing"]
    command += ["--backend", backend, "--scorecard", str(folder / "card"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    card = folder / "card.json"
    assert card.exists(), done.stdout + done.stderr
    return json.loads(card.read_text(encoding="utf-8")), done.stdout


@pytest.mark.slow
def test_dnnl_conforms(tmp_path: Path) -> None:
    card, shown = examine("dnnl", tmp_path)
    assert card["conforms"], shown
    assert card["total"]["passed"] >= 400
    assert all(card["levels"][level]["passed"] for level in LEVELS)
    assert "# dnnl (kernelyard-dnnl" in (tmp_path / "card.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_cublas_conforms_on_the_emulator(tmp_path: Path) -> None:
    pytest.importorskip("kernelyard_cublas", reason="kernelyard-cublas is not installed")
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    card, shown = examine("cublas", tmp_path)
    assert card["conforms"], shown
    assert all(card["levels"][level]["passed"] for level in LEVELS)


def test_backends_are_tried_on_the_device_that_they_are_for() -> None:
    assert [str(device_for(targets)) for targets in ((), ("cpu", "cuda"), ("cuda",))] == ["cpu", "cpu", "cuda:emulator"]
    assert str(device_for(("cuda",), "1")) == "cuda:1"
    assert plugins_for("dnnl") == ("dnnl",)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The template as pip would have installed it, to be changed."""
    folder = tmp_path / "site"
    install(folder, "acme", package="kernelyard_acme", runtime="kernelyard_acme.runtime:load")
    shutil.copytree(TEMPLATE / "src" / "kernelyard_acme", folder / "kernelyard_acme", dirs_exist_ok=True)
    return folder


def change(site: Path, file: str, before: str, after: str) -> None:
    path = site / "kernelyard_acme" / file
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_the_template_conforms(site: Path, tmp_path: Path) -> None:
    card, shown = examine("acme", tmp_path, site=site)
    assert card["conforms"], shown
    assert all(card["levels"][level]["passed"] for level in LEVELS)


MATMUL = "L1 matmul: matrices (float32, parameters)"
FUSED = "L2 matmul, add bias, nn.relu: matrices (float32, fused)"
HOOKS = "L0 its hooks are cheap and print nothing"
# What is changed in the template (file, before, after), the case that finds it, the verdict and a part of its message.
LIES: dict[str, tuple[str, str, str, str, str, str]] = {
    "refuses": ("patterns.py", 'dtype == "float32"', 'dtype == "float16"', MATMUL, "declined", "ran on reference"),
    "refuses what others made": ("patterns.py", 'dtype == "float32"', 'dtype == "float32" and not hasattr(match.value_of(match.captures["data"]), "op")', "L1 matmul: matrices (float32, sliced)", "declined", "matmul ran on reference"),
    "is wrong": ("runtime.py", "np.maximum(total, 0)", "np.maximum(total, 1)", FUSED, "differs", "Mismatched"),
    "breaks its word": ("codegen.py", "serializer = AcmeSerializer()", "serializer = 1 / 0", MATMUL, "error", "ZeroDivisionError"),
    "has a check that raises": ("patterns.py", "def check(match):\n", 'def check(match):\n    match["nothing"]\n', MATMUL, "error", "the check of acme.linear failed: KeyError at patterns.py:7: 'nothing'"),
    "fuses less than it claims": ("patterns.py", 'linear = linear.optional(lambda total: is_op("nn.relu")(total))', "", FUSED, "declined", "nn.relu ran on reference"),
    "claims too much": ("conformance.toml", '["matmul"]', '["matmul", "abs"]', "L1 abs: matrix (float32, parameters)", "declined", "abs ran on reference"),
    "prints": ("plugin.py", "@hookimpl", 'print("hello")\n\n\n@hookimpl', HOOKS, "error", "prints 'hello"),
    "has an idle gap": ("conformance.toml", "symbolic", '[[gaps]]\ncases = "L9 *"\nreason = "none"\n#', "L0 every gap is about a case", "error", "no case matches 'L9 *'"),
    "needs the compiler to run": ("runtime.py", "import numpy as np", "import numpy as np\nimport kernelyard.ir", "L0 its runtime half stands alone", "error", "it imports kernelyard.ir"),
    "trusts the next API": ("manifest.toml", ">=2.0,<3", ">=2.0", "L0 it fits this plugin API, and no untested one", "error", 'add "<3"'),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_backend_is_found_out_that(lie: str, site: Path) -> None:
    file, before, after, case, outcome, message = LIES[lie]
    change(site, file, before, after)
    verdict = ask(case, site)
    assert verdict["outcome"] == outcome, verdict
    assert message in verdict["message"]


def ask(case: str, site: Path) -> dict[str, Any]:
    """The verdict on one case of the changed template."""
    worker = Worker(
        ["-m", "kernelyard.testing.conformance.worker", "acme", "20"],
        environment_with(site) | {"KERNELYARD_PLUGINS": "acme"},
    )
    verdict = worker.ask(case, 60)
    worker.close()
    return verdict


def test_dtypes_that_are_taken_without_a_claim_have_to_be_right(site: Path) -> None:
    case = "L1 unclaimed dtypes of matmul"
    assert ask(case, site)["outcome"] == "passed"  # declined
    change(site, "patterns.py", 'if dtype == "float32"', "if True")
    assert ask(case, site)["outcome"] == "passed"  # NumPy multiplies any dtype
    change(site, "runtime.py", "    total = data", AS_FLOATS)
    verdict = ask(case, site)
    assert verdict["outcome"] == "differs", verdict
    assert "it takes int32, which it does not claim: decline it in the check, or claim it: " in verdict["message"]


AS_FLOATS = """
    if data.dtype.itemsize == 4:  # as a function in C that takes `const float*` reads them
        data, weight, output = data.view("float32"), weight.view("float32"), output.view("float32")
    total = data"""


def test_failures_of_one_cause_are_printed_a_few_times_and_listed(site: Path, tmp_path: Path) -> None:
    raising = "    raise ValueError(f'no kernel for {data.shape[0]} rows')\n    total = data"
    change(site, "runtime.py", "    total = data", raising)
    card, shown = examine("acme", tmp_path, "-k", "L1 and parameters", site=site)
    failed = [case["case"] for case in card["cases"] if case["result"] == "failed"]
    assert len(failed) > PRINTED
    assert f"{PRINTED} failed" in shown
    assert f"{len(failed) - PRINTED} {ALIKE}" in shown
    assert shown.count("no kernel for") >= PRINTED
    _, listed = shown.split("failures by cause")
    assert f"{len(failed)} cases: error: ExecutionError: [KY#] a step failed, found: ValueError" in listed
    assert all(case in listed for case in failed[PRINTED:])
    whole = shown.split("failures by cause")[0]
    assert [case in whole for case in failed] == [True] * PRINTED + [False] * (len(failed) - PRINTED)


def test_causes_leave_out_what_varies() -> None:
    reason = {
        "outcome": "declined",
        "op": "abs",
        "dtype": "int8",
        "message": "abs ran elsewhere\n  acme: rank: 3 is 1 more",
    }
    assert cause_of(reason, "") == "declined: acme: rank: # is # more"
    assert cause_of({**reason, "outcome": "differs"}, "") == "differs: the numbers of abs (int8)"
    closed = {**reason, "outcome": "passed", "message": ""}
    assert cause_of(closed, "the gap 'L1 *' has closed") == "passed: the gap 'L# *' has closed"


def test_after_a_crash_the_other_cases_are_examined(site: Path, tmp_path: Path) -> None:
    change(site, "runtime.py", "    total = data", CRASHES)
    card, shown = examine(
        "acme", tmp_path, "-k", "L1 and (vector or larger or odd) and parameters", "--case-timeout", "4", site=site
    )
    assert {case["outcome"] for case in card["cases"]} == {"crashed", "hung", "passed"}, shown
    assert "SIGSEGV" in shown
    assert "exit status 7" in shown
    assert "no answer within 4 s" in shown


CRASHES = """
    if data.ndim == 1:
        import os
        os._exit(7) if weight.ndim == 2 else os.kill(os.getpid(), 11)
    if data.shape[0] == 1:
        import time
        time.sleep(99)
    total = data"""


def test_gaps_excuse_what_they_name_until_they_close(site: Path, tmp_path: Path) -> None:
    change(
        site, "patterns.py", "return Accept() if", 'return Accept() if match.captures["data"].tensor_type.rank > 1 and'
    )
    change(
        site,
        "conformance.toml",
        "symbolic",
        '[[gaps]]\ncases = "L1 matmul: vector*"\nreason = "it is new"\n[[gaps]]\ncases = "L1 matmul: larger*"\nreason = "none"\n#',
    )
    card, shown = examine("acme", tmp_path, "-k", "L1", site=site)
    found = {case["case"]: (case["result"], case["message"]) for case in card["cases"]}
    assert found["L1 matmul: vectors (float32, parameters)"] == ("gaps", "it is new")
    assert found[MATMUL] == ("passed", "")
    assert "has closed: L1 matmul: larger (float32, parameters) holds" in shown
    assert not card["conforms"]


def test_gaps_are_written_from_a_run(site: Path, tmp_path: Path) -> None:
    change(site, "conformance.toml", '["matmul"]', '["matmul", "abs"]')
    examine("acme", tmp_path, "-k", "abs and L1", "--write-gaps", str(tmp_path / "gaps.toml"), site=site)
    claims = (site / "kernelyard_acme" / "conformance.toml").read_text()
    (gap,) = parse_claims(claims + (tmp_path / "gaps.toml").read_text(), "there").gaps
    assert (gap.cases, gap.outcome) == ("L? abs: *", "declined")
    assert "abs ran on reference" in gap.reason


def test_claims_that_cannot_be_read_are_an_error_of_use(site: Path, tmp_path: Path) -> None:
    change(site, "conformance.toml", '"matmul, nn.relu"', '"matmul, add something"')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "kernelyard.testing"]
    command += ["--backend", "acme", "--write-gaps", "gaps.toml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment_with(site), capture_output=True, text=True, check=False
    )
    shown = done.stdout + done.stderr
    assert "a fused chain cannot be read" in shown
    assert "found: matmul, add something" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "gaps.toml").exists()


def line(case: str, result: str = "failed", outcome: str = "declined", message: str = "declined: no\nsizes") -> Line:
    return Line(case, case.split(" ")[1].rstrip(":"), "float32", result, outcome, message, 0.1)


def test_a_gap_matches_no_case_that_holds() -> None:
    lines = [
        line("L1 abs: a [1]"),
        line("L1 abs: b", "passed", "passed", ""),
        line("L3 abs: a"),
        line("L3 abs: empty", "nothing to run", "nothing", ""),
        line("L1 exp: a", outcome="differs", message="0.1 off\nmore"),
        line("L1 exp: b", outcome="crashed", message="SIGSEGV"),
    ]
    text = gap_tables(gaps_of(lines), lines)
    gaps = parse_claims('ops = ["abs"]\ndtypes = ["float32"]\n' + text, "there").gaps
    assert [(gap.cases, gap.reason, gap.outcome) for gap in gaps] == [
        ("L3 abs: *", "sizes", "declined"),
        ("L1 abs: a [[]1]", "sizes", "declined"),
        ("L1 exp: a", "0.1 off", "differs"),
    ]
    assert text.splitlines()[-1] == "# no gap excuses L1 exp: b: crashed, SIGSEGV"


def test_one_gap_says_that_weights_have_to_be_constants() -> None:
    forms = ("parameters", "strided", "byte-swapped", "sliced")
    message = "matmul ran on reference"
    lines = [line(f"L1 matmul: {sample} (float32, {form})", message=message) for sample in "ab" for form in forms]
    lines += [line(f"L1 matmul: {sample} (float32, constants)", "passed", "passed", "") for sample in "ab"]
    lines += [line("L3 matmul: a (float32, threads)", message=message)]
    lines += [line("L3 matmul: a (float32, symbolic leading)", "passed", "passed", "")]
    assert [gap.cases for gap in gaps_of(lines)] == [
        "L1 matmul: * (*, [!c]*)",
        "L3 matmul: a (float32, threads)",
    ]


QUANTIZED = 'quantized = ["nn.conv2d", "nn.conv2d, add channels, nn.relu"]\nstored = ["uint8"]'


@needs_byte_products
def test_quantized_chains_are_chains_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "L2 nn.conv2d, add channels, nn.relu: padded, strided (uint8, quantized)"
    case, bench = all_cases("dnnl", parse_claims(QUANTIZED, "there"))[name], Bench("dnnl")
    compiled: list[ky.Executable] = []
    right, compile_it = bench.outputs, bench.compile
    monkeypatch.setattr(bench, "compile", lambda module: compiled.append(compile_it(module)) or compiled[-1])
    case.run(bench)
    (exe,) = compiled
    assert_offloaded(exe, "dnnl", count=1)
    assert {spec.dtype for spec in (*exe.inputs, *exe.outputs)} == {"uint8"}
    monkeypatch.setattr(bench, "outputs", lambda *given: [each + np.uint8(1) for each in right(*given)])
    with pytest.raises(Differs, match=r"\d% of the integers differ, by up to \d"):
        case.run(bench)


def test_what_is_declined_alone_is_no_chain() -> None:
    """One gap serves all chains of a sample."""
    claims = parse_claims(QUANTIZED + '\n[[gaps]]\ncases = "L? nn.conv2d: dilated (*"\nreason = "none"', "there")
    dilated = [case for case in all_cases("dnnl", claims) if "dilated" in case]
    assert dilated == ["L2 nn.conv2d: dilated (uint8, quantized)"]


def test_integers_that_have_no_samples_get_those_of_floats() -> None:
    cases = all_cases("dnnl", parse_claims('ops = ["concat"]\ndtypes = ["int8"]', "there"))
    assert "L1 concat: last axis (int8, parameters)" in cases


def test_a_claim_that_nothing_would_test_is_told() -> None:
    cases = all_cases("dnnl", parse_claims('ops = ["erf"]\ndtypes = ["int8"]', "there"))
    with pytest.raises(AssertionError, match="no sample of erf in int8"):
        cases["L0 every claim is about a sample"].run(Bench("dnnl"))


def test_one_gap_serves_a_sample_and_chains_need_none() -> None:
    claims = parse_claims('ops = ["matmul"]\ndtypes = ["float32"]\nfused = ["matmul, nn.relu"]', "there")
    lines = [
        line("L1 matmul: vectors (float32, parameters)"),
        line("L1 matmul: vectors (float32, constants)"),
        line(MATMUL, "passed", "passed", ""),
        line("L2 matmul, nn.relu: vectors (float32, fused)"),
    ]
    gaps = gaps_of(lines)
    assert [gap.cases for gap in gaps] == ["L? matmul: vectors (*", "L2 matmul, nn.relu: vectors (float32, fused)"]
    assert [gap.cases for gap in drop_idle(gaps, "acme", claims)] == ["L? matmul: vectors (*"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ops = ", "not valid TOML"),
        ('ops = ["matmul"]', "lack operators or dtypes"),
        ('ops = ["matmull"]\ndtypes = ["float32"]', "unknown operator"),
        ('ops = ["matmul"]\ndtypes = ["float31"]', "unknown entry"),
        ('ops = ["matmul"]\ndtypes = "float32"', "wrong type"),
        ('ops = ["matmul"]\ndtypes = ["float32"]\nspeed = 3', "unknown field 'speed'"),
        ('ops = ["matmul"]\ndtypes = ["float32"]\nfused = ["matmul, add something"]', "fused chain"),
        ('ops = ["matmul"]\ndtypes = ["float32"]\n[[gaps]]\ncases = "*"', "gap cannot be read"),
        ('ops = ["matmul"]\ndtypes = ["float32"]\n[[gaps]]\ncases = "*"\nreason = " "', "gap cannot be read"),
    ],
)
def test_faults_of_claims_are_named(text: str, fault: str) -> None:
    with pytest.raises(PluginError, match="KY300") as error:
        parse_claims(text, "conformance.toml")
    assert fault in str(error.value)


def test_claims_of_plugins() -> None:
    claims = read_claims("dnnl")
    assert claims.ops["matmul"] == ("float32",)
    assert isinstance(claims.gap_of("L1 exp: special values (float32, strided)"), Gap)
    with pytest.raises(UnknownBackendError):
        read_claims("dnll")
    with pytest.raises(PluginError, match=r"no readable conformance\.toml"):
        read_claims("onnx")


def test_other_runs_of_pytest_do_not_have_the_options(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--backend", "dnnl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "unrecognized arguments: --backend" in done.stderr
    code = "import sys, kernelyard_testing.pytest_plugin\nassert not {'kernelyard', 'numpy', 'pytest', 'pluggy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
