"""The staged stores: finished BF16 rows first, then one append that quantizes.

SGLang's kernels finish the rows; FlashInfer's append quantizes them on SM120 (and
SM100), the reference quantizer elsewhere. Slower than ``fused`` and made of parts that
others test: the reference, and the other arm of an A/B. Arguments are those of
``dispatch``.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/staged.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang_dsv4_nvfp4.config import ScaleRule, scale_rule
from sglang_dsv4_nvfp4.quantize import check_latent, check_slots, quantize_append
from sglang_dsv4_nvfp4.store.compress_plan import counted_slots, window_plan
from sglang_dsv4_nvfp4.store.finish import finish_rows
from sglang_dsv4_nvfp4.store.staging import WINDOW_KEY

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )

# Compute capability majors that FlashInfer compiles its writer for.
_FLASHINFER_MAJORS = (10, 12)


def append(
    latent_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    *,
    unique_slots: bool = False,
) -> None:
    """Both writers look for equal slots, so ``unique_slots`` changes nothing."""
    check_latent(latent_kv)
    check_slots(slot_mapping)
    if latent_kv.shape[0] == 0 and slot_mapping.shape[0] == 0:
        return
    if scale_rule() is ScaleRule.AMAX6 and flashinfer_writes(cache.device):
        from flashinfer.mla import nvfp4_quantize_append_sparse_mla_cache

        nvfp4_quantize_append_sparse_mla_cache(
            latent_kv=latent_kv.contiguous(),
            slot_mapping=slot_mapping.contiguous(),
            cache=cache,
        )
    else:
        quantize_append(latent_kv, slot_mapping, cache, scale_rule())


def flashinfer_writes(device: torch.device) -> bool:
    """Whether FlashInfer's append runs on ``device``; else the reference does."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] in _FLASHINFER_MAJORS
    )


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


def store_compressed_rows(
    kv: torch.Tensor,
    plan: CompressorDecodePlan | CompressorPrefillPlan,
    *,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    out_loc: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    rows = finish_rows(
        kv,
        plan,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        freq_cis=freq_cis,
        num_rows=out_loc.shape[0],
        staging_key=plan.compress_ratio,
    )
    append(rows, counted_slots(plan, out_loc), cache)
