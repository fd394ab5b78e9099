"""The compressed caches' store: norm and RoPE by the plan, quantize, scatter.

In-tree: a branch of ``compress_norm_rope_store`` in
``sglang/kernels/ops/attention/dsv4/compress.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang_dsv4_nvfp4.layout import kernel_view
from sglang_dsv4_nvfp4.store.append import append
from sglang_dsv4_nvfp4.store.compress_plan import counted_slots
from sglang_dsv4_nvfp4.store.finish import finish_rows

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )


def store_compressed_rows(
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
    rows = finish_rows(
        kv,
        plan,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        freq_cis=freq_cis,
        num_rows=num_slots,
        staging_key=plan.compress_ratio,
    )
    append(rows, counted_slots(plan, out_loc), kernel_view(kvcache, page_size))
