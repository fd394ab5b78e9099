"""Reading the compressor's plans: which rows count, and where they go.

A plan row is 16 bytes (``sgl_kernel/deepseek_v4/compress.cuh``)::

    decode:   u32 seq_len, i32, i32, i32
    prefill:  u32 seq_len, u16 ragged_id, u16, i32, i32

A decode row counts where its sequence has just filled a group. A prefill row is one
finished group of the query token ``ragged_id``; padding has every bit of
``seq_len`` set.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/compress_plan.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )

PLAN_ROW_BYTES = 16
# 0xFFFFFFFF read as int32.
_INVALID_SEQ_LEN = -1
_RAGGED_ID_MASK = 0xFFFF


def window_plan(positions: torch.Tensor) -> CompressorDecodePlan:
    """A decode plan in which every row ends a group of one, at ``positions`` [n]."""
    from sglang.kernels.ops.attention.dsv4 import CompressorDecodePlan

    words = torch.zeros(
        (positions.shape[0], PLAN_ROW_BYTES // 4),
        dtype=torch.int32,
        device=positions.device,
    )
    torch.add(positions, 1, out=words[:, 0])
    return CompressorDecodePlan(1, words.view(torch.uint8))


def rope_positions(plan_rows: torch.Tensor, compress_ratio: int) -> torch.Tensor:
    """``[n]`` int64: the first position of each group, 0 for rows without one."""
    return (plan_words(plan_rows)[:, 0].long() - compress_ratio).clamp(min=0)


def source_tokens(
    plan: CompressorDecodePlan | CompressorPrefillPlan,
) -> torch.Tensor:
    """``[n]`` int64: each plan row's entry in ``out_loc``, -1 if it does not count."""
    words = plan_words(plan[1])
    seq_lens = words[:, 0]
    if plan.is_decode:
        index = torch.arange(words.shape[0], device=words.device)
        # Padding of a captured batch may carry a length of 0, which no group has.
        counts = (seq_lens > 0) & (seq_lens % plan.compress_ratio == 0)
        return torch.where(counts, index, -1)
    ragged_ids = (words[:, 1] & _RAGGED_ID_MASK).long()
    return torch.where(seq_lens == _INVALID_SEQ_LEN, -1, ragged_ids)


def counted_slots(
    plan: CompressorDecodePlan | CompressorPrefillPlan, out_loc: torch.Tensor
) -> torch.Tensor:
    """``out_loc`` where a plan row counts, -1 elsewhere; same shape and dtype."""
    sources = source_tokens(plan)
    # One entry past the end takes what rows that do not count would write.
    counts = torch.zeros(out_loc.shape[0] + 1, dtype=torch.bool, device=out_loc.device)
    counts.index_fill_(0, torch.where(sources < 0, out_loc.shape[0], sources), True)
    return torch.where(counts[:-1], out_loc, -1)


def plan_words(plan_rows: torch.Tensor) -> torch.Tensor:
    """``[n, 4]`` int32 view of ``[n, 16]`` uint8 plan rows.

    Raises:
        ValueError: no plan rows.
    """
    if plan_rows.dtype != torch.uint8 or plan_rows.shape[1:] != (PLAN_ROW_BYTES,):
        raise ValueError(
            f"a compress plan is uint8 [n, {PLAN_ROW_BYTES}], got "
            f"{plan_rows.dtype} {tuple(plan_rows.shape)}"
        )
    return plan_rows.contiguous().view(torch.int32)
