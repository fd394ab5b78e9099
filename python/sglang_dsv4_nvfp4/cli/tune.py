"""``sglang-dsv4-nvfp4 tune``: measure every kernel that serves the model on this GPU.

It writes the profile that the planner goes by from then on. Each measurement is written
as soon as it is made, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from sglang_dsv4_nvfp4.attention import dispatch, policy, profile
from sglang_dsv4_nvfp4.attention.decision import Decision
from sglang_dsv4_nvfp4.attention.inputs import (
    AttentionShape,
    CandidateSet,
    SparseMLAInputs,
)
from sglang_dsv4_nvfp4.cli.models import ModelFacts, model_facts
from sglang_dsv4_nvfp4.cli.sandbox import require_cuda
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.layout import LATENT_DIM, MAX_KERNEL_PAGE_SIZE
from sglang_dsv4_nvfp4.machine import device_name, versions
from sglang_dsv4_nvfp4.quantize import quantize_pack

# Dense around 64, where FlashInfer changes kernels and the original patch saw a
# regression.
TOKENS = (
    *(1, 2, 4, 8, 16, 32, 48, 63, 64, 65, 72, 96),
    *(128, 256, 512, 1024, 2048, 4096, 8192),
)
_ATTENTION_TP = (1, 2, 4, 8)
# Entries of a c128 layer at 8 thousand, 64 thousand and half a million tokens.
_C128_WIDTHS = (64, 512, 4096)
_C128_PAGE_SIZE = 2
# A pool past any L2 (an RTX PRO 6000 has 128 MB), with slots drawn from all of it.
_POOL_BYTES = 512 << 20
_DISTINCT_ROWS = 1 << 15
_REPLAYS = 20
_WARMUP_REPLAYS = 3


class Timing(NamedTuple):
    """Microseconds: the median, and the distance between the quartiles. None: failed."""

    us: float | None
    spread_us: float | None


def run(args: argparse.Namespace) -> int:
    """Measure; 0 when the profile is complete, 1 where nothing can be measured."""
    try:
        require_cuda("tune")
        model = model_facts(args.model)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    path = args.out or profile.default_path()
    made = _profile_to_go_on_with(path, args.restart)
    heads = args.heads or [model.num_heads // size for size in _ATTENTION_TP]
    shapes = list(shapes_of(model, heads, args.tokens or TOKENS))
    print(f"{device_name()}: {len(shapes)} shapes of {model.name}, into {path}")
    tune(made, path, shapes, Bench(torch.device("cuda")).time)
    print(f"{len(made.rows)} measurements in {path}")
    return 0


def shapes_of(
    model: ModelFacts, heads: Sequence[int], tokens: Sequence[int]
) -> Iterator[AttentionShape]:
    """Window alone, window and c4, window and c128: what the model's layers ask for."""
    extras = [(0, 0), (model.index_topk, MAX_KERNEL_PAGE_SIZE)]
    extras += [(width, _C128_PAGE_SIZE) for width in _C128_WIDTHS]
    for num_heads in heads:
        for extra_topk, extra_page_size in extras:
            for num_tokens in sorted(set(tokens)):
                yield AttentionShape(
                    num_tokens=num_tokens,
                    num_heads=num_heads,
                    topk=model.sliding_window,
                    page_size=MAX_KERNEL_PAGE_SIZE,
                    extra_topk=extra_topk,
                    extra_page_size=extra_page_size,
                    has_topk_length=True,
                    has_extra_topk_length=extra_topk > 0,
                    has_attn_sink=True,
                )


def tune(
    made: profile.Profile,
    path: Path,
    shapes: list[AttentionShape],
    time_decision: Callable[[AttentionShape, Decision], Timing],
) -> None:
    """Add to ``made``, and to ``path``, what it lacks.

    A kernel that fails is named, and noted, so that the planner does not take it there.
    """
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for number, shape in enumerate(shapes, 1):
        for decision in policy.eligible(shape, device, Kernel.AUTO):
            if made.has(shape, decision):
                continue
            timing, problem = attempt(functools.partial(time_decision, shape, decision))
            outcome = problem or (
                f"{timing.us:.1f} us (quartiles {timing.spread_us:.1f} us apart)"
            )
            made.add(profile.Row(shape, decision, *timing))
            made.write(path)
            print(
                f"[{number}/{len(shapes)} {time.monotonic() - started:.0f} s] {shape}: "
                f"{decision}: {outcome}",
                flush=True,
            )


def attempt(time_kernel: Callable[[], Timing]) -> tuple[Timing, str | None]:
    """A kernel's timing, or none and why there is none."""
    # A kernel can fail in as many ways as there are compilers and drivers below it.
    try:
        return time_kernel(), None
    except Exception as error:
        return Timing(None, None), f"failed ({type(error).__name__}: {error})"


class Bench:
    """Random inputs on a device, and the time of a kernel on them.

    pool_bytes: of each pool that slots are drawn from.
    """

    def __init__(self, device: torch.device, pool_bytes: int = _POOL_BYTES) -> None:
        self.device = device
        self.pool_bytes = pool_bytes
        self.generator = torch.Generator(device).manual_seed(0)
        self.caches = {
            page_size: self._pool(page_size)
            for page_size in (MAX_KERNEL_PAGE_SIZE, _C128_PAGE_SIZE)
        }
        pages = self.caches[MAX_KERNEL_PAGE_SIZE]
        self.num_slots = len(pages) * MAX_KERNEL_PAGE_SIZE
        # Writing it leaves no row in the L2.
        self.flush = torch.empty(pool_bytes, dtype=torch.uint8, device=device)

    def time(self, shape: AttentionShape, decision: Decision) -> Timing:
        """Replays of a CUDA graph of one launch, each with rows that no cache holds.

        Raises:
            RuntimeError: the output is not finite; and whatever the kernel raises.
        """
        inputs = self.inputs(shape)
        output, _ = dispatch.launch(inputs, decision)
        if not output.isfinite().all():
            raise RuntimeError("its output is not finite")
        return self.time_run(functools.partial(dispatch.launch, inputs, decision))

    def time_run(self, run: Callable[[], object]) -> Timing:
        """Replays of a CUDA graph of ``run``, which has run before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        times = []
        for replay in range(_WARMUP_REPLAYS + _REPLAYS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if replay >= _WARMUP_REPLAYS:
                times.append(start.elapsed_time(stop) * 1000)
        low, middle, high = statistics.quantiles(times, n=4)
        return Timing(us=middle, spread_us=high - low)

    def _pool(self, page_size: int) -> torch.Tensor:
        """Pages of normal rows, the same ones again and again."""
        rows = torch.randn(
            (_DISTINCT_ROWS // page_size, page_size, LATENT_DIM),
            device=self.device,
            generator=self.generator,
        )
        pages = quantize_pack(rows.bfloat16())
        return pages.repeat(max(1, self.pool_bytes // pages.nbytes), 1, 1)

    def inputs(self, shape: AttentionShape) -> SparseMLAInputs:
        q = torch.randn(
            (shape.num_tokens, shape.num_heads, LATENT_DIM),
            device=self.device,
            generator=self.generator,
        ).bfloat16()
        extra = None
        if shape.extra_topk:
            extra = self._candidates(shape, shape.extra_topk, shape.extra_page_size)
        return SparseMLAInputs(
            q=q,
            main=self._candidates(shape, shape.topk, shape.page_size),
            extra=extra,
            attn_sink=torch.zeros(shape.num_heads, device=self.device),
            softmax_scale=LATENT_DIM**-0.5,
        )

    def _candidates(
        self, shape: AttentionShape, width: int, page_size: int
    ) -> CandidateSet:
        rows = (shape.num_tokens, width)
        return CandidateSet(
            cache=self.caches[page_size],
            indices=torch.randint(
                0,
                self.num_slots,
                rows,
                dtype=torch.int32,
                device=self.device,
                generator=self.generator,
            ),
            lengths=torch.full(rows[:1], width, dtype=torch.int32, device=self.device),
        )


def _profile_to_go_on_with(path: Path, restart: bool) -> profile.Profile:
    """What ``path`` holds, if it is of this device and these versions.

    What is not gone on with is kept beside it.
    """
    if path.exists():
        try:
            found = profile.read(path)
            reason = "asked for" if restart else profile.misfit(found)
        except ValueError as error:
            reason = str(error)
        if reason is None:
            print(f"going on with the {len(found.rows)} measurements in {path}")
            return found
        kept = path.with_suffix(".old.json")
        path.replace(kept)
        print(f"{path} starts anew ({reason}); the old one is {kept}")
    return profile.Profile(device=device_name(), versions=versions())
