"""The sliding window's store: norm, RoPE, quantize, scatter.

In-tree: ``sglang/kernels/ops/attention/dsv4/kv_norm_rope_store.py``, beside
``fused_k_norm_rope_uniform_fp8``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.store.append import append
from sglang_dsv4_nvfp4.store.norm_rope import norm_rope
from sglang_dsv4_nvfp4.store.staging import WINDOW_RATIO, staging


def store_window_rows(
    *,
    kv: torch.Tensor,
    kv_weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    """Norm, rotate and quantize un-normed latents into window slots.

    Args:
        kv: ``[n, 512]`` BF16, read only; rows may be strided.
        kv_weight: ``[512]`` BF16.
        freqs_cis: ``[max_position, 32]`` complex64.
        positions: ``[n]`` int32 or int64.
        slots: ``[n]`` int32 or int64 into ``cache``.
        cache: ``[pages, page_size, 384]`` uint8 kernel view.
    """
    num_rows = kv.shape[0]
    if num_rows == 0:
        return
    if not kv.is_cuda:
        append(norm_rope(kv, kv_weight, eps, freqs_cis, positions), slots, cache)
        return

    from sglang.kernels.ops.attention.dsv4 import fused_norm_rope_inplace

    # SGLang's kernel works in place on dense rows, and the caller's are neither
    # ours to change nor always dense.
    rows = staging.rows(WINDOW_RATIO, num_rows, kv.device)
    rows.copy_(kv)
    fused_norm_rope_inplace(
        rows, kv_weight.to(rows.dtype), eps, freqs_cis, positions.long()
    )
    append(rows, slots, cache)
