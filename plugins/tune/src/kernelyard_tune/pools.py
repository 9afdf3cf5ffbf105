"""Pools of workers, by the engines that people run already: each is a thin adapter, imported where it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol

from kernelyard_tune.errors import PoolError
from kernelyard_tune.measure import Machine, end_idle_processes, measure, start_processes, this_machine

CONNECT_SECONDS = 30


class Pool(Protocol):
    """Workers that run `measure`, elsewhere or here."""

    def prepare(self, threads: int) -> None:
        """Have workers begin what does not depend on the work, if they can. threads: of a measurement."""
        ...

    def machines(self) -> Mapping[str, Machine]:
        """Return the machine of each worker, by the worker's name."""
        ...

    def submit(self, data: bytes, digest: str, among: Sequence[str]) -> Future[bytes]:
        """Have one of the workers named measure work."""
        ...

    def close(self) -> None:
        """Let the workers go; work that has not begun is dropped."""
        ...


class LocalPool:
    """Threads of this process; what they start measures. address: how many."""

    def __init__(self, address: str) -> None:
        if not (address.isdecimal() and int(address)):
            raise PoolError("no number of workers", found=repr(address), expected="local://4")
        self._count = int(address)
        self._threads = ThreadPoolExecutor(self._count, "kernelyard-measure")

    def prepare(self, threads: int) -> None:
        start_processes(threads, self._count)

    def machines(self) -> Mapping[str, Machine]:
        return {"local": this_machine(self._count)}

    def submit(self, data: bytes, digest: str, among: Sequence[str]) -> Future[bytes]:
        return self._threads.submit(measure, data, digest)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        end_idle_processes()


class DaskPool:
    """Workers of Dask's distributed. address: of its scheduler, host:port."""

    def __init__(self, address: str) -> None:
        client = _engine("distributed", "dask[distributed]").Client
        try:
            self._client = client(f"tcp://{address}", timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _unreachable("Dask's scheduler", address, error) from error

    def prepare(self, threads: int) -> None:
        pass  # a worker begins with its first work

    def machines(self) -> Mapping[str, Machine]:
        return self._client.run(this_machine)

    def submit(self, data: bytes, digest: str, among: Sequence[str]) -> Future[bytes]:
        executor = self._client.get_executor(workers=list(among), pure=False, retries=0)
        return executor.submit(measure, data, digest)

    def close(self) -> None:
        self._client.run(end_idle_processes)
        self._client.close()


class RayPool:
    """Nodes of a Ray cluster. address: of its client server, host:port."""

    def __init__(self, address: str) -> None:
        self._ray = _engine("ray", "ray[client]")
        try:
            self._ray.init(address=f"ray://{address}")
        except (ConnectionError, RuntimeError, ValueError) as error:
            hint = "clusters of Ray ask for a token by default: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            raise _unreachable("Ray's client server", address, error, hint) from error
        self._turn = itertools.count()

    def prepare(self, threads: int) -> None:
        pass  # a worker begins with its first work

    def machines(self) -> Mapping[str, Machine]:
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        asked = [self._on(node, this_machine).remote() for node in nodes]
        return dict(zip(nodes, self._ray.get(asked), strict=True))

    def submit(self, data: bytes, digest: str, among: Sequence[str]) -> Future[bytes]:
        node = among[next(self._turn) % len(among)]
        return self._on(node, measure).remote(data, digest).future()

    def close(self) -> None:
        self._ray.shutdown()

    def _on(self, node: str, function: Callable[..., Any]) -> Any:
        strategies = import_module("ray.util.scheduling_strategies")
        strategy = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return self._ray.remote(function).options(num_cpus=1, max_retries=0, scheduling_strategy=strategy)


POOLS: Mapping[str, Callable[[str], Pool]] = {"local": LocalPool, "dask": DaskPool, "ray": RayPool}


def open_pool(url: str) -> Pool:
    """Return the workers at a URL: `local://4`, `dask://host:8786` or `ray://host:10001`.

    Raises: PoolError for another URL, with the pip line where the engine is not installed, and where nobody answers.
    """
    scheme, separator, address = url.partition("://")
    if not separator or scheme not in POOLS:
        raise PoolError("no pool of workers", found=repr(url), expected=", ".join(f"{name}://..." for name in POOLS))
    return POOLS[scheme](address)


def _engine(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise PoolError(f"{module} is not installed", hint=f"pip install '{package}'") from error


def _unreachable(what: str, address: str, error: BaseException, hint: str | None = None) -> PoolError:
    return PoolError(f"{what} does not answer", where=address, found=str(error), hint=hint)
