"""Finishing rows, norm and RoPE, into BF16 staging: the staged stores' first half.

SGLang's ``compress_norm_rope_store`` does it for window rows as well, by a plan of
groups of one: its ``bf16_store`` rounds once, after the rotation, as the fused FP8
stores do. (``fused_norm_rope_inplace`` rounds before rotating too.)

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/finish.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang_dsv4_nvfp4.layout import ROPE_DIM
from sglang_dsv4_nvfp4.store.compress_plan import rope_positions, source_tokens
from sglang_dsv4_nvfp4.store.staging import staging

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )


def finish_rows(
    kv: torch.Tensor,
    plan: CompressorDecodePlan | CompressorPrefillPlan,
    *,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    num_rows: int,
    staging_key: int,
) -> torch.Tensor:
    """Norm and rotate the rows of ``kv`` that the plan counts.

    Args:
        kv: ``[n, 512]`` FP32 or BF16, one row per plan row.
        plan: ``n`` rows; see ``compress_plan.py``.
        norm_weight: ``[512]``.
        freq_cis: ``[max_position, 32]`` complex64.
        num_rows: rows of the result: the plan's in decode, one per query token in
            prefill.
        staging_key: which staging buffer; stores that may overlap need their own.

    Returns:
        ``[num_rows, 512]`` BF16 staging rows: row ``source_tokens(plan)[i]`` is
        plan row ``i``, and rows that nothing counts for are zero. They hold until
        the next call with the same key.
    """
    rows = staging.rows(staging_key, num_rows, kv.device)
    if not kv.is_cuda:
        positions = rope_positions(plan[1], plan.compress_ratio)
        finished = norm_rope(kv, norm_weight, norm_eps, freq_cis, positions)
        sources = source_tokens(plan)
        counts = sources >= 0
        rows[sources[counts]] = finished[counts]
        return rows

    from sglang.kernels.ops.attention.dsv4 import compress_norm_rope_store

    compress_norm_rope_store(
        kv.contiguous(),
        plan,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        freq_cis=freq_cis,
        out_loc=staging.identity_out_loc(staging_key, num_rows, kv.device),
        kvcache=rows.view(torch.uint8),
        page_size=1,
        bf16_store=True,
    )
    return rows


def norm_rope(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Norm and rotate rows in FP32, then round once to BF16: SGLang's, on any device.

    The order of the sums aside, the arithmetic of ``fused_norm_rope_v2.cuh``.

    Args:
        kv: ``[n, 512]``, any float dtype.
        weight: ``[512]``.
        freqs_cis: ``[max_position, 32]`` complex64; pairs of neighbours among the
            last 64 values rotate together (GPT-J style).
        positions: ``[n]`` rows of ``freqs_cis``.

    Returns:
        ``[n, 512]`` BF16, a new tensor.
    """
    rows = kv.float()
    rows = rows * torch.rsqrt(rows.square().mean(dim=-1, keepdim=True) + eps)
    rows = rows * weight.float()
    tail = rows[:, -ROPE_DIM:].contiguous().view(-1, ROPE_DIM // 2, 2)
    rotated = torch.view_as_complex(tail) * freqs_cis[positions.long()]
    rotated = torch.view_as_real(rotated).flatten(-2)
    return torch.cat([rows[:, :-ROPE_DIM], rotated], dim=1).bfloat16()
