"""The compressed caches' store: norm and RoPE by the plan, quantize, scatter.

In-tree: a branch of ``compress_norm_rope_store`` in
``sglang/kernels/ops/attention/dsv4/compress.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from sglang_dsv4_nvfp4.layout import kernel_view
from sglang_dsv4_nvfp4.store.append import append
from sglang_dsv4_nvfp4.store.compress_plan import (
    counted_slots,
    rope_positions,
    source_tokens,
)
from sglang_dsv4_nvfp4.store.norm_rope import norm_rope
from sglang_dsv4_nvfp4.store.staging import staging

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )


def store_compressed_rows(
    write_bf16_rows: Callable[..., None],
    kv: torch.Tensor,
    plan: CompressorDecodePlan | CompressorPrefillPlan,
    *,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    page_size: int,
) -> None:
    """Norm, rotate and quantize the rows of ``kv`` that the plan counts.

    Args:
        write_bf16_rows: SGLang's own ``compress_norm_rope_store``; its
            ``bf16_store`` norms and rotates rows into a BF16 buffer.
        kv: ``[n, 512]`` BF16, one row per plan row, un-normed.
        plan: ``n`` rows; see :mod:`~sglang_dsv4_nvfp4.store.compress_plan`.
        norm_weight: ``[512]``.
        freq_cis: ``[max_position, 32]`` complex64.
        out_loc: slots, int32 or int64: one per plan row in decode, one per query
            token in prefill.
        kvcache: ``[rows, page_size * 384]`` buffer of the compressed pool.
    """
    num_slots = out_loc.shape[0]
    if kv.shape[0] == 0 or num_slots == 0:
        return
    cache = kernel_view(kvcache, page_size)
    slots = counted_slots(plan, out_loc)
    if not kv.is_cuda:
        rows = _reference_rows(kv, plan, norm_weight, norm_eps, freq_cis, num_slots)
        append(rows, slots, cache)
        return

    ratio = plan.compress_ratio
    rows = staging.rows(ratio, num_slots, kv.device)
    write_bf16_rows(
        kv,
        plan,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        freq_cis=freq_cis,
        out_loc=staging.identity_out_loc(ratio, num_slots, kv.device),
        kvcache=rows.view(torch.uint8),
        page_size=1,
        bf16_store=True,
    )
    append(rows, slots, cache)


def _reference_rows(
    kv: torch.Tensor,
    plan: CompressorDecodePlan | CompressorPrefillPlan,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    num_slots: int,
) -> torch.Tensor:
    """What SGLang's BF16 store leaves in zeroed staging rows, without a GPU."""
    positions = rope_positions(plan[1], plan.compress_ratio)
    finished = norm_rope(kv, norm_weight, norm_eps, freq_cis, positions)
    sources = source_tokens(plan)
    counts = sources >= 0
    rows = staging.rows(plan.compress_ratio, num_slots, kv.device)
    rows[sources[counts]] = finished[counts]
    return rows
