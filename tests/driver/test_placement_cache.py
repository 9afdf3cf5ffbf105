"""Measured placements in the cache of this machine and on a server; and what becomes of a server that fails."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from click.testing import CliRunner
from http_store import Store, running_store
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.cli.main import main
from kernelyard.driver import placement_cache
from kernelyard.driver.measured_placement import read_placements, save_placements
from kernelyard.driver.placement_cache import CACHE, iterate_remembered, recall, remember
from kernelyard.errors import OptionError, RemoteCacheWarning
from kernelyard.runtime.installed import remote_cache
from kernelyard.runtime.installed.remote_cache import RemoteCache
from kernelyard.runtime.placement_decision import PlacementDecision, Timing

DECISION = PlacementDecision(
    "dnnl first", ("dnnl",), timings=(Timing("dnnl first", 1e-3, 1.0),), facts={"model": "abc", "threads": "1"}
)
OTHER = dataclasses.replace(DECISION, facts={"model": "xyz", "threads": "2"})


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    remote_cache.remote_cache.cache_clear()


@pytest.fixture
def store() -> Iterator[Store]:
    with running_store() as found:
        yield found


def forget(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Be another machine."""
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(folder))


def test_one_machine_knows_what_another_has_measured(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remember([DECISION], store.url)
    assert store.asked == ["PUT cas", "PUT ac"]
    assert recall(DECISION.facts, store.url) == DECISION
    assert len(store.asked) == 2  # this machine is asked first
    forget(monkeypatch, tmp_path / "elsewhere")
    assert recall(DECISION.facts) is None
    assert recall(OTHER.facts, store.url) is None
    assert recall(DECISION.facts, store.url) == DECISION
    assert store.asked[2:] == ["GET ac", "GET ac", "GET cas"]
    assert recall(DECISION.facts) == DECISION  # and is kept


def test_the_environment_names_the_server(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(placement_cache.REMOTE_VARIABLE, store.url.replace("//", "//me:secret@"))
    remember([DECISION])
    assert store.headers == ["Basic bWU6c2VjcmV0"] * 2
    forget(monkeypatch, tmp_path / "elsewhere")
    assert recall(DECISION.facts, "") is None
    assert recall(DECISION.facts) == DECISION


def test_what_is_sent_is_what_servers_check(store: Store) -> None:
    """Digests of contents, and an ActionResult whose stdout_digest (field 6) names them."""
    remember([DECISION], store.url)
    (content,) = (body for path, body in store.bodies.items() if path.startswith("/cas/"))
    (result,) = (body for path, body in store.bodies.items() if path.startswith("/ac/"))
    digest = hashlib.sha256(content).hexdigest().encode()
    size = len(content)
    assert 128 <= size < 1 << 14
    assert result == b"\x32\x45\x0a\x40" + digest + b"\x10" + bytes([size & 0x7F | 0x80, size >> 7])
    assert f"/cas/{digest.decode()}" in store.bodies


def fails(status: int) -> object:
    def fault(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_error(status)
        return True

    return fault


def hangs_up(handler: BaseHTTPRequestHandler) -> bool:
    handler.close_connection = True
    return True


def talks_nonsense(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"220 smtp ready\r\n\r\n")
    handler.close_connection = True
    return True


def trickles(handler: BaseHTTPRequestHandler) -> bool:
    """Send a header's byte each moment: no single read takes long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(100):
        time.sleep(0.02)
        try:
            handler.wfile.write(b"a")
        except OSError:
            break
    handler.close_connection = True
    return True


@pytest.mark.parametrize("fault", [fails(500), fails(401), fails(403), hangs_up, talks_nonsense, trickles])
def test_an_outage_is_told_once_and_harms_nothing(fault: object, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.runtime.installed.remote_cache.SECONDS", 0.3)
    monkeypatch.setattr(RemoteCache.__init__, "__defaults__", (0.3,))
    store.fault = fault  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.warns(RemoteCacheWarning, match="own cache is used"):
        assert recall(DECISION.facts, store.url) is None
    remember([DECISION], store.url)  # another warning would be an error
    assert recall(OTHER.facts, store.url) is None
    assert len(store.asked) == 1  # it is not asked again
    assert recall(DECISION.facts, store.url) == DECISION


def test_nobody_listens() -> None:
    with running_store() as store:
        url = store.url
    with pytest.warns(RemoteCacheWarning) as told:
        remember([DECISION, OTHER], url.replace("//", "//me:secret@"))
    assert len(told) == 1
    assert "secret" not in str(told[0].message)
    assert recall(OTHER.facts, url) == OTHER


def test_a_server_that_is_only_read(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    remember([DECISION], store.url)
    forget(monkeypatch, tmp_path / "elsewhere")
    store.fault = lambda handler: handler.command == "PUT" and bool(fails(403)(handler))  # pyright: ignore
    with pytest.warns(RemoteCacheWarning, match="PUT is answered by 403"):
        remember([OTHER], store.url)
    remember([OTHER], store.url)
    assert recall(DECISION.facts, store.url) == DECISION


DAMAGE = {
    "no message": lambda store: {path: b"\xff" * 20 for path in store.bodies if path.startswith("/ac/")},
    "an empty message": lambda store: {path: b"" for path in store.bodies if path.startswith("/ac/")},
    "another content": lambda store: {path: body + b" " for path, body in store.bodies.items() if "/cas/" in path},
    "a cut content": lambda store: {path: body[:-1] for path, body in store.bodies.items() if "/cas/" in path},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_answers_are_not_used(
    damage: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remember([DECISION], store.url)
    store.bodies |= DAMAGE[damage](store)
    forget(monkeypatch, tmp_path / "elsewhere")
    with pytest.warns(RemoteCacheWarning, match="which is not used"):
        assert recall(DECISION.facts, store.url) is None
    assert recall(DECISION.facts, store.url) is None
    assert CACHE.use().entries == 0
    remember([DECISION], store.url)  # and is replaced
    forget(monkeypatch, tmp_path / "again")
    assert recall(DECISION.facts, store.url) == DECISION


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"no JSON",
        json.dumps({"schema": 99, "placements": [DECISION.to_json()]}).encode(),
        json.dumps({"schema": 1, "placements": [OTHER.to_json()]}).encode(),
        json.dumps({"schema": 1, "placements": [DECISION.to_json() | {"policy": "other"}]}).encode(),
    ],
)
def test_what_holds_for_something_else_is_not_used(content: bytes, store: Store) -> None:
    name = f"kernelyard placements {placement_cache.SCHEMA} {DECISION.key}"
    RemoteCache(store.url).put(name, content)
    with pytest.warns(RemoteCacheWarning, match="no decision of this model and machine"):
        assert recall(DECISION.facts, store.url) is None
    assert CACHE.use().entries == 0


def test_a_large_answer_is_not_read_to_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remember([DECISION], store.url)
    monkeypatch.setattr("kernelyard.runtime.installed.remote_cache.MAX_BYTES", 10)
    with pytest.warns(RemoteCacheWarning, match="more than"):
        assert RemoteCache(store.url).get(f"kernelyard placements 1 {DECISION.key}") is None


@given(st.binary(max_size=100))
def test_any_bytes_are_no_message_or_name_a_digest(data: bytes) -> None:
    found = remote_cache._digest_in(data)
    assert found is None or len(found) == 64


@given(st.binary(max_size=1 << 9))
def test_a_message_is_read_back(value: bytes) -> None:
    digest = hashlib.sha256(value).hexdigest()
    assert remote_cache._digest_in(remote_cache._result_of(digest, len(value))) == digest


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_lists_exports_and_merges(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "no placement is remembered" in run("cache", "--placements")
    remember([DECISION])
    save_placements(tmp_path / "all.json", [OTHER])
    assert run("cache", "--export", tmp_path / "all.json") == "exported 1 placement\n"
    assert read_placements(tmp_path / "all.json") == (OTHER, DECISION)
    forget(monkeypatch, tmp_path / "elsewhere")
    shown = run("cache", "--merge", tmp_path / "all.json", "--remote-cache", store.url, "--placements").splitlines()
    assert shown[0] == "merged 2 placements"
    assert [line.split()[0] for line in shown[1:]] == ["model", "xyz", "abc"]
    assert {each.key for each in iterate_remembered()} == {DECISION.key, OTHER.key}
    assert store.asked == ["PUT cas", "PUT ac"] * 2
    facts = json.loads(run("cache", "--placements", "--json"))
    assert facts["placements"] == [OTHER.to_json(), DECISION.to_json()]


NO_URLS = ["notaurl", "host:8080", "ftp://host", "http://", "http://host:port", "http://host:70000", "http://[::1"]


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_url_is_refused_before_anything_is_looked_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remember([DECISION])
    with pytest.raises(OptionError, match="no URL of a server") as caught:
        recall(DECISION.facts, url)  # though this machine knows the answer
    assert (caught.value.found, caught.value.expected) == (repr(url), "http://host:8080")
    with pytest.raises(OptionError):
        remember([OTHER], url)
    assert list(iterate_remembered()) == [DECISION]
    monkeypatch.setenv(placement_cache.REMOTE_VARIABLE, url)
    with pytest.raises(OptionError):
        recall(DECISION.facts)


@pytest.mark.parametrize("command", [["cache", "--placements"], ["tune", "absent.onnx"]], ids=lambda words: words[0])
def test_commands_refuse_what_is_no_url(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--remote-cache", "notaurl", "--json"])
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["found"], error["hint"]) == (
        "KY140",
        "'notaurl'",
        "write the scheme, too: http://host:8080",
    )


def test_a_server_that_the_command_would_not_use_is_refused() -> None:
    result = CliRunner().invoke(main, ["cache", "--placements", "--remote-cache", "http://host:8080"])
    assert result.exit_code == 2
    assert "goes with --merge" in result.output


def test_a_damaged_file_is_not_merged_in_part(tmp_path: Path) -> None:
    save_placements(tmp_path / "good.json", [DECISION])
    (tmp_path / "bad.json").write_text("{")
    files = ["--merge", str(tmp_path / "good.json"), "--merge", str(tmp_path / "bad.json")]
    result = CliRunner().invoke(main, ["cache", *files])
    assert result.exit_code != 0
    assert "KY" in result.output
    assert list(iterate_remembered()) == []


def test_nothing_is_asked_where_no_server_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remember([DECISION])
        assert recall(DECISION.facts) == DECISION
