"""Timing and result files, the same for every benchmark of this project.

A result file is ``benchmark/<area>/results/<device>.json``::

    {device, date, versions, ceilings, rows: [{case, tokens, heads?, us, baseline,
     baseline_us, ratio, floor_share?}]}

Times are medians of CUDA-graph replays, the arms of a comparison in turn. A graph runs
a case once on each of several input sets; together they go past the L2 where one set
is some megabytes, and lie in it where a decode step's inputs would too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from sglang_dsv4_nvfp4.machine import device_name, device_slug, versions

WARMUP_REPLAYS = 3
REPLAYS = 30
# Input sets take turns; together they go past an L2 where one set is some megabytes.
INPUT_BYTES = 256 << 20
MAX_INPUT_SETS = 16


def out_folder(script: str, description: str) -> Path:
    """Where a benchmark's results go, ``results`` beside it or ``--out``; it needs a GPU."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    results = Path(script).resolve().parent / "results"
    parser.add_argument("--out", type=Path, default=results)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    return args.out


def num_input_sets(bytes_of_a_set: int) -> int:
    """How many input sets an arm's runs take turns with."""
    return max(2, min(MAX_INPUT_SETS, INPUT_BYTES // bytes_of_a_set))


def time_arms(arms: dict[str, Sequence[Callable[[], None]]]) -> dict[str, float]:
    """Median microseconds of one run of each arm, the arms replayed in turn.

    An arm is a list of runs that do the same on different inputs.
    """
    graphs = {name: _capture(runs) for name, runs in arms.items()}
    times = {name: [] for name in arms}
    for replay in range(WARMUP_REPLAYS + REPLAYS):
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if replay >= WARMUP_REPLAYS:
                us = start.elapsed_time(stop) * 1000 / len(arms[name])
                times[name].append(us)
    return {name: statistics.median(values) for name, values in times.items()}


def _capture(runs: Sequence[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    for run in runs:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph


def copy_bandwidth() -> float:
    """Bytes read plus bytes written a second, of a large device-to-device copy.

    A kernel copies: ``copy_`` in a graph becomes a node for the copy engine, which was
    a third slower on an H200.
    """
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    us = time_arms({"copy": [lambda: torch.neg(source, out=target)]})["copy"]
    return 2 * source.nbytes / us * 1e6


def matmul_rate() -> float:
    """Operations a second of a large BF16 product of random matrices."""
    size = 8192
    left, right = (
        torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    product = torch.empty_like(left)
    runs = [lambda: torch.matmul(left, right, out=product)]
    us = time_arms({"matmul": runs})["matmul"]
    return 2 * size**3 / us * 1e6


def row(
    case: str,
    tokens: int,
    us: float,
    baseline: str,
    baseline_us: float,
    floor_us: float | None = None,
    **more,
) -> dict:
    """One row of a result file; ``floor_us`` is what bytes and flops allow."""
    made = {
        "case": case,
        "tokens": tokens,
        **more,
        "us": us,
        "baseline": baseline,
        "baseline_us": baseline_us,
        "ratio": us / baseline_us,
    }
    if floor_us is not None:
        made["floor_share"] = floor_us / us
    return made


def table(rows: Sequence[dict]) -> str:
    """The rows as text."""
    lines = [
        f"{'case':34}{'tokens':>7}{'us':>10}{'baseline us':>13}{'ratio':>8}"
        f"{'of floor':>10}  baseline"
    ]
    for made in rows:
        share = made.get("floor_share")
        lines.append(
            f"{made['case']:34}{made['tokens']:>7}{made['us']:>10.2f}"
            f"{made['baseline_us']:>13.2f}{made['ratio']:>8.2f}"
            f"{f'{share:.0%}' if share is not None else '':>10}  {made['baseline']}"
        )
    return "\n".join(lines)


def write(folder: Path, ceilings: dict, rows: list[dict], **more) -> Path:
    """Write the GPU's rows to ``<folder>/<device>.json`` and say where."""
    path = folder / f"{device_slug()}.json"
    return write_result(path, device_name(), ceilings, rows, **more)


def write_result(
    path: Path, device: str, ceilings: dict, rows: list[dict], **more
) -> Path:
    """Write one result file and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "device": device,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "ceilings": ceilings,
        "rows": rows,
        **more,
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path}")
    return path
