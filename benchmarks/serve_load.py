"""Measure a server of models: its latency beside a direct call, its rate beside one written by hand, and overload.

    python benchmarks/serve_load.py latency|rate|overload [--workers N] [--rounds 7] [--seconds 1] [--requests 100000]

Latency: medians of interleaved rounds on one connection, less those of a direct call; gRPC by grpcio's client, and by
h2load where that is installed (Debian's nghttp2-client), beside servers that only give back what they get. Rate:
requests per second and processor time of the server for each, in turns with onnxruntime behind FastAPI; the client is
wrk where that is installed: one in Python takes longer for a request than a server does. Overload: three times as many
connections as keep the server busy, with clients that leave or send slowly, bad bodies, and models that are exchanged;
each request has to be answered or refused by a status, and memory has to stay as it is. With --workers N some of them
are killed meanwhile, and latency is that by way of the front.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnx
import onnx.parser
from peers.serving import PATH, Connection, post, process, requests_of, resident, serve

import kernelyard as ky
from kernelyard_serve.http_protocol import seconds_unread

WIDTH = 64
PEERS = Path(__file__).parent / "peers"
HAND_WRITTEN, ECHO = PEERS / "fastapi_server.py", PEERS / "grpc_echo.py"
GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"


def model_file(folder: Path, width: int, layers: int) -> Path:
    """Write a perceptron of some layers as ONNX; its rows are a symbol."""
    lines = [f"h{i + 1} = Relu(p{i})\np{i} = MatMul(h{i}, w{i})" for i in range(layers)]
    body = "\n".join("\n".join(reversed(line.split("\n"))) for line in lines)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
net (float[n, {width}] h0) => (float[n, {width}] h{layers}) {{
{body}
}}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for i in range(layers):
        weight = random.standard_normal((width, width), np.float32) / width**0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


# --- latency ----------------------------------------------------------------------------------------------------------
def median_seconds(call: Callable[[], object], seconds: float) -> float:
    """Return the median time of a call."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_latency(folder: Path, rounds: int, seconds: float, workers: int) -> None:
    """Print medians, and what they are above those of a direct call."""
    x = np.ones((1, WIDTH), np.float32)
    exe = ky.compile(model_file(folder, WIDTH, 2))
    exe.save(folder / "net.kyar")
    ours = serve(folder / "net.kyar", "--grpc-port", "0", *(("--workers", str(workers)) if workers else ()))
    with ExitStack() as stack:
        server = stack.enter_context(process(*ours))
        connection, requests = Connection(server.ports["http"]), requests_of(x)
        medians_of: dict[str, Callable[[], float]] = {}
        for name, call in {
            "direct": lambda: exe.run({"h0": x}),
            "HTTP, bytes": lambda: connection.ask(requests["bytes"]),
            "HTTP, JSON": lambda: connection.ask(requests["json"]),
        }.items():
            medians_of[name] = partial(median_seconds, call, seconds)
        servers = {"": server}
        for kind in ("threads", "asyncio", "uvloop"):
            servers[f", grpcio's own echo, {kind}"] = stack.enter_context(process(str(ECHO), kind))
        for name, each in servers.items():
            port = each.ports["grpc"]
            medians_of[f"gRPC{name}"] = partial(median_seconds, grpc_call(port, x), seconds)
            if shutil.which("h2load"):
                medians_of[f"gRPC{name}, client in C"] = partial(h2load_seconds, port, x, seconds, folder)
        found = [{name: median() for name, median in medians_of.items()} for _ in range(rounds)]
        connection.socket.close()
    medians = {name: 1e3 * statistics.median(each[name] for each in found) for name in medians_of}
    print("| call | p50, ms | added, ms |\n|---|---:|---:|")
    for name, median in medians.items():
        print(f"| {name} | {median:.3f} | {median - medians['direct']:.3f} |")


def grpc_request(x: np.ndarray) -> Any:
    """Return an inference request as a message."""
    from kernelyard_serve.grpc_messages import message

    request = message("ModelInferRequest")(model_name="net", raw_input_contents=[x.tobytes()])
    request.inputs.add(name="h0", datatype="FP32", shape=x.shape)
    return request


def grpc_call(port: int, x: np.ndarray) -> Callable[[], object]:
    """Return a call over gRPC by grpcio, of a message that is made once; the answer's bytes are not parsed."""
    import grpc

    data = grpc_request(x).SerializeToString()
    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(GRPC_PATH)
    return lambda: call(data)


def h2load_seconds(port: int, x: np.ndarray, seconds: float, folder: Path) -> float:
    """Return the median of calls over gRPC by h2load. Source: its manual; gRPC's protocol over HTTP2."""
    data = grpc_request(x).SerializeToString()
    body, log = folder / "message", folder / "times"
    body.write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)
    log.unlink(missing_ok=True)
    count = max(100, round(seconds * 1000))
    command = ["h2load", "-n", str(count), "-c1", "-m1", "-d", str(body), f"--log-file={log}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{port}{GRPC_PATH}"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{count} succeeded" in found, found
    return 1e-6 * statistics.median(int(line.split("\t")[2]) for line in log.read_text().splitlines())


# --- rate -------------------------------------------------------------------------------------------------------------
def answers_per_second(port: int, request: bytes, connections: int, seconds: float) -> tuple[int, float]:
    """Return how many answers came, and in how many seconds, with so many connections that always wait for one."""
    poll = selectors.DefaultSelector()
    clients = [Connection(port) for _ in range(connections)]
    for each in clients:
        poll.register(each.socket, selectors.EVENT_READ, each)
        each.send(request)
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for key, _ in poll.select(1.0):
            status = key.data.receive()
            if status:
                assert status == 200, status
                count += 1
                key.data.send(request)
    for each in clients:
        each.socket.close()
    return count, passed


def wrk(port: int, request: bytes, connections: int, seconds: float, folder: Path) -> tuple[int, float]:
    """Return the same, from a client in C. Source: wrk's own manual, SCRIPTING."""
    head, body = request.split(b"\r\n\r\n", 1)
    line, *fields = head.decode().split("\r\n")
    lines = ['wrk.method = "POST"', f'wrk.path = "{line.split()[1]}"']
    lines += [
        f'wrk.headers["{name}"] = "{value}"'
        for name, value in (field.split(": ", 1) for field in fields)
        if name not in ("Host", "Content-Length")
    ]
    script = folder / "request.lua"
    script.write_text("\n".join([*lines, 'wrk.body = "' + "".join(f"\\{byte:03d}" for byte in body) + '"']))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    found = subprocess.run([*command, f"http://127.0.0.1:{port}"], check=True, capture_output=True, text=True).stdout
    assert "Non-2xx" not in found, found
    count = int(re.findall(r"(\d+) requests in", found)[0])
    return count, count / float(re.findall(r"Requests/sec:\s+([\d.]+)", found)[0])


def measure_rate(folder: Path, rounds: int, seconds: float, connections: int) -> None:
    """Print requests per second, and processor time of the server for each, for a small and a larger model."""
    print("| model | server | requests/s | processor time, ms | times by hand | by processor time |")
    print("|---|---|---:|---:|---:|---:|")
    for width, layers in ((64, 2), (1024, 4)):
        path = model_file(folder, width, layers)
        ky.compile(path).save(folder / "net.kyar")
        requests = requests_of(np.ones((1, width), np.float32))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("by hand", "json", "bytes")}
        ours, hand = serve(folder / "net.kyar", "--max-batch", "16"), (str(HAND_WRITTEN), str(path))
        with process(*ours) as server, process(*hand) as peer:
            for _ in range(rounds):
                for name, results in found.items():
                    used = peer if name == "by hand" else server
                    before = used.seconds()
                    given = used.ports["http"], requests[name], connections, seconds
                    count, passed = wrk(*given, folder) if shutil.which("wrk") else answers_per_second(*given)
                    results.append((count / passed, 1e3 * (used.seconds() - before) / count))
        base_rate, base_time = (statistics.median(each[i] for each in found["by hand"]) for i in (0, 1))
        for name, results in found.items():
            rate, used_ms = (statistics.median(each[i] for each in results) for i in (0, 1))
            ratios = f"{rate / base_rate:.2f} | {base_time / used_ms:.2f}"
            print(f"| {layers} x {width} | {name} | {rate:.0f} | {used_ms:.3f} | {ratios} |", flush=True)


# --- overload ---------------------------------------------------------------------------------------------------------
class Overload:
    """Sends requests of every kind, and counts what becomes of them."""

    def __init__(self, port: int, good: bytes, deadline: float) -> None:
        self._port, self._good, self._deadline = port, good, deadline
        self._poll = selectors.DefaultSelector()
        self._sent = 0
        self._begun: dict[Connection, float] = {}
        self.outcomes: Counter[str] = Counter()
        self.times: list[float] = []

    def run(self, requests: int, connections: int, between: Callable[[int], None]) -> None:
        """Keep so many connections busy until so many requests are settled; `between` is called now and then."""
        for _ in range(connections):
            self._connect()
        while self._begun:
            for key, _ in self._poll.select(60.0):
                self._settle(key.data, key.data.receive(), requests)
            between(self._sent)

    def _connect(self) -> None:
        connection = Connection(self._port)
        self._poll.register(connection.socket, selectors.EVENT_READ, connection)
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        """Send one request: of a hundred, one that is slow, one that is bad, and one whose client leaves."""
        self._sent += 1
        kind = self._sent % 100
        self._begun[connection] = time.perf_counter()
        if kind == 1:
            connection.send(self._good[:-20])  # the rest never comes
        elif kind == 2:
            connection.send(post(PATH, b'{"inputs": [{"name": 3}]}', {}))
        elif kind == 3:
            connection.send(self._good)
            self._leave(connection, "left")
            self._connect()
        else:
            connection.send(self._good)

    def _leave(self, connection: Connection, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self._poll.unregister(connection.socket)
        connection.socket.close()
        del self._begun[connection]

    def _settle(self, connection: Connection, status: int, requests: int) -> None:
        if not status:
            return
        if status == 200:  # until it was here: this process may be late itself, as when it writes a model
            self.times.append(time.perf_counter() - seconds_unread(connection.socket) - self._begun[connection])
        if status in (-1, 408) or self._sent >= requests:
            self._leave(connection, "cut off" if status < 0 else str(status))
            if self._sent < requests:
                self._connect()
            return
        self.outcomes[str(status)] += 1
        self._send(connection)


def measure_overload(folder: Path, requests: int, workers: int) -> None:
    """Print what became of requests at three times the connections that the server has room for."""
    deadline, room = 2.0, 32
    path = folder / "net.kyar"
    ky.compile(model_file(folder, 1024, 8)).save(path)
    good = requests_of(np.ones((1, 1024), np.float32))["bytes"]
    options = ["--max-queue", str(room), "--timeout", str(deadline), "--body-timeout", "1", "--max-batch", "4"]
    options += ["--workers", str(workers)] if workers else []
    with process(*serve(path, *options)) as server:
        port = server.ports["http"]
        answers_per_second(port, good, room, 3.0)
        memory = [server.resident()]
        behind = [max(map(resident, server.workers()), default=0.0)]  # of the largest worker
        reloads, left, killed = 0, list[str](), 0

        def between(sent: int) -> None:
            nonlocal reloads, killed
            if sent // max(1, requests // 20) > reloads:  # twenty times, whatever goes on
                reloads += 1
                path.with_suffix(".new").write_bytes(path.read_bytes())
                path.with_suffix(".new").replace(path)
                server.popen.send_signal(signal.SIGHUP)
                if alive := server.workers():
                    behind.append(max(map(resident, alive)))
                    os.kill(alive[reloads % len(alive)], signal.SIGKILL)
                    killed += 1
                memory.append(server.resident())

        load = Overload(port, good, deadline)
        load.run(requests, 3 * (room + 2), between)
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as counts:
            left = [line for line in counts.read().decode().splitlines() if line.startswith("kernelyard_requests_wait")]
    times = sorted(load.times)
    print(f"outcomes: {dict(sorted(load.outcomes.items()))}, of {sum(load.outcomes.values())}; at the end: {left}")
    print(
        f"p50 {1e3 * times[len(times) // 2]:.1f} ms, p99 {1e3 * times[int(0.99 * len(times))]:.1f} ms of the accepted,"
    )
    print(f"deadline {1e3 * deadline:.0f} ms; {reloads} reloads; {killed} workers killed")
    print(f"MiB: {', '.join(f'{m:.0f}' for m in memory)}; largest worker: {', '.join(f'{m:.0f}' for m in behind)}")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "rate", "overload"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "latency":
            measure_latency(Path(folder), args.rounds, args.seconds, args.workers)
        elif args.what == "rate":
            measure_rate(Path(folder), args.rounds, args.seconds, args.connections)
        else:
            measure_overload(Path(folder), args.requests, args.workers)


if __name__ == "__main__":
    main()
