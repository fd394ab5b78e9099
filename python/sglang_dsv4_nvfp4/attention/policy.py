"""Which kernel a shape gets: the measured one, else the one known to be good.

Known are FlashInfer's documentation and measurements on 4 x RTX PRO 6000: FlashInfer's
"sparse" prefill kernel beats FP8 by 24 to 36 % at 64 heads a rank, and loses to it by 33 %
at 16 and by 2 to 8 % at 32. "cake" has a prefill kernel per head count. Nothing is known of
decode that would speak against "sparse"; nor of the Triton kernels on an SM120, so that
"sparse" comes before them even where it is known to be slow.

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/policy.py``.
"""

from __future__ import annotations

import functools
import logging

import torch

from sglang_dsv4_nvfp4.attention import flashinfer_backend, profile, triton_backend
from sglang_dsv4_nvfp4.attention.decision import (
    DECODE_MAX_TOKENS,
    Decision,
    Phase,
)
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.config import FULL_HEADS, KERNEL_ENV, Kernel

logger = logging.getLogger(__name__)

# What each of FlashInfer's families takes; the other kernels take everything.
_SERVED = {
    Kernel.SPARSE: (
        "8, 16, 32, 64 or 128 heads; top-k 128 or 512; an extra cache on pages of 2, 32 "
        "or 64"
    ),
    Kernel.CAKE: "8, 16, 32, 48, 64, 80, 96, 112 or 128 heads",
    Kernel.TRITON: f"up to {triton_backend.MAX_TOKENS} tokens",
}


def decide(shape: AttentionShape, device: torch.device, kernel: Kernel) -> Decision:
    """The kernel for ``shape``, out of what ``kernel`` allows.

    Raises:
        ValueError: nothing that is allowed serves the shape.
    """
    decisions = eligible(shape, device, kernel)
    if not decisions:
        raise ValueError(
            f"no {kernel} kernel serves {shape}. Served: {_SERVED[kernel]}. "
            f"{KERNEL_ENV}=auto takes a kernel that does"
        )
    measured = profile.load()
    best = measured.best(shape, decisions) if measured else None
    if best is not None:
        return best
    chosen = without_profile(shape, decisions)
    if is_known_slow(shape, chosen):
        _warn_of_slow_kernel(shape.num_heads, chosen.kernel)
    return chosen


def eligible(
    shape: AttentionShape, device: torch.device, kernel: Kernel
) -> list[Decision]:
    """Everything that ``kernel`` allows and that serves ``shape`` on ``device``."""
    if kernel is Kernel.TORCH:
        return [Decision(Kernel.TORCH, Phase.PREFILL)]
    families = {
        Kernel.SPARSE: flashinfer_backend.sparse_decisions,
        Kernel.CAKE: flashinfer_backend.cake_decisions,
        Kernel.TRITON: triton_backend.triton_decisions,
    }
    if kernel is not Kernel.AUTO:
        return families[kernel](shape, device)
    if not _flashinfer_serves_device():
        return families[Kernel.TRITON](shape, device)
    return [made for family in families.values() for made in family(shape, device)]


def without_profile(shape: AttentionShape, decisions: list[Decision]) -> Decision:
    """The documented choice among ``decisions``, which are FlashInfer's order within
    each family."""
    return min(decisions, key=functools.partial(_rank, shape))


def is_known_slow(shape: AttentionShape, decision: Decision) -> bool:
    """Whether documented figures show this slower than reading FP8."""
    return (
        decision.kernel is Kernel.SPARSE
        and decision.phase is Phase.PREFILL
        and shape.num_heads < FULL_HEADS
    )


def _rank(shape: AttentionShape, decision: Decision) -> int:
    """Smaller is better; equal ranks keep the order in which they came."""
    if is_known_slow(shape, decision):
        return 2
    if decision.kernel is Kernel.SPARSE:
        return 0
    if decision.kernel is Kernel.CAKE:
        # Its split-K kernel holds a partial result per split: at thousands of tokens
        # that is gigabytes, and nobody has shown that it is fast there.
        is_split_prefill = (
            decision.phase is Phase.DECODE and shape.num_tokens > DECODE_MAX_TOKENS
        )
        return 4 if is_split_prefill else 1
    return 3


def _flashinfer_serves_device() -> bool:
    from sglang.srt.runtime_context import get_platform

    return get_platform().is_sm120


@functools.cache
def _warn_of_slow_kernel(num_heads: int, kernel: Kernel) -> None:
    logger.warning(
        "NVFP4 prefill at %d heads a rank is left with the %s kernel, which was slower "
        "than FP8 where it was measured. `sglang-dsv4-nvfp4 tune` measures all kernels "
        "on this machine; attention TP 1 (--enable-dp-attention or prefill CP) avoids it",
        num_heads,
        kernel,
    )
