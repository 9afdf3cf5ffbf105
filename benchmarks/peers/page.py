"""The table and the chart of a benchmark of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from peers.compare import Comparison

OURS = "kernelyard"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def markdown(comparisons: Sequence[Comparison], peers: Sequence[str], machine: str) -> str:
    """The table as a page's text: milliseconds by engine, and the ratio best peer / ours (above 1: ours is faster)."""
    lines = [machine, ""]
    for threads in sorted({each.threads for each in comparisons}):
        chosen = [each for each in comparisons if each.threads == threads]
        engines = list(dict.fromkeys(row.engine for each in chosen for row in each.rows))
        lines += [
            f"### {threads} thread{'s' if threads > 1 else ''}",
            "",
            f"| model | {' | '.join(engines)} | best of the others / ours | error |",
            f"|---|{'---:|' * (len(engines) + 2)}",
        ]
        for each in chosen:
            times = [row.p10_ms if (row := each.row(engine)) is not None else None for engine in engines]
            ratio, own = each.ratio(OURS, peers), each.row(OURS)
            cells = [f"{time:.4g}" if time is not None else "-" for time in times]
            cells += [f"{ratio:.2f}" if ratio is not None else "-", f"{own.error:.0e}" if own is not None else "-"]
            lines.append(f"| {each.model} | {' | '.join(cells)} |")
        ratios = [ratio for each in chosen if (ratio := each.ratio(OURS, peers)) is not None]
        lines += ["", f"Geometric mean of the ratios: {geometric_mean(ratios):.2f}.", ""]
    return "\n".join(lines)


def chart(comparisons: Sequence[Comparison], peers: Sequence[str], path: Path) -> None:
    """Bars of the ratio best peer / ours for each model, one colour per number of threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    threads = sorted({each.threads for each in comparisons})
    models = list(dict.fromkeys(each.model for each in comparisons))
    ratios = {(each.model, each.threads): each.ratio(OURS, peers) for each in comparisons}
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.34 * len(models)), constrained_layout=True)
    height = 0.8 / len(threads)
    for number, count in enumerate(threads):
        places = [place + number * height for place in range(len(models))]
        values = [ratios.get((model, count)) or 0.0 for model in models]
        bars = axes.barh(places, values, height, label=f"{count} thread{'s' if count > 1 else ''}")
        axes.bar_label(bars, [f"{value:.2f}" if value else "" for value in values], padding=2, fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(models))], models)
    axes.invert_yaxis()
    axes.set_xlabel("best of the others' time / ours: right of the line Kernelyard is faster")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(threads), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
