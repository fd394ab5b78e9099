"""Samples on disk, and what they say: medians, differences with their spread, clusters."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ARMS = ("fp8", "nvfp4")


@dataclass(frozen=True)
class Metric:
    """One of ``bench_serving``'s results."""

    key: str
    label: str


METRICS = (
    Metric("total_throughput", "throughput, tok/s"),
    Metric("median_ttft_ms", "median TTFT, ms"),
    Metric("p99_ttft_ms", "P99 TTFT, ms"),
    Metric("median_tpot_ms", "median TPOT, ms"),
)

# Samples of one kind show a gap that is wide for the spread of both sides now and then,
# the more easily the fewer they are. This many times the spread of n normal samples
# happens to fewer than 3 % of cells (fitted to drawn ones; a test draws them again).
_MIN_IN_CLUSTER = 2
_MIN_GAP = 0.01


def _gap_of_chance(n: int) -> float:
    return 0.3 + 60 / n**2


@dataclass(frozen=True)
class Sample:
    """One run of one workload against one server.

    tokens: the server's KV cache.
    result: what ``bench_serving`` wrote.
    """

    cell: str
    arm: str
    number: int
    tokens: int
    result: dict


def path_of(folder: Path, cell: str, arm: str, number: int) -> Path:
    return folder / "raw" / f"{cell}.{arm}.{number}.json"


def write(folder: Path, sample: Sample) -> None:
    """The file is there whole, or not at all."""
    path = path_of(folder, sample.cell, sample.arm, sample.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(vars(sample), indent=1) + "\n")
    unfinished.replace(path)


def read(folder: Path) -> list[Sample]:
    return [
        Sample(**json.loads(path.read_text()))
        for path in sorted((folder / "raw").glob("*.json"))
    ]


def check_comparable(samples: Iterable[Sample]) -> None:
    """
    Raises:
        ValueError: servers of different token counts were measured.
    """
    by_tokens: dict[int, set[str]] = {}
    for sample in samples:
        by_tokens.setdefault(sample.tokens, set()).add(sample.arm)
    if len(by_tokens) > 1:
        said = "; ".join(
            f"{tokens} tokens: {', '.join(sorted(arms))}"
            for tokens, arms in sorted(by_tokens.items())
        )
        raise ValueError(
            f"the servers' KV caches differ, so they do not compare: {said}"
        )


@dataclass(frozen=True)
class Comparison:
    """One metric of one cell: samples of both arms in the order of their numbers.

    change: NVFP4's median over FP8's, less one. low, high: the same of samples of one
    number, the least and the greatest.
    """

    cell: str
    metric: Metric
    values: dict[str, list[float]]
    change: float | None
    low: float | None
    high: float | None
    clustered: tuple[str, ...]


def compare(samples: Sequence[Sample]) -> list[Comparison]:
    """Every cell and metric that both arms, or one, have samples of."""
    check_comparable(samples)
    return [
        _compare(cell, metric, [sample for sample in samples if sample.cell == cell])
        for cell in dict.fromkeys(sample.cell for sample in samples)
        for metric in METRICS
    ]


def _compare(cell: str, metric: Metric, samples: Sequence[Sample]) -> Comparison:
    numbered = {
        arm: {
            sample.number: float(sample.result[metric.key])
            for sample in sorted(samples, key=lambda sample: sample.number)
            if sample.arm == arm
        }
        for arm in ARMS
    }
    values = {arm: list(found.values()) for arm, found in numbered.items()}
    fp8, nvfp4 = (numbered[arm] for arm in ARMS)
    pairs = [nvfp4[one] / fp8[one] - 1 for one in fp8 if one in nvfp4 and fp8[one]]
    change = None
    if pairs:
        change = statistics.median(nvfp4.values()) / statistics.median(fp8.values()) - 1
    return Comparison(
        cell,
        metric,
        values,
        change,
        min(pairs, default=None),
        max(pairs, default=None),
        tuple(arm for arm in ARMS if clusters(values[arm])),
    )


def clusters(values: Sequence[float]) -> tuple[list[float], list[float]] | None:
    """The two groups that ``values`` fall into, or None where they are one."""
    ordered = sorted(values)
    for split in range(_MIN_IN_CLUSTER, len(ordered) - _MIN_IN_CLUSTER + 1):
        low, high = ordered[:split], ordered[split:]
        gap = high[0] - low[-1]
        spread = (low[-1] - low[0]) + (high[-1] - high[0])
        wide = gap > _gap_of_chance(len(ordered)) * spread
        if wide and gap > _MIN_GAP * abs(statistics.median(ordered)):
            return low, high
    return None
