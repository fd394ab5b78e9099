"""The sliding window's store: norm, RoPE, quantize, scatter.

In-tree: ``sglang/kernels/ops/attention/dsv4/kv_norm_rope_store.py``, beside
``fused_k_norm_rope_uniform_fp8``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.store.append import append
from sglang_dsv4_nvfp4.store.compress_plan import window_plan
from sglang_dsv4_nvfp4.store.finish import finish_rows
from sglang_dsv4_nvfp4.store.staging import WINDOW_KEY


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
    if kv.shape[0] == 0:
        return
    rows = finish_rows(
        kv,
        window_plan(positions),
        norm_weight=kv_weight,
        norm_eps=eps,
        freq_cis=freqs_cis,
        num_rows=kv.shape[0],
        staging_key=WINDOW_KEY,
    )
    append(rows, slots, cache)
