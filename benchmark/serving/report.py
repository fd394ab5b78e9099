"""The comparison as a Markdown table and as plots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from serving.samples import ARMS, METRICS, Comparison

from sglang_dsv4_nvfp4.machine import versions_text

_CLUSTERED = "*"


def markdown(settings: dict, comparisons: Sequence[Comparison]) -> str:
    """Medians of each arm, and what NVFP4 changes, with its spread."""
    versions = versions_text(settings["versions"])
    options = f", `{' '.join(settings['server_args'])}`" * bool(settings["server_args"])
    lines = [
        f"# FP8 against NVFP4: {settings['model_path']}",
        "",
        f"{settings['device']}, {settings['date']}; {versions}. Topology "
        f"{settings['topology']}{options}; {settings['max_total_tokens']:,} tokens in "
        "both servers.",
        "",
        "Medians over samples; the change is of the medians, and in brackets the least "
        "and the greatest of samples taken in the same round.",
        "",
        "| workload | | fp8 | nvfp4 | change | samples |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [_row(one) for one in comparisons]
    if any(one.clustered for one in comparisons):
        lines += [
            "",
            f"{_CLUSTERED} These samples fall into two clusters, so their median says "
            "little; look at the raw ones. Up to 3 in 100 cells of samples of one kind "
            "are marked by chance.",
        ]
    return "\n".join(lines) + "\n"


def _row(one: Comparison) -> str:
    medians = [
        (
            f"{statistics.median(one.values[arm]):,.1f}"
            + (_CLUSTERED if arm in one.clustered else "")
            if one.values[arm]
            else ""
        )
        for arm in ARMS
    ]
    change = ""
    if one.change is not None:
        change = f"{one.change:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
    counts = " and ".join(str(len(one.values[arm])) for arm in ARMS)
    return (
        f"| {one.cell} | {one.metric.label} | {medians[0]} | {medians[1]} | {change} | "
        f"{counts} |"
    )


def plot(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """One PNG a metric: every sample as a point over its arm's median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    for metric in METRICS:
        cells = [one for one in comparisons if one.metric == metric]
        figure, axes = pyplot.subplots(figsize=(1.5 + 2 * len(cells), 4))
        for position, one in enumerate(cells):
            for offset, arm, color in zip((-0.2, 0.2), ARMS, ("C0", "C1"), strict=True):
                values = one.values[arm]
                if not values:
                    continue
                at = position + offset
                axes.bar(at, statistics.median(values), 0.36, color=color, alpha=0.5)
                axes.plot([at] * len(values), values, "o", color=color, markersize=4)
        axes.set_xticks(range(len(cells)), [one.cell for one in cells], fontsize=8)
        axes.set_ylabel(metric.label)
        axes.set_title("FP8 (left) and NVFP4 (right); points are samples", fontsize=9)
        figure.tight_layout()
        path = folder / f"{metric.key}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        paths.append(path)
    return paths
