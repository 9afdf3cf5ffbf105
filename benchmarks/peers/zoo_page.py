"""The page and the chart of the zoo: every network by ratio, and those that are refused, wrong or slow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.compare import Comparison, Row
from peers.page import COLOURS, LINE, geometric_mean
from peers.start import OURS, REFERENCE

# Results are wrong from this difference on, relative to the largest: reordered float32 sums stay well below it.
BOUND = 1e-3
SLOW = 0.95
MARK = "<!-- measured: {} -->", "<!-- end -->"


def write_page(
    found: Sequence[Comparison], peers: Sequence[str], machine: str, docs: Path, names: Sequence[str]
) -> None:
    """Write the tables of docs/zoo.md and its chart. names: all networks of the zoo, measured or not."""
    page = docs / "zoo.md"
    text = page.read_text(encoding="utf-8")
    tables = {"zoo": "\n".join(_tables(found, peers, machine, len(names)))}
    for name, table in tables.items():
        start, end = (mark.format(name) for mark in MARK)
        before, rest = text.split(f"{start}\n", 1)
        text = f"{before}{start}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    page.write_text(text, encoding="utf-8")
    chart(found, peers, docs / "images" / "zoo.png")


def refused(each: Comparison) -> str:
    """Return why our engine did not run a network; nothing where it did."""
    return next((row.failure for row in each.rows if row.engine == OURS and row.failure), "")


def _tables(found: Sequence[Comparison], peers: Sequence[str], machine: str, total: int) -> Iterator[str]:
    invalid = sorted({each.model for each in found if all(row.failure for row in each.rows)})
    found = [each for each in found if each.model not in invalid]
    threads = sorted({each.threads for each in found})
    line = f"{machine}; {len({each.model for each in found})} of {total} networks."
    yield f"{line} No engine takes {', '.join(invalid)}, as exported." if invalid else line
    for number in threads:
        chosen = [each for each in found if each.threads == number]
        ratios = _ratios(chosen, peers)
        if not ratios:
            continue
        yield ""
        yield f"### {number} thread{'s' if number > 1 else ''}"
        yield ""
        yield "| kind | networks | geometric mean | least | below 0.95 | refused | wrong |"
        yield "|---|---:|---:|---:|---:|---:|---:|"
        yield from (_summary(kind, chosen, peers) for kind in ("", *sorted({_kind(each) for each in chosen})))
        yield ""
        yield from _faults(chosen)
        yield "| network | ours, ms | onnxruntime / ours | OpenVINO / ours | error |"
        yield "|---|---:|---:|---:|---:|"
        yield from (_line(each) for _, each in reversed(ratios))


def _kind(each: Comparison) -> str:
    return each.model.partition("_")[0]


def _summary(kind: str, chosen: Sequence[Comparison], peers: Sequence[str]) -> str:
    """Return a line of the table of kinds; "": of all."""
    those = [each for each in chosen if not kind or _kind(each) == kind]
    ratios = [ratio for ratio, _ in _ratios(those, peers)]
    counts = (
        sum(ratio < SLOW for ratio in ratios),
        sum(bool(refused(each)) for each in those),
        sum(map(is_wrong, those)),
    )
    numbers = f"{geometric_mean(ratios):.2f} | {min(ratios, default=math.nan):.2f}"
    return f"| {kind or 'all'} | {len(those)} | {numbers} | {' | '.join(map(str, counts))} |"


def _faults(chosen: Sequence[Comparison]) -> Iterator[str]:
    for each in chosen:
        if why := refused(each):
            yield f"- {each.model} is refused: {why.splitlines()[0]}"
        elif is_wrong(each):
            yield f"- {each.model} is wrong by {error_of(each):.1e}"
    if any(refused(each) or is_wrong(each) for each in chosen):
        yield ""


def _ratios(chosen: Sequence[Comparison], peers: Sequence[str]) -> list[tuple[float, Comparison]]:
    """Return the ratio of each network that has one, largest first."""
    known = [(ratio_of(each, peers), each) for each in chosen]
    return sorted(((r, each) for r, each in known if r is not None), key=lambda pair: -pair[0])


def ratio_of(each: Comparison, peers: Sequence[str]) -> float | None:
    """Return how many times as fast our engine is as the fastest peer: by the time of the processor with one thread,
    and by the clock with more, which wait for one another."""
    return each.processor_ratio(peers) if each.threads == 1 else each.ratio(peers)


def error_of(each: Comparison) -> float:
    """Return the largest difference to the reference's results, relative to the largest; NaN where there is none."""
    row = each.row(OURS)
    return math.nan if row is None else row.error


def is_wrong(each: Comparison) -> bool:
    """Return True where our results are further from the reference's than `BOUND`."""
    return error_of(each) > BOUND


def _line(each: Comparison) -> str:
    ours, reference, openvino = (each.row(engine) for engine in (OURS, REFERENCE, "openvino"))
    ratios = " | ".join(_ratio(row, each.threads) for row in (reference, openvino))
    time = "-" if ours is None else f"{ours.processor_ms if each.threads == 1 else ours.p10_ms:.3g}"
    error = error_of(each)
    return f"| {each.model} | {time} | {ratios} | {'-' if math.isnan(error) else f'{error:.0e}'} |"


def _ratio(row: Row | None, threads: int) -> str:
    ratio = math.nan if row is None else row.processor_ratio if threads == 1 else row.ratio
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def chart(found: Sequence[Comparison], peers: Sequence[str], path: Path, threads: int = 1) -> None:
    """Draw every network's ratio, sorted, in the colour of its kind, with a line at 1 and one at the mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    ratios = _ratios([each for each in found if each.threads == threads], peers)
    values = [ratio for ratio, _ in ratios]
    kinds = [_kind(each) for _, each in ratios]
    colours = dict(zip(dict.fromkeys(sorted(kinds)), (*COLOURS, "#b5443a"), strict=False))
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.145 * len(values)), constrained_layout=True)
    places = range(len(values))
    axes.barh(places, [value - 1 for value in values], 0.72, left=1, color=[colours[kind] for kind in kinds], zorder=2)
    labels = [each.model.partition("_")[2] for _, each in ratios]
    axes.set_yticks(places, labels, fontsize=6)
    for place, value in zip(places, values, strict=True):
        axes.text(value + (0.02 if value >= 1 else -0.02), place, f"{value:.2f}", fontsize=5.5, va="center",
                  ha="left" if value >= 1 else "right", color=LINE)  # fmt: skip
    mean = geometric_mean(values)
    axes.axvline(1, color=LINE, linewidth=1)
    axes.axvline(mean, color=LINE, linewidth=1, linestyle="--", zorder=1)
    axes.text(mean, len(values) - 0.3, f" geometric mean {mean:.2f}", fontsize=7, va="bottom", color=LINE)
    axes.set_ylim(len(values) + 0.8, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(0.6, max(values) * 1.15)
    axes.set_xticks([0.7, 1, 1.5, 2, 3], ["0.7", "1", "1.5", "2", "3"], fontsize=7)
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.legend(
        handles=[Patch(color=colours[kind], label=kind) for kind in colours],
        fontsize=7,
        frameon=False,
        loc="lower right",
    )
    title = f"Best of {', '.join(peers)} / Kernelyard, processor time of a call, {threads} thread"
    axes.set_title(f"{title}\n(right of 1: Kernelyard is faster)", fontsize=9, loc="left")
    figure.savefig(path, dpi=140)
    plt.close(figure)
