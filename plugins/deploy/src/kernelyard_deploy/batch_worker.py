"""A worker of a batch job: reads shards from its standard input, line by line, and answers each with a line.

`python -m kernelyard_deploy.batch_worker`. It ends when its input does, and so does not outlive its supervisor by more
than a shard. What libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from kernelyard_deploy.batch_job import Job, Shard, failure_json, run_shard
from kernelyard_deploy.tables import Piece


def main() -> None:
    """Read the job, then shards, until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = job_from_json(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        try:
            answer = {"rows": run_shard(job, job.shards[int(line)])}
        except Exception as error:  # whatever it is, the supervisor says it
            answer = {"failed": failure_json(error)}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # nobody waits for it any more; the part is there
            return


def job_from_json(data: dict[str, Any]) -> Job:
    """Read a job from its supervisor."""
    shards = tuple(Shard(number, source, Piece(rows, tuple(parts))) for number, source, (rows, parts) in data["shards"])
    sources = tuple((path, nbytes) for path, nbytes in data["sources"])
    return Job(**{**data, "shards": shards, "sources": sources, "keep": tuple(data["keep"])})


if __name__ == "__main__":
    main()
