"""Tuning on the workers of a pool: the same choice, one kind of machine, and what becomes of workers that fail."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper, save

import kernelyard as ky
import kernelyard.ops
from kernelyard.cli.main import main
from kernelyard.driver.compile import request_to_tune
from kernelyard.driver.measured_placement import TuneRequest, read_placements
from kernelyard.driver.placement_cache import CACHE
from kernelyard.ir import FunctionBuilder, IRModule, to_text
from kernelyard.plugins.sandbox.worker_process import python_main
from kernelyard.runtime.placement_decision import PlacementDecision, Timing
from kernelyard_tune.candidates import whole_candidates
from kernelyard_tune.errors import MeasuringError, PoolError, TuneError
from kernelyard_tune.leases import cores, lease
from kernelyard_tune.measure import Machine, end_idle_processes, measure, this_machine
from kernelyard_tune.pools import LocalPool, open_pool
from kernelyard_tune.spread import TRIES, tune_on
from kernelyard_tune.work import Limits, Work, digest_of_work, read_answer

TUNING = ky.Tuning(0.05, threads=1)
LIMITS = Limits(120)
HOW: dict[str, Any] = {"backends": ["dnnl"]}  # two candidates besides the default


def network() -> IRModule:
    b = FunctionBuilder()
    return IRModule(
        {"main": b.function(b.op("tanh", b.op("matmul", b.input("x", (4, 8)), np.eye(8, dtype=np.float32))))}
    )


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # leases of this test alone
    yield
    end_idle_processes()


def asked(tuning: ky.Tuning = TUNING, limits: Limits = LIMITS) -> tuple[TuneRequest, Work]:
    request = request_to_tune(network(), tuning, **HOW)
    return request, Work(to_text(request.module), HOW, tuning, limits=limits)


class FakePool:
    """A pool whose workers answer at once: `answer` makes a decision of the work, or raises."""

    def __init__(self, answer: Callable[[Work], PlacementDecision], machines: Mapping[str, Machine]) -> None:
        self._answer, self._machines = answer, machines
        self.works: list[Work] = []
        self.among: list[str] = []

    def prepare(self, threads: int) -> None:
        pass

    def machines(self) -> Mapping[str, Machine]:
        return self._machines

    def submit(self, data: bytes, digest: str, among: Sequence[str]) -> Future[bytes]:
        assert digest == digest_of_work(data)
        future: Future[bytes] = Future()
        self.works.append(Work.from_bytes(data))
        self.among = list(among)
        try:
            decision = self._answer(self.works[-1]).to_json()
            future.set_result(json.dumps({"work": digest, "decision": decision}).encode())
        except TuneError as error:
            future.set_result(json.dumps({"work": digest, "error": error.to_json()}).encode())
        except OSError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


TIMES = {"default": 3.0, "native-cpu alone": 2.0, "dnnl first": 1.0}


def by_times(work: Work) -> PlacementDecision:
    """Be a worker that knows the times: the fastest of what the work asks for wins."""
    names = list(TIMES) if work.names is None else list(work.names)
    if work.names is None:
        first, count = work.share
        names = ["default", *names[1:][first::count]]
    names.sort(key=TIMES.__getitem__)
    timings = tuple(Timing(name, TIMES[name], TIMES[name] / TIMES[names[0]]) for name in names)
    return PlacementDecision(names[0], ("dnnl",), timings=timings, facts={"model": "m"})


def test_candidates_are_shared_out_and_the_winners_compared() -> None:
    pool = FakePool(by_times, {"a": this_machine(3), "b": this_machine(1)})
    request, work = asked()
    tuned = tune_on(pool, {"m": (request, work)})
    assert len(whole_candidates(request.session)) == 3
    assert [(each.share, each.names) for each in pool.works] == [
        ((0, 2), None),
        ((1, 2), None),
        ((0, 1), ("default", "native-cpu alone", "dnnl first")),
    ]
    decision = tuned.decisions["m"]
    assert [(each.name, each.ratio) for each in decision.timings] == [
        ("dnnl first", 1.0),
        ("native-cpu alone", 2.0),
        ("default", 3.0),
    ]


def test_what_lost_its_share_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMES, "openblas first", 9.0)
    monkeypatch.setattr("kernelyard_tune.spread.whole_candidates", lambda _: [None] * 4)
    tuned = tune_on(FakePool(by_times, {"a": this_machine(2)}), {"m": asked()})
    ratios = {each.name: each.ratio for each in tuned.decisions["m"].timings}
    assert ratios == {"dnnl first": 1, "native-cpu alone": 2, "default": 3, "openblas first": 9}


def test_each_model_goes_to_one_worker_where_there_are_many() -> None:
    pool = FakePool(by_times, {"a": this_machine(4)})
    tuned = tune_on(pool, {name: asked(dataclasses.replace(TUNING, remember=False)) for name in "abcd"})
    assert [(each.share, each.names) for each in pool.works] == [((0, 1), None)] * 4
    assert {each.name for each in tuned.decisions.values()} == {"dnnl first"}


def test_machines_of_another_kind_are_named_and_left_out() -> None:
    own = this_machine(1)
    other = Machine({**own.kind, "processor": "Another CPU"}, 1)
    pool = FakePool(by_times, {"a": own, "b": other, "c": own})
    tuned = tune_on(pool, {"m": asked()})
    assert pool.among == ["a", "c"]
    assert list(tuned.left_out) == ["b"]
    assert "processor: Another CPU, not " in tuned.left_out["b"]


def test_a_worker_that_dies_loses_its_own_measurement_alone() -> None:
    died: list[tuple[int, int]] = []

    def answer(work: Work) -> PlacementDecision:
        if work.share == (1, 2) and len(died) < TRIES - 1:
            died.append(work.share)
            raise ConnectionResetError("gone")
        return by_times(work)

    pool = FakePool(answer, {"a": this_machine(2)})
    tuned = tune_on(pool, {"m": asked()})
    assert tuned.decisions["m"].name == "dnnl first"
    assert tuned.retried == TRIES - 1
    assert [each.share for each in pool.works] == [(0, 2), (1, 2), (1, 2), (1, 2), (0, 1)]


def test_a_model_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def answer(work: Work) -> PlacementDecision:
        if work.tuning.threads == 2:
            raise TuneError("the model does not run", found="2")
        if work.tuning.threads == 3:
            raise ConnectionResetError("gone")
        return by_times(work)

    works = {str(threads): asked(ky.Tuning(0.05, threads=threads, remember=False)) for threads in (1, 2, 3)}
    tuned = tune_on(FakePool(answer, {"a": this_machine(3)}), works)
    assert list(tuned.decisions) == ["1"]
    assert tuned.failures["2"].message == "the model does not run"
    assert isinstance(tuned.failures["3"], MeasuringError)
    assert f"given up after {TRIES} tries" in tuned.failures["3"].message


def test_a_pool_without_workers() -> None:
    with pytest.raises(PoolError, match="no workers"):
        tune_on(FakePool(by_times, {}), {"m": asked()})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"{", "cannot be read"),
        (b'{"work": "another", "decision": {}}', "something else"),
        (b'{"work": "d", "decision": {"name": 1}}', "cannot be read"),
        (b"[]", "something else"),
    ],
)
def test_answers_are_checked(answer: bytes, message: str) -> None:
    with pytest.raises(PoolError, match=message):
        read_answer(answer, "d")


def test_work_is_checked() -> None:
    _, work = asked(ky.Tuning(0.05, threads=1, feeds={"x": np.ones((4, 8), np.float32)}))
    data = work.to_bytes()
    again = Work.from_bytes(data)
    assert again.to_bytes() == data
    np.testing.assert_array_equal(again.tuning.feeds["x"], 1)
    with pytest.raises(PoolError, match="its digest differs"):
        measure(data + b" ", digest_of_work(data))


# --- processes that measure -------------------------------------------------------------------------------------------
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Return the processes that measure, as they are started."""
    found: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def noted(*arguments: Any, **how: Any) -> subprocess.Popen[str]:
        found.append(start(*arguments, **how))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return found


def when_started(started: list[subprocess.Popen[str]], action: Callable[[subprocess.Popen[str]], None]) -> None:
    def wait() -> None:
        while not started:
            time.sleep(0.01)
        action(started[0])

    threading.Thread(target=wait, daemon=True).start()


def test_workers_of_this_machine_and_one_that_is_killed(started: list[subprocess.Popen[str]]) -> None:
    """kill -9 of the first process that measures: its part alone is measured again."""
    when_started(started, lambda process: process.send_signal(signal.SIGKILL))
    pool = LocalPool("2")
    try:
        tuned = tune_on(pool, {"m": asked()})
        assert tuned.failures == {}
        assert tuned.retried == 1
        # one for each share; in place of the first comes a new one, or the other, if it is done with its share by then
        processes = len(started)
        assert processes in (2, 3)
        decision = tuned.decisions["m"]
        assert decision.facts["threads"] == "1"
        assert decision.timings[0].name == decision.name
        assert CACHE.use().entries == 1
        again = tune_on(pool, {"m": asked()})
        assert again.decisions["m"] == decision
        assert len(started) == processes  # remembered
        assert ky.compile(network(), placement=decision, **HOW).report.decision == decision
    finally:
        pool.close()


def test_a_measurement_that_takes_too_long_is_ended(started: list[subprocess.Popen[str]]) -> None:
    _, work = asked(limits=Limits(0.2))
    data = work.to_bytes()
    with pytest.raises(MeasuringError, match="nothing was measured"):
        read_answer(measure(data, digest_of_work(data)), digest_of_work(data))
    assert started[0].returncode == -signal.SIGKILL


def test_a_measurement_ends_where_nobody_waits_for_it() -> None:
    """kill -9 of who asked closes the pipes: the child is not left to measure on cores that nobody has leased."""
    _, work = asked(ky.Tuning(600.0, threads=1))
    question = {"processors": list(cores().values()), "megabytes": 0, "work": work.to_bytes().decode()}
    command = [sys.executable, *python_main("kernelyard_tune.measuring_process")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
    assert not Path("/proc", found[0]).exists()


def test_a_measurement_that_takes_too_much_memory_is_ended() -> None:
    """At once, though it has an hour."""
    _, work = asked(limits=Limits(3600, megabytes=100))
    data = work.to_bytes()
    with pytest.raises(MeasuringError, match="it needs more memory"):
        read_answer(measure(data, digest_of_work(data)), digest_of_work(data))


def test_a_model_that_does_not_run_says_why() -> None:
    _, work = asked(ky.Tuning(0.05, threads=1, feeds={"x": np.ones((3, 8), np.float32)}))
    data = work.to_bytes()
    with pytest.raises(TuneError, match="the model does not run"):
        read_answer(measure(data, digest_of_work(data)), digest_of_work(data))


# --- leases -----------------------------------------------------------------------------------------------------------
def test_a_core_is_leased_once() -> None:
    known = cores()
    one = min(known)
    inside, most = 0, 0

    def hold() -> None:
        nonlocal inside, most
        with lease(1, [one]) as leased:
            assert leased.processors == (known[one],)
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == 1


def test_another_process_holds_a_core_until_it_dies() -> None:
    one = min(cores())
    code = (
        "import sys, tempfile, time; tempfile.tempdir = sys.argv[1]\n"
        "from kernelyard_tune.leases import lease\n"
        "with lease(1, [int(sys.argv[2])]): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, tempfile.gettempdir(), str(one)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        threading.Timer(0.2, holder.kill).start()
        with lease(1, [one]):
            assert holder.wait() == -signal.SIGKILL


def test_more_cores_than_there_are() -> None:
    with pytest.raises(PoolError, match="more cores"), lease(10_000):
        pass


def test_a_folder_of_locks_that_others_can_write(tmp_path: Path) -> None:
    folder = tmp_path / f"kernelyard-leases-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PoolError, match="others can write"), lease(1):
        pass


# --- engines and the command ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url", ["local://", "local://0", "local://x", "slurm://host", "4"])
def test_what_is_no_pool(url: str) -> None:
    with pytest.raises(PoolError) as found:
        open_pool(url)
    assert "local://" in str(found.value)


@pytest.mark.parametrize(("url", "package"), [("dask://h:1", "dask[distributed]"), ("ray://h:1", "ray[client]")])
def test_an_engine_that_is_not_installed(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PoolError) as found:
        open_pool(url)
    assert found.value.hint == f"pip install '{package}'"


def test_the_command(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    paths = [str(tmp_path / f"{name}.onnx") for name in "ab"]
    for path, activation in zip(paths, ["Relu", "Tanh"], strict=True):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(activation, ["h"], ["y"])]
        save(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], [weights])), path)
    placement = tmp_path / "all.json"
    options = ["--effort", "0.05", "--on", "local://2", "--backends", "dnnl", "--dim", "n=4"]
    result = CliRunner().invoke(main, ["tune", *paths, *options, "--placement", str(placement), "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert list(facts["decisions"]) == paths, "in the order of the models"
    assert len(read_placements(placement)) == 2
    done = CliRunner().invoke(main, ["explain", paths[0], "--backends", "dnnl", "--placement", str(placement)])
    assert "placement: " in done.output


def test_options_that_do_not_go_together() -> None:
    result = CliRunner().invoke(main, ["tune", "a.onnx", "b.onnx", "-o", "x.kyar"])
    assert result.exit_code == 2
    assert "several are given" in result.output


DASK = """
import sys
from distributed import Client, LocalCluster
from kernelyard_tune.pools import open_pool
from kernelyard_tune.spread import tune_on
from test_pool import asked

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pool = open_pool(cluster.scheduler_address.replace("tcp://", "dask://"))
        tuned = tune_on(pool, {"m": asked()})
        pool.close()
    assert not tuned.failures and not tuned.left_out, tuned
    print(tuned.decisions["m"].summary)
"""

RAY = """
import subprocess, sys
from kernelyard_tune.pools import open_pool
from kernelyard_tune.spread import tune_on
from test_pool import asked

if __name__ == "__main__":
    options = ["--head", "--port=0", "--num-cpus=2", "--include-dashboard=false", "--ray-client-server-port=23456"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
    cluster = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while "Ray runtime started" not in (line := cluster.stdout.readline()):
            assert line, cluster.wait()
        pool = open_pool("ray://127.0.0.1:23456")
        tuned = tune_on(pool, {"m": asked()})
        pool.close()
    finally:
        cluster.terminate()  # `ray stop` ends the clusters of others, too
        cluster.communicate(timeout=60)
    assert not tuned.failures and not tuned.left_out, tuned
    print(tuned.decisions["m"].summary)
"""


@pytest.mark.deploy_tools
@pytest.mark.parametrize("code", [DASK, RAY], ids=["dask", "ray"])
def test_the_engines_themselves(code: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(code)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
    environment = {**os.environ, **token, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "placement: " in done.stdout
