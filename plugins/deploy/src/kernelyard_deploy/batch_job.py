"""Batch jobs: the rows of tables through a model, in shards; each shard is one file, there whole or not at all.

A job's folder has `job.json`, which says what is computed of what, and a part for each shard that is done. A job that
was stopped or killed goes on where it was: parts that are there are not computed again. A part takes its name by a
rename, so that a worker that is killed leaves nothing that counts, and a shard that two workers compute is there once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelyard.errors import KernelyardError
from kernelyard_deploy.errors import BatchJobError
from kernelyard_deploy.predictor import Predictor
from kernelyard_deploy.tables import Columns, Piece, columns_of, format_of

JOB = "job.json"
SCHEMA = 1


class Shard(NamedTuple):
    """Name some rows of a table, and the number of the part that holds their results."""

    number: int
    source: int
    piece: Piece


@dataclass(frozen=True)
class Job:
    """Describe a batch job: enough for any process that reads the same files to compute any shard.

    digest: of the artifact. sources: paths with sizes in bytes. keep: columns that results carry on.
    """

    artifact: str
    digest: str
    sources: tuple[tuple[str, int], ...]
    folder: str
    batch_rows: int
    keep: tuple[str, ...]
    threads: int
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        """Return how many rows all tables have."""
        return sum(shard.piece.rows for shard in self.shards)

    def part(self, shard: Shard) -> Path:
        """Return the file that a shard becomes, in the format of its source."""
        return Path(self.folder, f"part-{shard.number:06}{Path(self.sources[shard.source][0]).suffix}")

    def list_remaining(self) -> list[Shard]:
        """Return the shards that are not done."""
        return [shard for shard in self.shards if not self.part(shard).exists()]

    def to_json(self) -> dict[str, Any]:
        """Return what the job's folder keeps: what two runs of one job have in common."""
        shards = [[shard.source, shard.piece.rows, list(shard.piece.parts)] for shard in self.shards]
        kept = {key: value for key, value in asdict(self).items() if key in ("digest", "sources", "keep")}
        return {"schema": SCHEMA, **kept, "shards": shards}


def plan(
    artifact: Path,
    sources: Sequence[Path],
    folder: Path,
    shard_rows: int,
    batch_rows: int,
    keep: Sequence[str],
    threads: int,
) -> Job:
    """Cut tables into shards, and compare with the job whose folder this is, if there is one.

    Raises: BatchJobError for no tables, tables that cannot be read, a folder of another job or of something else.
    """
    if not sources:
        raise BatchJobError("there are no tables to read", expected=".parquet or .npz files")
    pieces = [(number, piece) for number, path in enumerate(sources) for piece in format_of(path).cut(path, shard_rows)]
    job = Job(
        artifact=str(artifact.absolute()),
        digest=_digest(artifact),
        sources=tuple((str(path.absolute()), path.stat().st_size) for path in sources),
        folder=str(folder.absolute()),
        batch_rows=batch_rows,
        keep=tuple(keep),
        threads=threads,
        shards=tuple(Shard(number, source, piece) for number, (source, piece) in enumerate(pieces)),
    )
    _claim(job)
    return job


def _digest(path: Path) -> str:
    """Return the SHA-256 of an artifact; a file that stays as it is, is read once per process."""
    try:
        status = path.stat()
        return _digest_of(path.absolute(), status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise BatchJobError("the artifact cannot be read", where=str(path), found=error.strerror) from error


@lru_cache(maxsize=64)
def _digest_of(path: Path, inode: int, nbytes: int, modified_ns: int) -> str:
    """Return the SHA-256 of a file; its inode, size and time of modification tell one content from another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _claim(job: Job) -> None:
    """Write what the job is into its folder, or make sure that the folder is that of this job."""
    folder, text = Path(job.folder), json.dumps(job.to_json(), sort_keys=True)
    if not folder.is_dir() or not any(folder.iterdir()):
        write_whole(folder / JOB, text.encode())
        return
    try:
        there = (folder / JOB).read_text(encoding="utf-8")
    except OSError:
        there = ""
    if there != text:
        raise BatchJobError(
            "the folder is not that of this job",
            where=str(folder),
            found="another artifact, other tables or columns" if there else f"no {JOB}",
            hint="give a new folder, or the arguments that the job was started with",
        )


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name, and rename it when it is complete. Raises: BatchJobError."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise BatchJobError(f"cannot write {path}", found=error.strerror) from error
    finally:
        if temporary.exists():
            temporary.unlink()


def run_shard(job: Job, shard: Shard) -> int:
    """Compute a shard in this process, and return its rows. Raises: BatchJobError, and as `Predictor`."""
    path, nbytes = Path(job.sources[shard.source][0]), job.sources[shard.source][1]
    if not path.exists() or path.stat().st_size != nbytes:
        raise BatchJobError("a table is not what it was when the job was begun", where=str(path))
    predictor = Predictor(job.artifact, job.threads)
    inputs = {info.name: info.shape for info in predictor.executable.inputs}
    kind, columns = format_of(path), columns_of(inputs, job.keep)
    results = (_results(predictor, batch, job.keep) for batch in kind.read(path, shard.piece, columns, job.batch_rows))
    part = job.part(shard)
    temporary = part.with_name(f".{part.name}.{os.urandom(6).hex()}.tmp")
    try:
        rows = kind.write(temporary, results)
        if rows != shard.piece.rows:
            raise BatchJobError(
                "a shard gave another number of rows", where=str(path), found=rows, expected=shard.piece.rows
            )
        os.replace(temporary, part)
    except OSError as error:
        raise BatchJobError(f"cannot write {part}", found=error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _results(predictor: Predictor, batch: Columns, keep: Sequence[str]) -> Columns:
    rows = len(next(iter(batch.values())))
    results = predictor(batch)
    wrong = {name: list(np.shape(array)) for name, array in results.items() if np.shape(array)[:1] != (rows,)}
    if wrong:
        raise BatchJobError("a result has not a row for each row of the table", found=wrong, expected=f"{rows} rows")
    return {**{name: batch[name] for name in keep}, **results}


def failure_json(error: Exception) -> dict[str, Any]:
    """Return an error as JSON data: a worker's, for its supervisor."""
    if isinstance(error, KernelyardError):
        return error.to_json()
    return {"code": "", "error": type(error).__name__, "message": str(error)}
