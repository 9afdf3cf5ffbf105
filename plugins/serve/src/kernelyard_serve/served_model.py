"""ServedModel: one version of a model, loaded and warm, with its metadata."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kernelyard as ky
from kernelyard.errors import ExecutionError
from kernelyard_serve import rows
from kernelyard_serve.batching import Arrays, Batcher
from kernelyard_serve.datatypes import DATATYPES
from kernelyard_serve.inference import InferenceRequest, check_rows
from kernelyard_serve.metrics import ModelMetrics
from kernelyard_serve.options import ServeOptions

PLATFORM = "kernelyard"


class FileStamp(NamedTuple):
    """Identify the content of a file, to see whether it was replaced."""

    inode: int
    modified: int
    size: int

    @staticmethod
    def of(path: Path) -> FileStamp:
        """Return the stamp of a file. Raises: OSError."""
        found = os.stat(path)
        return FileStamp(found.st_ino, found.st_mtime_ns, found.st_size)


class ServedModel:
    """Run and describe one version of a model: `await served.infer(request)`.

    Example:
        >>> served = ServedModel.load(Path("net.kyar"), ModelMetrics("net", "1"), options, threads)  # doctest: +SKIP
    """

    def __init__(
        self, exe: ky.Executable, stamp: FileStamp, metrics: ModelMetrics, options: ServeOptions, executor: Executor
    ) -> None:
        self.name, self.version, self.metrics, self.stamp = metrics.model, metrics.version, metrics, stamp
        self._exe, self._timeout = exe, options.timeout
        self.inputs = {info.name: info for info in exe.inputs}
        self.outputs = tuple(info.name for info in exe.outputs)
        sizes = rows.warm_sizes(exe, options.warm)
        self.not_batched = rows.why_not_batched(exe, sizes) if options.batch.max_rows > 1 else "it was not asked for"
        self.batcher = Batcher(
            partial(_call, exe), options.batch, executor, self.metrics, batched=self.not_batched is None
        )
        self._warmed = self._warm(options, sizes)

    @staticmethod
    def load(path: Path, metrics: ModelMetrics, options: ServeOptions, executor: Executor) -> ServedModel:
        """Load an artifact and prepare its runs; metrics: counts of this version, which it takes up.

        Raises: ArtifactError, ..., as `kernelyard.load`; OSError.
        """
        stamp = FileStamp.of(path)
        return ServedModel(ky.load(path, options.threads), stamp, metrics, options, executor)

    def _warm(self, options: ServeOptions, sizes: Sequence[Mapping[str, int]]) -> int:
        """Prepare every number of rows that a batch may have, at the sizes that are known; returns how many shapes."""
        symbol = rows.batch_symbol(self._exe)
        counts = range(1, options.batch.max_rows + 1) if self.not_batched is None else (1,)
        sets = [{**({symbol: 1} if symbol else {}), **each} for each in sizes]  # which may name rows, too
        sets += [{**each, symbol: count} for each in sizes for count in counts if symbol]
        shapes = list({tuple(s.items()): s for s in (rows.shapes(self._exe, each) for each in sets)}.values())
        self._exe.max_plans = max(self._exe.max_plans, len(shapes) + 16)
        if shapes:
            self._exe.warm(*shapes, callers=options.batch.callers)
        return len(shapes)

    async def infer(self, request: InferenceRequest) -> Arrays:
        """Return the results of a request by name. Raises: QueueFullError, CallTimeoutError, and those of a call."""
        return await self.submit(request)

    def submit(self, request: InferenceRequest) -> Any:
        """Return the future of a request's results; cancelling it gives the request up. Raises: QueueFullError, ..."""
        if self.not_batched is None:
            check_rows(request.feeds)
        limits = [each for each in (request.timeout, self._timeout) if each is not None]
        now = time.monotonic()
        start = now if request.arrived is None else request.arrived
        return self.batcher.submit(request.feeds, start + min(limits) if limits else None, behind=now - start)

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """Return the protocol's metadata of the model, and where its operators run. versions: all that are served."""
        return {
            "name": self.name,
            "versions": versions,
            "platform": PLATFORM,
            "inputs": [_tensor(info) for info in self._exe.inputs],
            "outputs": [_tensor(info) for info in self._exe.outputs],
            "properties": self.properties(),
            "placement": self.placement(),
        }

    def properties(self) -> dict[str, str]:
        """Return texts on how the model was compiled and is served."""
        found = {"target": self._exe.target, "precision": self._exe.precision}
        found["placement"] = self._summary()
        found["warm"] = f"{self._warmed} sets of shapes" if self._warmed else "no: name sizes by --warm"
        found["batching"] = "yes" if self.not_batched is None else f"no: {self.not_batched}"
        return {**self._exe.metadata, **found}

    def placement(self) -> dict[str, dict[str, float]]:
        """Return by backend how many operators it runs, and their share; {} for a model without a report."""
        try:
            coverage: Mapping[str, Mapping[str, float]] = self._exe.report.coverage
        except ExecutionError:
            return {}
        return {name: dict(work) for name, work in coverage.items()}

    def _summary(self) -> str:
        try:
            return self._exe.report.summary
        except ExecutionError:
            return "unknown: the artifact has no report"


def _call(exe: ky.Executable, feeds: Arrays, timeout: float | None, cancellation: ky.Cancellation | None) -> Arrays:
    return {name: tensor.numpy() for name, tensor in exe.run(feeds, None, timeout, cancellation).items()}


def _tensor(info: Any) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in info.shape]
    return {"name": info.name, "datatype": DATATYPES[info.dtype], "shape": np.asarray(shape, np.int64).tolist()}
