"""Build the wheels of all distributions, with the files that a release needs beside them.

`python tools/wheels.py [--output dist]` writes, for the same sources, the same bytes on every machine:

- a wheel for each distribution: all are pure Python, one file for every CPython from 3.11 on and every CPU;
- `kernelyard.cdx.json`: what they are made of and need, as a CycloneDX bill of materials;
- `SHA256SUMS`: the digests of all files, for `sha256sum --check` and for a signature (`gpg --detach-sign`).

Dates come from `SOURCE_DATE_EPOCH` (https://reproducible-builds.org/specs/source-date-epoch/), else the day that the
changelog gives the newest release, else the last commit: a release's bytes are the same before and after its commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from bill_of_materials import bill_of_materials
from distributions import ROOT, Distribution, distributions

NEWEST = re.compile(r"^## \d\S*, (?:not released|(\d{4}-\d\d-\d\d))$", re.MULTILINE)
BILL, DIGESTS = "kernelyard.cdx.json", "SHA256SUMS"


def build_wheels(output: Path, root: Path = ROOT) -> dict[str, Path]:
    """Build the wheel of each distribution, the bill of materials and the digests; return the wheels by name.

    What `output` held of earlier builds goes. Raises: RuntimeError with hatchling's own words.
    """
    output.mkdir(parents=True, exist_ok=True)
    for old in [*output.glob("*.whl"), output / BILL, output / DIGESTS]:
        old.unlink(missing_ok=True)
    seconds = source_date(root)
    built = {each.name: _build(each, output.resolve(), seconds) for each in distributions(root)}
    (output / BILL).write_text(bill_of_materials(distributions(root), built, seconds), encoding="utf-8")
    named = sorted([*built.values(), output / BILL])
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in named]
    (output / DIGESTS).write_text("".join(lines), encoding="utf-8")
    return built


def source_date(root: Path = ROOT) -> int:
    """Return the date that files of a build get, in seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    newest = NEWEST.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is not None and newest[1]:
        return int(datetime.fromisoformat(f"{newest[1]}T00:00:00+00:00").timestamp())
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _build(distribution: Distribution, output: Path, seconds: int) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    done = subprocess.run(
        command, cwd=distribution.folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"hatchling builds no wheel of {distribution.name}:\n{done.stderr}")
    (wheel,) = output.glob(f"{distribution.name.replace('-', '_')}-[0-9]*.whl")
    return wheel


def main() -> int:
    """Build, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the wheels")
    options = parser.parse_args()
    built = build_wheels(options.output)
    size = sum(path.stat().st_size for path in built.values())
    print(f"{len(built)} wheels, {size / 2**20:.1f} MiB, {BILL} and {DIGESTS} in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
