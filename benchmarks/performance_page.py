"""Writes the tables of docs/performance.md from what `models.py`, `loads.py`, `roofline.py` and `sorting.py` measured.

    python benchmarks/performance_page.py [--results FOLDER]

The prose between the tables is written by hand. The charts go to docs/images: performance.png, loads.png, and
speed.png, which matplotlib draws for README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import loads
import sorting
from models import HERE, PEERS
from peers.compare import Comparison
from peers.page import markdown, overview
from roofline import Bound

PAGE = HERE.parent / "docs" / "performance.md"
CHART = HERE.parent / "docs" / "images" / "performance.png"
OVERVIEW = CHART.with_name("speed.png")
LOADS = CHART.with_name("loads.png")


def models_table(results: Path) -> str:
    """Return the tables of speed and of the cost to start, as Markdown."""
    facts = json.loads((results / "cpu.json").read_text(encoding="utf-8"))
    return markdown(_comparisons(results), PEERS, f"{facts['machine']}.").strip()


def _comparisons(results: Path) -> list[Comparison]:
    facts = json.loads((results / "cpu.json").read_text(encoding="utf-8"))
    return list(map(Comparison.from_json, facts["models"]))


def roofline_table(results: Path) -> str:
    """Return the table of the machine's limits, and how near each model comes."""
    facts = json.loads((results / "roofline.json").read_text(encoding="utf-8"))
    return "\n".join([f"{facts['machine']}.", "", *_rows([Bound(**each) for each in facts["models"]])])


def loads_table(results: Path) -> str:
    """Return the table of engines beside other work."""
    facts = json.loads((results / "loads.json").read_text(encoding="utf-8"))
    rows = [loads.Row(**row) for row in facts["rows"]]
    models = dict.fromkeys(row.model for row in rows)
    return "\n".join([f"{facts['machine']}; {', '.join(models)}.", "", *loads.markdown(rows)])


def sorting_table(results: Path) -> str:
    """Return the table of sorts, selections and running sums."""
    facts = json.loads((results / "sorting.json").read_text(encoding="utf-8"))
    return "\n".join([f"{facts['machine']}.", "", *sorting.markdown(sorting.read_rows(facts))])


def _rows(bounds: Sequence[Bound]) -> Iterator[str]:
    most = ("GFLOP/s at most", "GB/s at most", "bound by", "ms at least")
    yield f"| model | threads | GFLOP | MB | of them weights | {' | '.join(most)} | ms | share |"
    yield f"|---|{'---:|' * 6}---|{'---:|' * 3}"
    for each in bounds:
        cells = [
            *(
                f"{each.threads}",
                f"{each.flops / 1e9:.3g}",
                f"{each.nbytes / 1e6:.3g}",
                f"{each.weight_nbytes / 1e6:.3g}",
            ),
            *(f"{each.gflops:.0f}", f"{each.gbytes:.0f}", each.bound),
            *(f"{each.bound_ms:.3g}", f"{each.call_ms:.3g}", f"{100 * each.share:.0f} %"),
        ]
        yield f"| {each.model} | {' | '.join(cells)} |"


TABLES: dict[str, Callable[[Path], str]] = {
    "models": models_table,
    "loads": loads_table,
    "roofline": roofline_table,
    "sorting": sorting_table,
}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        marked = re.compile(rf"(<!-- measured: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        if len(marked.findall(text)) != 1:
            raise SystemExit(f"{PAGE} needs one place for the table {name!r}")
        text = marked.sub(lambda found, table=table: f"{found[1]}\n{table(args.results)}\n{found[2]}", text)
    PAGE.write_text(text, encoding="utf-8")
    shutil.copyfile(args.results / "cpu.png", CHART)
    shutil.copyfile(args.results / "loads.png", LOADS)
    overview(_comparisons(args.results), PEERS, OVERVIEW)


if __name__ == "__main__":
    main()
