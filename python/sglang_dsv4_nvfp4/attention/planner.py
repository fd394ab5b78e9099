"""Which FlashInfer kernel serves a shape: asked once, remembered, bounded.

In-tree: part of ``sglang/kernels/ops/attention/flash_mla_sm120_nvfp4.py``.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple

import torch

from sglang_dsv4_nvfp4.arena import is_capturing
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape

logger = logging.getLogger(__name__)

# FlashInfer's split-K decode takes batches up to this; above, the streaming prefill
# kernel serves every batch alike (flashinfer_python 0.7.2, `_policy.py`).
DECODE_MAX_TOKENS = 64
# 65 classes of token counts, times the widths of the extra cache: 64 apart, up to
# 8192 entries at ratio 128 and a million tokens, though most lie far below.
MAX_DECISIONS = 4096


class Decision(NamedTuple):
    """use_prefill: the streaming kernel; else split-K decode.

    chunks_per_block: candidates a decode block takes, in chunks of 64; 0 leaves it
    to FlashInfer's launcher.
    """

    use_prefill: bool
    chunks_per_block: int


class Planner:
    """FlashInfer's ``plan_nvfp4_sparse_mla_sm120``, memoized per shape class.

    Inside FlashInfer's ``autotune(True)`` every question is asked anew, since the
    answer may come from a measurement that has just been made; afterwards the last
    answer stands. SGLang's own autotuning pass runs a larger batch than the decode
    kernel takes, so without a stored FlashInfer profile the kernel's launcher
    chooses the chunks.
    """

    def __init__(self, max_decisions: int = MAX_DECISIONS) -> None:
        self._max_decisions = max_decisions
        self._decisions: OrderedDict[tuple[AttentionShape, torch.device], Decision] = (
            OrderedDict()
        )

    def plan(self, shape: AttentionShape, device: torch.device) -> Decision:
        """The kernel for ``shape``.

        Raises:
            ValueError: no FlashInfer kernel serves the shape.
            RuntimeError: the shape is new under CUDA graph capture.
        """
        key = (shape_class(shape), device)
        decision = self._decisions.get(key)
        capturing = is_capturing(device)
        if decision is not None and (capturing or not _is_tuning()):
            self._decisions.move_to_end(key)
            return decision
        if capturing:
            raise RuntimeError(
                f"NVFP4 attention for {shape} was not planned before CUDA graph "
                "capture; run the same batch once outside the capture"
            )
        decision = _ask_flashinfer(*key)
        logger.debug("NVFP4 attention for %s: %s", shape, decision)
        self._decisions[key] = decision
        if len(self._decisions) > self._max_decisions:
            self._decisions.popitem(last=False)
        return decision

    def __len__(self) -> int:
        return len(self._decisions)


def shape_class(shape: AttentionShape) -> AttentionShape:
    """``shape`` with all batches past the decode kernel's counted as one."""
    return shape._replace(num_tokens=min(shape.num_tokens, DECODE_MAX_TOKENS + 1))


def _is_tuning() -> bool:
    from flashinfer.autotuner import AutoTuner

    return AutoTuner.get().is_tuning_mode


def _ask_flashinfer(shape: AttentionShape, device: torch.device) -> Decision:
    from flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4_policy import (
        NVFP4KernelVariant,
        plan_nvfp4_sparse_mla_sm120,
    )

    planned = plan_nvfp4_sparse_mla_sm120(
        num_tokens=shape.num_tokens,
        num_heads=shape.num_heads,
        topk=shape.topk,
        primary_page_size=shape.page_size,
        device=device,
        extra_topk=shape.extra_topk,
        extra_page_size=shape.extra_page_size,
        has_topk_length=shape.has_topk_length,
        has_extra_topk_length=shape.has_extra_topk_length,
        has_attn_sink=shape.has_attn_sink,
    )
    if planned is None:
        raise ValueError(
            f"no FlashInfer NVFP4 kernel serves {shape}. Served: 8, 16, 32, 64 or 128 "
            "heads; top-k 128 or 512; an extra cache on pages of 2, 32 or 64"
        )
    return Decision(
        use_prefill=planned.variant is NVFP4KernelVariant.PREFILL_STREAMING,
        chunks_per_block=planned.cpb,
    )
