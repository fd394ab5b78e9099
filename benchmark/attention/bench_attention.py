#!/usr/bin/env python3
"""Every kernel that reads NVFP4 here, against what reads FP8 here.

Usage: bench_attention.py [--out DIR]

Prints a table, writes ``<device>.json`` to DIR (benchmark/attention/results) and, with
matplotlib, ``<device>.png``. Slots are drawn at random from pools far larger than the L2.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness

from sglang_dsv4_nvfp4.attention import dispatch, policy, triton_backend
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape, SparseMLAInputs
from sglang_dsv4_nvfp4.cli.fp8_baseline import FALLBACK, FP8Baseline
from sglang_dsv4_nvfp4.cli.tune import Bench
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, LATENT_DIM

HEADS = (16, 64, 128)
TOKENS = (1, 8, 32, 64, 256, 1024, 4096)
TOPK = 128
# c4 reads index_topk entries; c128 one per 128 tokens: at 8 and at 64 thousand.
EXTRAS = ((512, 64), (64, 2), (512, 2))
# SGLang's Triton fallback takes a tenth of a second at 1024 tokens.
FALLBACK_TOKENS = (32, 64, 1024)


class Arm(NamedTuple):
    """A kernel and a run of it on each input set."""

    name: str
    runs: list[Callable[[], None]]


class AttentionBench:
    """Both formats' pools, and inputs of every shape."""

    def __init__(self) -> None:
        self.bench = Bench(torch.device("cuda"))
        self.fp8 = FP8Baseline(self.bench.num_slots)
        self.bandwidth = harness.copy_bandwidth()
        self.flops = harness.matmul_rate()

    def rows(self, shape: AttentionShape) -> Iterator[dict]:
        """One row for each NVFP4 kernel and each baseline."""
        row_bytes = shape.num_tokens * (shape.topk + shape.extra_topk) * BYTES_PER_TOKEN
        count = harness.num_input_sets(row_bytes)
        sets = [self.bench.inputs(shape) for _ in range(count)]
        kernels = list(self._kernels(shape, sets))
        baselines = list(self._baselines(shape, sets))
        us = harness.time_arms({arm.name: arm.runs for arm in kernels + baselines})
        if self._has_fallback(shape, baselines):
            # Apart from the others: in turn with them, its milliseconds would leave
            # them a cold cache and another clock each time.
            arm = Arm(FALLBACK, [self.fp8.fallback(sets[0])])
            us |= harness.time_arms({arm.name: arm.runs})
            baselines.append(arm)
        for kernel in kernels:
            for baseline in baselines:
                yield harness.row(
                    f"{shape.num_heads} heads, {shape.topk} + {shape.extra_topk}",
                    shape.num_tokens,
                    us[kernel.name],
                    baseline.name,
                    us[baseline.name],
                    self.floor_us(shape),
                    kernel=kernel.name,
                    heads=shape.num_heads,
                    extra_topk=shape.extra_topk,
                    extra_page_size=shape.extra_page_size,
                )

    def floor_us(self, shape: AttentionShape) -> float:
        """What the bytes or the multiplications take at the least."""
        rows = shape.num_tokens * (shape.topk + shape.extra_topk)
        values = shape.num_tokens * shape.num_heads * LATENT_DIM
        moved = rows * BYTES_PER_TOKEN + 2 * 2 * values
        flops = 2 * 2 * rows * shape.num_heads * LATENT_DIM
        return 1e6 * max(moved / self.bandwidth, flops / self.flops)

    def _kernels(
        self, shape: AttentionShape, sets: list[SparseMLAInputs]
    ) -> Iterator[Arm]:
        device = self.bench.device
        for decision in policy.eligible(shape, device, Kernel.AUTO):
            name = f"{decision.kernel}/{decision.phase}"
            if decision.kernel is Kernel.TRITON:
                # Whether it splits is its own affair: one line over all batches.
                name = f"{decision.kernel}"
            yield Arm(
                name,
                [functools.partial(dispatch.launch, made, decision) for made in sets],
            )
        if triton_backend.is_hopper(device):
            splits = triton_backend.num_splits(shape, device, use_hopper=False)
            yield Arm(
                "triton, portable kernel",
                [
                    functools.partial(
                        triton_backend.run, made, splits, use_hopper=False
                    )
                    for made in sets
                ],
            )

    def _baselines(
        self, shape: AttentionShape, sets: list[SparseMLAInputs]
    ) -> Iterator[Arm]:
        """What reads FP8 on this GPU: the same rows, always from pages of 64."""
        for name, reader in self.fp8.readers().items():
            yield Arm(name, [reader(made) for made in sets])

    def _has_fallback(self, shape: AttentionShape, baselines: list[Arm]) -> bool:
        asked_for = shape.num_tokens in FALLBACK_TOKENS and shape.extra_page_size == 64
        return asked_for or not baselines


def shapes() -> Iterator[AttentionShape]:
    for extra_topk, extra_page_size in EXTRAS:
        for num_heads in HEADS:
            for num_tokens in TOKENS:
                yield AttentionShape(
                    num_tokens,
                    num_heads,
                    TOPK,
                    64,
                    extra_topk,
                    extra_page_size,
                    has_topk_length=True,
                    has_extra_topk_length=True,
                    has_attn_sink=True,
                )


def main() -> int:
    out = harness.out_folder(__file__, __doc__)
    rows = []
    bench = AttentionBench()
    for shape in shapes():
        rows += bench.rows(shape)
        print(f"{shape} done", flush=True)
    print(harness.table(rows))
    ceilings = {
        "copy_bytes_per_second": bench.bandwidth,
        "bf16_matmul_flops": bench.flops,
    }
    path = harness.write(out, ceilings, rows)
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no plot without matplotlib; later: plot_attention.py {path}")
        return 0
    from plot_attention import plot

    print(f"plotted in {plot(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
