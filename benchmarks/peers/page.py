"""The tables and the chart of a benchmark of models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from peers.compare import Comparison
from peers.start import OURS, READY_SECONDS, READY_TIMES

# Of the chart: one colour for each number of threads, and one for where the best of the others stands.
COLOURS = ("#1f6f8b", "#e08e45", "#6a4c93", "#7a7a7a")
LINE = "#333333"
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # of a number that a line may cross


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def markdown(comparisons: Sequence[Comparison], peers: Sequence[str], machine: str) -> str:
    """Tables by number of threads: speed, and what it costs to start."""
    lines = [machine, ""]
    for threads in sorted({each.threads for each in comparisons}):
        chosen = [each for each in comparisons if each.threads == threads]
        lines += [f"### {threads} thread{'s' if threads > 1 else ''}", "", *_speed(chosen, peers), "", *_starts(chosen)]
    return "\n".join(lines)


def _speed(chosen: Sequence[Comparison], peers: Sequence[str]) -> Iterator[str]:
    """Milliseconds by engine, the ratio best peer / ours (above 1: ours is faster), and our error."""
    engines = list(dict.fromkeys(row.engine for each in chosen for row in each.rows))
    slow = [engine for engine in engines if engine not in (OURS, *peers) and not engine.startswith(OURS)]
    head = [*engines, "best of the others / ours", *(f"{engine} / ours" for engine in slow), "error"]
    yield "Milliseconds, the 10th percentile of all calls."
    yield ""
    yield f"| model | {' | '.join(head)} |"
    yield f"|---|{'---:|' * len(head)}"
    for each in chosen:
        own = each.row(OURS)
        rows = [each.row(engine) for engine in engines]
        cells = [_number(row.p10_ms) if row is not None else "-" for row in rows]
        ratios = [each.ratio(peers), *(each.ratio([engine]) for engine in slow)]
        cells += [f"{ratio:.2f}" if ratio is not None else "-" for ratio in ratios]
        cells += [f"{own.error:.0e}" if own is not None and not math.isnan(own.error) else "-"]
        yield f"| {each.model} | {' | '.join(cells)} |"
    yield ""
    yield f"Geometric mean of best of the others / ours: {geometric_mean(_ratios(chosen, peers)):.2f}."


def _starts(chosen: Sequence[Comparison]) -> Iterator[str]:
    """Seconds and memory of our engine, from an artifact and from the model, beside the reference's."""
    measured = [(each.model, each.starts) for each in chosen if each.starts is not None]
    if not measured:
        return
    yield "Cold: seconds from the start of the process to the first result, ours from an artifact. Ready: seconds from"
    yield f"ONNX to a program or session, without imports; ours may take {READY_TIMES} times onnxruntime's and"
    yield f"{READY_SECONDS} s. Peak: the most memory until then, in MiB. Ratios are ours / onnxruntime's."
    yield ""
    head = ("cold", "onnxruntime", "ratio", "ready", "onnxruntime", "limit")
    peaks = ("peak, artifact", "peak, ONNX", "onnxruntime", "ratio, artifact", "ratio, ONNX")
    yield f"| model | {' | '.join((*head, *peaks))} |"
    yield f"|---|{'---:|' * 11}"
    for model, starts in measured:
        artifact, ours, reference = starts.artifact, starts.model, starts.reference
        peaks = [f"{start.peak_mib:.0f}" for start in (artifact, ours, reference)]
        cells = [
            *(f"{artifact.cold_seconds:.2f}", f"{reference.cold_seconds:.2f}", f"{starts.cold_ratio:.2f}"),
            *(f"{ours.ready_seconds:.2f}", f"{reference.ready_seconds:.2f}", f"{starts.ready_limit:.2f}"),
            *peaks,
            *(f"{starts.peak_ratio(artifact):.2f}", f"{starts.peak_ratio(ours):.2f}"),
        ]
        yield f"| {model} | {' | '.join(cells)} |".replace("nan", "-")
    cold = geometric_mean(_known(starts.cold_ratio for _, starts in measured))
    peak = geometric_mean(_known(starts.peak_ratio(starts.artifact) for _, starts in measured))
    yield ""
    yield f"Geometric means: cold {cold:.2f}, peak from an artifact {peak:.2f}."
    yield ""


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _number(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _ratios(chosen: Sequence[Comparison], peers: Sequence[str]) -> list[float]:
    return [ratio for each in chosen if (ratio := each.ratio(peers)) is not None]


def chart(comparisons: Sequence[Comparison], peers: Sequence[str], path: Path) -> None:
    """Bars of the ratio best peer / ours for each model, one colour per number of threads; the mean is the last."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    threads = sorted({each.threads for each in comparisons})
    models = list(dict.fromkeys(each.model for each in comparisons))
    ratios = {(each.model, each.threads): each.ratio(peers) for each in comparisons}
    names = [*models, "geometric mean"]
    figure, axes = plt.subplots(figsize=(8.5, 1.1 + 0.36 * len(names)), constrained_layout=True)
    height = 0.78 / len(threads)
    longest = max((ratio for ratio in ratios.values() if ratio), default=1.0)
    for number, count in enumerate(threads):
        mean = geometric_mean(_ratios([each for each in comparisons if each.threads == count], peers))
        values = [ratios.get((model, count)) or math.nan for model in models] + [mean]
        places = [place + (place == len(models)) * 0.3 + (number + 0.5) * height - 0.39 for place in range(len(names))]
        label = f"{count} thread{'s' if count > 1 else ''}"
        colours = [COLOURS[number % len(COLOURS)]] * len(names)
        bars = axes.barh(places, values, 0.92 * height, label=label, color=colours, zorder=2)
        texts = ["" if math.isnan(value) else f"{value:.2f}" for value in values]
        axes.bar_label(bars, texts, padding=3, fontsize=7.5, color=LINE, zorder=4, bbox=BEHIND)
    axes.axvline(1, color=LINE, linewidth=1.2, zorder=3)
    axes.axhline(len(models) - 0.35, color="#bbbbbb", linewidth=0.8)
    axes.set_yticks([*range(len(models)), len(models) + 0.3], names, fontsize=9)
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.set_ylim(len(names) - 0.05, -0.6)
    axes.set_xlim(0, 1.1 * longest)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8, zorder=0)
    axes.tick_params(axis="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"How many times as fast as the best of {', '.join(peers)}", fontsize=11, loc="left", pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(threads), frameon=False, fontsize=9)
    axes.set_xlabel("right of the line Kernelyard is faster", fontsize=9, color=LINE)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def overview(comparisons: Sequence[Comparison], peers: Sequence[str], path: Path, threads: int = 1) -> None:
    """Draw the ratio best peer / ours of each model as a bar, largest first, with a line at 1 and one at the mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ratios = [(ratio, each.model) for each in comparisons if each.threads == threads and (ratio := each.ratio(peers))]
    ratios.sort(reverse=True)
    values = [ratio for ratio, _ in ratios]
    mean = geometric_mean(values)
    figure, axes = plt.subplots(figsize=(8.5, 2.9), constrained_layout=True)
    bars = axes.bar(range(len(values)), values, 0.72, color=COLOURS[0], zorder=2)
    texts = [f"{value:.2f}" for value in values]
    axes.bar_label(bars, texts, padding=2, fontsize=6.5, color=LINE, bbox=BEHIND, zorder=4)
    axes.axhline(1, color=LINE, linewidth=1.2, zorder=3)
    axes.axhline(mean, color=COLOURS[1], linewidth=1.2, linestyle="--", zorder=1)
    axes.text(len(values) - 0.4, mean, f" geometric\n mean {mean:.2f}", fontsize=8, va="center", color=LINE)
    axes.set_xticks(range(len(values)), [model for _, model in ratios], rotation=40, ha="right", fontsize=7.5)
    axes.set_xlim(-0.7, len(values) - 0.4)
    axes.tick_params(axis="both", length=0)
    axes.spines[:].set_visible(False)
    title = f"Best of {', '.join(peers)} / Kernelyard, time per call, {threads} thread{'s' if threads > 1 else ''}"
    axes.set_title(f"{title} (above 1: Kernelyard is faster)", fontsize=9, loc="left")
    figure.savefig(path, dpi=140)
    plt.close(figure)
