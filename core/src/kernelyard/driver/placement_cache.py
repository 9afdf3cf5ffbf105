"""Decisions that are remembered, by the digest of their facts: what was measured once is not measured again.

They lie in the cache of this machine and, where a server is named, in a remote one for many machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.abi.spec import read_json, write_json
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.server_url import read_server_url
from kernelyard.runtime.placement_decision import (
    SCHEMA,
    PlacementDecision,
    digest_of,
    placements_from_json,
    placements_to_json,
)
from kernelyard.variables import EnvironmentVariable

if TYPE_CHECKING:
    from kernelyard.runtime.installed.remote_cache import RemoteCache

REMOTE_VARIABLE = EnvironmentVariable(
    "KERNELYARD_REMOTE_CACHE",
    "the URL of a server that keeps measured placements for many machines: `http://host:8080`",
    "this machine's cache alone",
)
CACHE = DiskCache("placements")


def recall(facts: Mapping[str, str], remote: str | None = None) -> PlacementDecision | None:
    """Return the decision of these facts; None where there is none, or one that another version has written.

    This machine is asked first; what the remote cache knows is kept here then. remote: its URL, "" for none; None: what
    the environment says.
    Warns: RemoteCacheWarning, once, where the server fails or answers with what is not used.
    Raises: OptionError where the URL is none, also where nobody needs to be asked.
    """
    url = _check_url(remote)
    key = digest_of(facts)
    found = CACHE.get(key)
    decision = None if found is None else _read(found)
    if decision is not None and decision.facts == facts:
        return decision
    server = _server(url)
    if server is None:
        return None
    sent = server.get(_remote_key(key))
    if sent is None:
        return None
    for decision in _read_all(sent):
        if decision.facts == facts:
            CACHE.put(key, write_json(decision.to_json()))
            return decision
    server.distrust("no decision of this model and machine")
    return None


def remember(decisions: Sequence[PlacementDecision], remote: str | None = None) -> None:
    """Keep decisions, on this machine and in the remote cache. Warns, raises: as `recall`."""
    server = _server(_check_url(remote))
    for decision in decisions:
        CACHE.put(decision.key, write_json(decision.to_json()))
        if server is not None:
            server.put(_remote_key(decision.key), write_json(placements_to_json([decision])))


def iterate_remembered() -> Iterator[PlacementDecision]:
    """Yield what this machine remembers, the decision that was not used for longest first."""
    for payload in CACHE.payloads():
        decision = _read(payload)
        if decision is not None:
            yield decision


def _read(payload: bytes) -> PlacementDecision | None:
    try:
        return PlacementDecision.from_json(read_json(payload, "the cache of placements"))
    except ArtifactCorruptedError:
        return None


def _read_all(payload: bytes) -> tuple[PlacementDecision, ...]:
    try:
        return placements_from_json(read_json(payload, "the remote cache of placements"))
    except ArtifactCorruptedError:
        return ()


def _check_url(url: str | None) -> str:
    """Return the URL of the remote cache, "" for none. Raises: OptionError."""
    chosen = REMOTE_VARIABLE.get() if url is None else url
    if chosen:
        read_server_url(chosen)
    return chosen


def _server(url: str) -> RemoteCache | None:
    if not url:
        return None
    from kernelyard.runtime.installed.remote_cache import remote_cache  # takes long: HTTP

    return remote_cache(url)


def _remote_key(key: str) -> str:
    """Return the name of a decision among what other programs keep on the same server."""
    return f"kernelyard placements {SCHEMA} {key}"
