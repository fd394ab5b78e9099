"""Times of every kernel that reads NVFP4 here, in prefill, against those that read FP8."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from sglang_dsv4_nvfp4.attention import policy
from sglang_dsv4_nvfp4.attention.decision import Decision
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.cli.fp8_baseline import FP8Baseline
from sglang_dsv4_nvfp4.cli.tune import Bench, Timing, attempt
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.layout import MAX_KERNEL_PAGE_SIZE

# The kernels that serve a shape.
Eligible = Callable[[AttentionShape], list[Decision]]

# The original patch's table: heads a rank at attention TP 4 to 1 (128: V4-Pro's).
HEADS = (16, 32, 64, 128)
TOKENS = (1024, 2048, 4096, 8192)
_TOPK, _EXTRA_TOPK = 128, 512


def shapes() -> Iterator[AttentionShape]:
    """A c4 layer's: the window and 512 compressed entries."""
    for num_heads in HEADS:
        for num_tokens in TOKENS:
            yield AttentionShape(
                num_tokens=num_tokens,
                num_heads=num_heads,
                topk=_TOPK,
                page_size=MAX_KERNEL_PAGE_SIZE,
                extra_topk=_EXTRA_TOPK,
                extra_page_size=MAX_KERNEL_PAGE_SIZE,
                has_topk_length=True,
                has_extra_topk_length=True,
                has_attn_sink=True,
            )


def eligible_on(device: torch.device) -> Eligible:
    """What ``auto`` allows on ``device``."""
    return lambda shape: policy.eligible(shape, device, Kernel.AUTO)


def measure(bench: Bench) -> list[dict]:
    """All rows, each printed when it is there."""
    made = []
    for row in rows(bench, FP8Baseline(bench.num_slots), eligible_on(bench.device)):
        said = row["problem"] or f"{row['us']:.1f} us"
        print(
            f"{row['heads']} heads, {row['tokens']} tokens, {row['kernel']}: {said}",
            flush=True,
        )
        made.append(row)
    return made


def rows(bench: Bench, baseline: FP8Baseline, eligible: Eligible) -> Iterator[dict]:
    """A row for each shape and kernel; ``fp8`` has the FP8 kernels' times by name.

    Times are microseconds: medians, and the distance between the quartiles; None, and a
    problem, where a kernel failed.
    """
    for shape in shapes():
        fp8 = {
            name: _attempt(functools.partial(_time_fp8, bench, reader, shape))
            for name, reader in baseline.readers().items()
        }
        for decision in eligible(shape):
            yield {
                "heads": shape.num_heads,
                "tokens": shape.num_tokens,
                "kernel": f"{decision.kernel}/{decision.phase}",
                **_attempt(functools.partial(bench.time, shape, decision)),
                "fp8": fp8,
            }


def _time_fp8(bench: Bench, reader: Callable, shape: AttentionShape) -> Timing:
    run = reader(bench.inputs(shape))
    run()
    return bench.time_run(run)


def _attempt(time_kernel: Callable[[], Timing]) -> dict:
    timing, problem = attempt(time_kernel)
    return {**timing._asdict(), "problem": problem}


def markdown(rows: list[dict]) -> str:
    """The rows as a table; a change is of throughput, above 0 where NVFP4 is faster."""
    names = list(dict.fromkeys(name for row in rows for name in row["fp8"]))
    heading = ["heads", "tokens", "NVFP4 kernel", "us"]
    for name in names:
        heading += [f"{name}, us", "NVFP4 against it"]
    lines = [
        f"| {' | '.join(heading)} |",
        "| ---: | ---: | --- |" + " ---: |" * (len(heading) - 3),
    ]
    for row in rows:
        cells = [
            str(row["heads"]),
            str(row["tokens"]),
            row["kernel"],
            _us(row["us"]),
        ]
        for name in names:
            us = row["fp8"][name]["us"]
            both = us is not None and row["us"] is not None
            cells += [_us(us), f"{us / row['us'] - 1:+.0%}" if both else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _us(value: float | None) -> str:
    return "failed" if value is None else f"{value:.1f}"
