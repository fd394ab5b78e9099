#!/usr/bin/env python3
"""Plot a result of bench_attention.py: time against tokens, a line a kernel.

Usage: plot_attention.py RESULT.json

Writes RESULT.png beside it. Needs matplotlib (pip install 'sglang-dsv4-nvfp4[benchmark]').
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# The c4 shape, which has the baselines.
EXTRA_TOPK, EXTRA_PAGE_SIZE = 512, 64


def plot(result: Path) -> Path:
    """One panel for each number of heads, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = json.loads(result.read_text())
    rows = [
        row
        for row in data["rows"]
        if (row["extra_topk"], row["extra_page_size"]) == (EXTRA_TOPK, EXTRA_PAGE_SIZE)
    ]
    heads = sorted({row["heads"] for row in rows})
    figure, panels = pyplot.subplots(
        1, len(heads), figsize=(5 * len(heads), 4.5), sharey=True, squeeze=False
    )
    for panel, count in zip(panels[0], heads, strict=True):
        for name, times in _lines([row for row in rows if row["heads"] == count]):
            panel.plot(*zip(*times, strict=True), marker="o", markersize=3, label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(f"{count} heads, 128 + {EXTRA_TOPK} candidates")
        panel.set_xlabel("query tokens")
        panel.grid(True, which="both", alpha=0.2)
    panels[0][0].set_ylabel("microseconds")
    panels[0][-1].legend(fontsize=8)
    figure.suptitle(f"{data['device']}, {data['date']}")
    figure.tight_layout()
    path = result.with_suffix(".png")
    figure.savefig(path, dpi=120)
    return path


def _lines(rows: list[dict]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Kernels and baselines with their (tokens, us), and the floor."""
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        lines.setdefault(f"NVFP4: {row['kernel']}", {})[row["tokens"]] = row["us"]
        lines.setdefault(row["baseline"], {})[row["tokens"]] = row["baseline_us"]
        floor = row["us"] * row["floor_share"]
        lines.setdefault("what bytes and flops allow", {})[row["tokens"]] = floor
    return [(name, sorted(times.items())) for name, times in lines.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    print(plot(args.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
