"""Worker processes of a server: started, watched, replaced when they die, and asked."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from kernelyard.plugins.sandbox.worker_process import cause
from kernelyard_serve.errors import ModelNotReadyError, ServeSetupError
from kernelyard_serve.worker_connection import Answer, WorkerConnection, WorkerLostError, request_bytes

POLL_SECONDS = 0.05
MOST_WAIT = 30.0  # seconds before a worker that keeps dying is started again; it doubles from the least
LEAST_WAIT = 0.25

Process = asyncio.subprocess.Process
Command: TypeAlias = "Callable[[int], Sequence[str]]"


class Worker:
    """Hold one process, and the connections to it."""

    def __init__(self, process: Process, path: str) -> None:
        self.process, self._path = process, path
        self.busy = 0
        self._idle: list[WorkerConnection] = []

    async def ask(self, request: bytes) -> Answer:
        """Return the answer to a request. Raises: WorkerLostError.

        Where its body comes in parts, they have to be taken, or closed: the worker counts as busy until then.
        """
        self.busy += 1
        is_whole = True
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                answer = await connection.ask(request)
            except BaseException:  # also where the client has left: the worker is to see it
                connection.close()
                raise
            if answer.parts is not None:
                is_whole = False
                return answer._replace(parts=self._parts(connection, answer.parts))
            self._idle.append(connection)
            return answer
        finally:
            self.busy -= is_whole

    async def _parts(self, connection: WorkerConnection, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the parts of an answer, after which its connection is free."""
        try:
            async for part in parts:
                yield part
            self._idle.append(connection)
        except BaseException:
            connection.close()
            raise
        finally:
            self.busy -= 1

    async def _connect(self) -> WorkerConnection:
        loop = asyncio.get_running_loop()
        try:
            return (await loop.create_unix_connection(lambda: WorkerConnection(self._remove_idle), self._path))[1]
        except OSError as error:
            raise WorkerLostError from error

    def _remove_idle(self, connection: WorkerConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is still there."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class Fleet:
    """Keep a number of workers running: one that dies is replaced.

    command: of a worker, by the number of its open socket. folder: for sockets; others must not be able to enter it.
    ready_path: what a worker answers with 200 once it is ready.
    """

    def __init__(self, command: Command, count: int, folder: Path, say: Callable[[str], None], ready_path: str) -> None:
        self._command, self.count, self._folder, self._say = command, count, folder, say
        self.ready_path = ready_path
        self.ready: list[Worker] = []
        self.ended: Callable[[Worker], None] = lambda worker: None
        self.replaced = 0
        self._controls: dict[str, bytes] = {}  # the last request that loads or unloads, by model
        self._reloads = 0
        self._keeping: list[asyncio.Task[None]] = []
        self._reading: set[asyncio.Task[None]] = set()
        self._lines: list[str] = []  # what the first worker said of its models

    async def start(self) -> None:
        """Start all workers, and return when they are ready. Raises: ServeSetupError where one ends before."""
        first = await asyncio.gather(*(self._start_worker(number) for number in range(self.count)))
        self._keeping = [asyncio.create_task(self._keep(number, worker)) for number, worker in enumerate(first)]
        for line in self._lines or [f"ready: {self.count} workers"]:
            self._say(line)

    def choose(self, lost: Worker | None = None) -> Worker:
        """Return the worker with the fewest requests. Raises: ModelNotReadyError where none is ready.

        lost: one that did not answer, which may be dead before its end is known.
        """
        alive = [worker for worker in self.ready if worker is not lost]
        if not alive:
            raise ModelNotReadyError("no worker is ready", found="they are being started")
        return min(alive, key=lambda worker: worker.busy)

    async def control(self, model: str, request: bytes) -> Answer:
        """Have all workers load or unload a model, and those that are started later; returns the worst answer.

        Raises: ModelNotReadyError where none is ready.
        """
        self.choose()
        answers = await asyncio.gather(*(each.ask(request) for each in self.ready), return_exceptions=True)
        given = [each for each in answers if isinstance(each, Answer)]
        if not given:
            raise ModelNotReadyError("all workers died", found="they are being started again")
        worst = max(given, key=lambda each: each.status)
        if worst.status == 200:
            self._controls[model] = request
        return worst

    def reload(self) -> None:
        """Have all workers load what is new of their models."""
        self._reloads += 1
        for worker in self.ready:
            worker.signal(signal.SIGHUP)

    async def stop(self, seconds: float) -> None:
        """Let the workers answer what has begun, and end them; those that take longer are killed."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for worker in self.ready:
            worker.signal(signal.SIGTERM)
        for worker in self.ready:
            await _wait_or_kill(worker.process, seconds)

    # --- one place in the fleet ---------------------------------------------------------------------------------------
    async def _keep(self, number: int, worker: Worker) -> None:
        """Replace the worker of a place whenever it ends."""
        wait = LEAST_WAIT
        while True:
            status = await worker.process.wait()
            self.ready.remove(worker)
            self.ended(worker)
            self.replaced += 1
            self._say(f"replaced: worker {number}, which ended with {cause(status)}")
            while True:
                try:
                    worker = await self._start_worker(number)
                except ServeSetupError as error:
                    self._say(f"not started again: worker {number}: {error.message}; the next try is in {wait:g} s")
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, MOST_WAIT)
                else:
                    wait = LEAST_WAIT
                    break

    async def _start_worker(self, number: int) -> Worker:
        """Start a worker, and return it when it is ready. Raises: ServeSetupError where it ends before."""
        path = str(self._folder / f"{number}-{self.replaced}.sock")
        reloads = self._reloads
        Path(path).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(2048)
            process = await asyncio.create_subprocess_exec(
                *self._command(listening.fileno()),
                stdin=asyncio.subprocess.PIPE,  # its end shows a worker that the front is gone
                stdout=asyncio.subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # Ctrl-C is for the front, which then stops its workers
            )
        worker = Worker(process, path)
        try:
            reading = asyncio.create_task(self._read(process, number == 0 and not self._keeping))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)
            await self._wait_until_ready(worker)
        except BaseException:
            worker.signal(signal.SIGKILL)
            await process.wait()
            raise
        self.ready.append(worker)
        if reloads != self._reloads:  # it may have read what was replaced meanwhile
            worker.signal(signal.SIGHUP)
        return worker

    async def _wait_until_ready(self, worker: Worker) -> None:
        asked: dict[str, bytes] = {}
        ready = request_bytes("GET", self.ready_path.encode())
        while worker.process.returncode is None:
            try:
                answer = await worker.ask(ready)
                if answer.status == 200:
                    for model, request in [each for each in self._controls.items() if asked.get(each[0]) != each[1]]:
                        asked[model] = request
                        await worker.ask(request)
                    if asked == self._controls:
                        return
                    continue
            except WorkerLostError:
                pass
            await asyncio.sleep(POLL_SECONDS)
        status = cause(worker.process.returncode)
        raise ServeSetupError("a worker ended before it was ready", found=status, hint="see its output for the reason")

    async def _read(self, process: Process, is_first: bool) -> None:
        """Pass on what a worker prints: what failed, and how models were placed, the latter of the first one alone."""
        assert process.stdout is not None
        async for data in process.stdout:
            line = data.decode(errors="replace").rstrip()
            if line.startswith("ready: "):
                if is_first:
                    self._lines.append(line)
            elif not line.startswith("listening on "):
                self._say(line)


async def _wait_or_kill(process: Process, seconds: float) -> None:
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
