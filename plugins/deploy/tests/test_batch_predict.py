"""Batch jobs: every row once, whatever is killed, and whenever."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from deployed_model import FACTS, expected

from kernelyard.cli.main import main
from kernelyard_deploy import BatchJobError, Predictor, describe, predict_table, supervisor
from kernelyard_deploy.batch_job import run_shard

ROWS = 1000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows with keys."""
    return write_table(tmp_path / "rows.npz", ROWS)


def write_table(path: Path, rows: int) -> Path:
    x = np.random.default_rng(rows).standard_normal((rows, 4))
    np.savez(path, x=x, id=np.arange(rows))
    return path


def check(parts: tuple[Path, ...], *tables: Path) -> None:
    """Each row of the tables is in the parts once, in order, with its result."""
    found = [dict(np.load(part)) for part in parts]
    given = [dict(np.load(path)) for path in tables]
    np.testing.assert_array_equal(
        np.concatenate([each["id"] for each in found]), np.concatenate([t["id"] for t in given])
    )
    results = np.concatenate([each["output_0"] for each in found])
    np.testing.assert_allclose(results, expected(np.concatenate([t["x"] for t in given])), rtol=1e-4, atol=1e-5)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_rows_go_through_the_model(artifact: Path, table: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "more.npz", 30)
    out = tmp_path / "out"
    report = predict_table(artifact, [table, other], out, keep=["id"], workers=2, shard_rows=300, batch_rows=64)
    assert (report.rows, len(report.parts), report.resumed, report.failures) == (1030, 5, 0, 0)
    check(report.parts, table, other)
    assert files(out) == {"job.json", *(f"part-{number:06}.npz" for number in range(5))}


def test_a_job_that_is_done_computes_nothing(
    artifact: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = predict_table(artifact, table, tmp_path / "out", keep=["id"], workers=1, shard_rows=300)
    monkeypatch.setattr(supervisor, "_Worker", None)  # none is started
    again = predict_table(artifact, table, tmp_path / "out", keep=["id"], workers=1, shard_rows=300)
    assert (again.parts, again.resumed) == (first.parts, 4)


def test_an_artifact_is_read_once_for_its_digest(
    artifact: Path, compiled: Callable[..., Path], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "served.kyar"
    path.write_bytes(artifact.read_bytes())
    reads: list[object] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: reads.append(given) or digest(*given))
    for folder in ("first", "second"):
        predict_table(path, table, tmp_path / folder, keep=["id"], executor=ThreadPoolExecutor(1))
    assert len(reads) == 1
    compiled(lambda b: b.op("exp", b.input("x", (2, 4))), "other").replace(path)
    with pytest.raises(BatchJobError, match="not that of this job"):
        predict_table(path, table, tmp_path / "first", keep=["id"], executor=ThreadPoolExecutor(1))


# --- what is killed ---------------------------------------------------------------------------------------------------
class Killer:
    """Kills workers as they are given shards, as the system's killer of processes would."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def __call__(self, worker: supervisor._Worker, line: str) -> None:
        SEND(worker, line)
        if worker.shard is not None and self.deaths:
            self.deaths -= 1
            os.kill(worker.process.pid, signal.SIGKILL)


SEND = supervisor._Worker.send


@pytest.mark.parametrize("deaths", [1, 3])
def test_killed_workers_lose_and_double_nothing(
    deaths: int, artifact: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(deaths)
    monkeypatch.setattr(supervisor._Worker, "send", lambda worker, line: killer(worker, line))
    report = predict_table(artifact, table, tmp_path / "out", keep=["id"], workers=2, shard_rows=100)
    assert killer.deaths == 0
    assert report.failures == deaths
    check(report.parts, table)
    assert files(tmp_path / "out") == {"job.json", *(path.name for path in report.parts)}


def test_a_worker_that_is_killed_while_it_writes_leaves_no_part(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed at the moment when there is a file without its name."""
    table, out = write_table(tmp_path / "rows.npz", 200_000), tmp_path / "out"
    killed: list[str] = []

    def send(worker: supervisor._Worker, line: str) -> None:
        SEND(worker, line)
        if worker.shard is not None and not killed:
            while not (found := list(out.glob(".part-*.tmp"))):
                time.sleep(0.0005)
            os.kill(worker.process.pid, signal.SIGKILL)
            killed.append(found[0].name)

    monkeypatch.setattr(supervisor._Worker, "send", send)
    report = predict_table(artifact, table, out, keep=["id"], workers=1, shard_rows=100_000, batch_rows=256)
    assert killed
    check(report.parts, table)
    assert not list(out.glob(".*"))


def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_done(
    artifact: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(worker: supervisor._Worker, line: str) -> None:
        is_lost = worker.shard is not None and worker.shard.number == 1
        if is_lost:
            os.kill(worker.process.pid, signal.SIGSTOP)  # else it might answer before it is killed
        SEND(worker, line)
        if is_lost:
            os.kill(worker.process.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(supervisor._Worker, "send", send)
        with pytest.raises(BatchJobError, match="1 of 4 shards failed again and again") as error:
            predict_table(artifact, table, tmp_path / "out", keep=["id"], workers=2, shard_rows=250, retries=1)
    assert error.value.where == f"{table}, shard 1 (250 rows)"
    assert "status -9" in str(error.value.found)
    report = predict_table(artifact, table, tmp_path / "out", keep=["id"], workers=2, shard_rows=250)
    assert report.resumed == 3
    check(report.parts, table)


def test_a_job_that_is_killed_goes_on(artifact: Path, tmp_path: Path) -> None:
    """The whole job, by SIGKILL, at no moment in particular; its workers end by themselves."""
    table, out = write_table(tmp_path / "rows.npz", 100_000), tmp_path / "out"
    command = [sys.executable, "-c", "from kernelyard.cli.main import main; main()"]
    arguments = ["predict", str(artifact), str(table), "-o", str(out), "--keep", "id", "--shard-rows", "2000"]
    job = subprocess.Popen([*command, *arguments, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while len(list(out.glob("part-*"))) < 3:
        assert job.poll() is None
        time.sleep(0.005)
    job.kill()
    assert job.stderr is not None
    job.stderr.read()  # it ends when the last worker has let go of it
    job.wait()
    job.stderr.close()
    done = len(list(out.glob("part-*")))
    report = predict_table(artifact, table, out, keep=["id"], workers=2, shard_rows=2000)
    assert report.resumed == done < 50
    check(report.parts, table)


# --- executors --------------------------------------------------------------------------------------------------------
# A script of its own: processes that are spawned import it, and not the script that runs the tests.
EXECUTOR = """
import os, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from kernelyard_deploy import BatchJobError, predict_table

def kill_one(executor, out):
    while len(list(out.glob("part-*"))) < 2:
        time.sleep(0.002)
    os.kill(next(iter(executor._processes)), signal.SIGKILL)

def run(artifact, table, out, kill):
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        if kill:
            threading.Thread(target=kill_one, args=(executor, Path(out))).start()
        return predict_table(artifact, table, out, keep=["id"], executor=executor, shard_rows=1000, batch_rows=64)

if __name__ == "__main__":
    try:
        report = run(*sys.argv[1:4], kill=True)
    except BatchJobError as error:
        assert "takes no more work" in str(error)
    done = len(list(Path(sys.argv[3]).glob("part-*")))
    report = run(*sys.argv[1:4], kill=False)
    assert report.resumed == done >= 2, (report, done)
"""


def test_a_killed_process_of_an_executor_loses_nothing_that_is_done(artifact: Path, tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "rows.npz", 100_000), tmp_path / "out"
    (tmp_path / "job.py").write_text(EXECUTOR)
    command = [sys.executable, str(tmp_path / "job.py"), str(artifact), str(table), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    check(tuple(sorted(out.glob("part-*"))), table)


def test_failures_of_an_executor_are_tried_again(
    artifact: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def fails_first(job: object, shard: object) -> int:
        attempts.append(1)
        if len(attempts) <= 2:
            raise OSError("the network is gone")
        return run_shard(job, shard)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("kernelyard_deploy.batch_predict.run_shard", fails_first)
    with ThreadPoolExecutor(1) as executor:
        report = predict_table(artifact, table, tmp_path / "out", keep=["id"], executor=executor, shard_rows=500)
    assert report.failures == 2
    check(report.parts, table)


# --- what is refused --------------------------------------------------------------------------------------------------
def test_a_folder_of_another_job_is_left_alone(artifact: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    predict_table(artifact, table, out, workers=1, shard_rows=500)
    before = {path: path.read_bytes() for path in out.iterdir()}
    describe(artifact, tmp_path / "other.kyar", FACTS)
    for changed in ({"artifact": tmp_path / "other.kyar"}, {"keep": ["id"]}, {"shard_rows": 400}):
        with pytest.raises(BatchJobError, match="not that of this job"):
            predict_table(**{"artifact": artifact, "sources": table, "folder": out, "shard_rows": 500, **changed})  # pyright: ignore[reportArgumentType]
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/notes.txt").write_text("mine")
    with pytest.raises(BatchJobError, match="not that of this job"):
        predict_table(artifact, table, tmp_path / "notes")


def npz(path: Path, **columns: object) -> Path:
    np.savez(path, **columns)  # pyright: ignore[reportArgumentType]
    return path


def bad_tables(folder: Path) -> Iterator[tuple[Path, str]]:
    yield folder / "none.npz", "cannot be read"
    (folder / "text.npz").write_text("no table")
    yield folder / "text.npz", "cannot be read"
    yield folder / "table.csv", "unknown kind"
    yield npz(folder / "lengths.npz", x=np.zeros((3, 4)), id=np.zeros(2)), "different numbers of rows"


def test_tables_that_cannot_be_read_begin_no_job(artifact: Path, tmp_path: Path) -> None:
    for path, message in bad_tables(tmp_path):
        with pytest.raises(BatchJobError, match=message):
            predict_table(artifact, path, tmp_path / "out")
    with pytest.raises(BatchJobError, match="no tables"):
        predict_table(artifact, [], tmp_path / "out")
    with pytest.raises(BatchJobError, match="artifact cannot be read"):
        predict_table(tmp_path / "none.kyar", npz(tmp_path / "t.npz", x=np.zeros((3, 4))), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": np.zeros((3, 4))}, "a column is not what the model takes"),
        ({"x": np.zeros((3, 5))}, "KY503"),
        ({"x": np.array(["a", "b"])}, "KY502"),
    ],
)
def test_rows_that_the_model_does_not_take(
    columns: dict[str, object], message: str, artifact: Path, tmp_path: Path
) -> None:
    table = npz(tmp_path / "rows.npz", **columns)
    with pytest.raises(BatchJobError) as error:
        predict_table(artifact, table, tmp_path / "out", workers=1, retries=0)
    assert message in str(error.value)
    assert files(tmp_path / "out") == {"job.json"}


def test_a_model_whose_results_are_no_rows(compiled: Callable[..., Path], tmp_path: Path) -> None:
    from kernelyard import dims

    path = compiled(lambda b: b.op("sum", b.input("x", (dims.symbol("n"), 4)), axes=(0,)))
    with pytest.raises(BatchJobError, match="failed") as error:
        predict_table(path, npz(tmp_path / "t.npz", x=np.zeros((3, 4))), tmp_path / "out", workers=1, retries=0)
    assert "not a row for each row" in str(error.value)


def test_an_input_without_rows_is_refused(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path = compiled(lambda b: b.op("exp", b.input("x", ())))
    with pytest.raises(BatchJobError) as error:
        predict_table(path, npz(tmp_path / "t.npz", x=np.zeros(3)), tmp_path / "out", workers=1, retries=0)
    assert "does not take rows" in str(error.value)


def test_a_table_that_changed_is_not_read_on(artifact: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    predict_table(artifact, table, out, workers=1, shard_rows=500)
    (out / "part-000000.npz").unlink()
    write_table(table, ROWS + 1)
    with pytest.raises(BatchJobError, match="not that of this job"):
        predict_table(artifact, table, out, workers=1, shard_rows=500)


# --- the command ------------------------------------------------------------------------------------------------------
def test_the_command(artifact: Path, table: Path, tmp_path: Path) -> None:
    arguments = ["predict", str(artifact), str(table), "-o", str(tmp_path / "out"), "--keep", "id", "--workers", "1"]
    result = CliRunner().invoke(main, [*arguments, "--shard-rows", "400", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["rows"], report["resumed"], len(report["parts"])) == (ROWS, 0, 3)
    check(tuple(map(Path, report["parts"])), table)
    text = CliRunner().invoke(main, [*arguments, "--shard-rows", "400"]).output
    assert text == "1000 rows in 3 parts, 3 of them by an earlier run; 0 failures\n"


# --- Parquet ----------------------------------------------------------------------------------------------------------
PARQUET = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
x = np.random.default_rng(0).standard_normal((5000, 4))
kinds = {"fixed": pa.list_(pa.float64(), 4), "list": pa.list_(pa.float32()), "large": pa.large_list(pa.float64())}
table = pa.table({"x": pa.array(x.tolist(), kinds[sys.argv[2]]), "id": np.arange(5000)})
pq.write_table(table, sys.argv[1], row_group_size=700)
"""


def python(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deploy_tools
@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
def test_parquet(kind: str, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(PARQUET, tmp_path / "rows.parquet", kind)
    killer = Killer(2)
    monkeypatch.setattr(supervisor._Worker, "send", lambda worker, line: killer(worker, line))
    report = predict_table(
        artifact, tmp_path / "rows.parquet", tmp_path / "out", keep=["id"], workers=2, shard_rows=1500
    )
    assert (report.rows, len(report.parts), report.failures) == (5000, 4, 2)
    code = """
import sys
import numpy as np, pyarrow.parquet as pq
tables = [pq.read_table(path) for path in sys.argv[2:]]
y = np.concatenate([t["output_0"].combine_chunks().flatten().to_numpy().reshape(-1, 3) for t in tables])
np.savez(sys.argv[1], id=np.concatenate([t["id"].to_numpy() for t in tables]), output_0=y)
"""
    python(code, tmp_path / "found.npz", *report.parts)
    x = np.random.default_rng(0).standard_normal((5000, 4))
    check((tmp_path / "found.npz",), npz(tmp_path / "given.npz", x=x, id=np.arange(5000)))


@pytest.mark.deploy_tools
def test_parquet_that_the_model_does_not_take(artifact: Path, tmp_path: Path) -> None:
    code = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"x": eval(sys.argv[2])}), sys.argv[1])
"""
    for rows, message in (
        ("[[1.0] * 4, None]", "1 nulls"),
        ("[[1.0] * 4, [1.0] * 3]", "lists of 3 to 4"),
        ("[[1.0] * 3, [1.0] * 3]", "6 numbers in 2 rows"),
        ("[[1.0, None, 2.0, 3.0]]", "nulls in lists"),
        ("['a']", "1 numbers in 1 rows"),
    ):
        python(code, tmp_path / "rows.parquet", rows)
        with pytest.raises(BatchJobError) as error:
            predict_table(artifact, tmp_path / "rows.parquet", tmp_path / message[:5], workers=1, retries=0)
        assert message in str(error.value)


def test_parquet_without_pyarrow_says_what_to_install(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BatchJobError) as error:
        predict_table(artifact, tmp_path / "rows.parquet", tmp_path / "out")
    assert error.value.hint == "pip install 'kernelyard-deploy[parquet]'"


def test_a_predictor_is_a_path(artifact: Path) -> None:
    import pickle

    data = pickle.dumps(Predictor(artifact))
    assert len(data) < 300
    x = np.ones((2, 4))
    np.testing.assert_allclose(pickle.loads(data)({"x": x})["output_0"], expected(x), rtol=1e-5)
