"""Which store writes: the one place that decides.

``SGLANG_SM120_NVFP4_STORE`` asks; the fused kernels need a CUDA device, so without
one the staged stores run, whatever is asked.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4/dispatch.py``.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import torch

from sglang_dsv4_nvfp4.config import StoreMode, store_mode
from sglang_dsv4_nvfp4.store import staged

if TYPE_CHECKING:
    from sglang.kernels.ops.attention.dsv4 import (
        CompressorDecodePlan,
        CompressorPrefillPlan,
    )


def append(
    latent_kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    *,
    unique_slots: bool = False,
) -> None:
    """Quantize finished rows and write each to its slot.

    Args:
        latent_kv: ``[n, 512]`` BF16, rows after norm and RoPE.
        slot_mapping: ``[n]`` int32 or int64; negative and out-of-range slots are
            skipped, of equal slots the lowest row wins.
        cache: ``[pages, page_size, 384]`` uint8 kernel view.
        unique_slots: the caller vouches that no two rows share a slot whose contents
            matter, which saves looking for them.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    _stores(cache.device).append(
        latent_kv, slot_mapping, cache, unique_slots=unique_slots
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
    """Norm, rotate and quantize un-normed latents into window slots.

    SGLang's slots are unique but for padding rows, which share the dummy page's:
    what those leave there is never read.

    Args:
        kv: ``[n, 512]`` BF16, read only; rows may be strided.
        kv_weight: ``[512]``.
        freqs_cis: ``[max_position, 32]`` complex64.
        positions: ``[n]`` int32 or int64.
        slots: ``[n]`` int32 or int64 into ``cache``; negative and out-of-range slots
            are skipped.
        cache: ``[pages, page_size, 384]`` uint8 kernel view.
    """
    if kv.shape[0] == 0:
        return
    _stores(cache.device).store_window_rows(
        kv=kv,
        kv_weight=kv_weight,
        eps=eps,
        freqs_cis=freqs_cis,
        positions=positions,
        slots=slots,
        cache=cache,
    )


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
    """Norm, rotate and quantize the rows of ``kv`` that the plan counts.

    Slots of counted rows are unique; nothing is written for the others.

    Args:
        kv: ``[n, 512]`` FP32 or BF16, one row per plan row, un-normed.
        plan: ``n`` rows; see ``compress_plan.py``.
        norm_weight: ``[512]``.
        freq_cis: ``[max_position, 32]`` complex64.
        out_loc: slots, int32 or int64: one per plan row in decode, one per query
            token in prefill.
        cache: ``[pages, page_size, 384]`` uint8 kernel view.
    """
    if kv.shape[0] == 0 or out_loc.shape[0] == 0:
        return
    _stores(cache.device).store_compressed_rows(
        kv,
        plan,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
        freq_cis=freq_cis,
        out_loc=out_loc,
        cache=cache,
    )


def prepare(device: torch.device) -> None:
    """Before the first store on ``device``: see that its stores can be trusted.

    Raises:
        RuntimeError: the fused kernels do not write the reference's bytes there.
    """
    if _stores(device) is not staged:
        from sglang_dsv4_nvfp4.store.self_check import check_fused_append

        check_fused_append(device)


def _stores(device: torch.device) -> ModuleType:
    if store_mode() is StoreMode.FUSED and device.type == "cuda":
        from sglang_dsv4_nvfp4.store import fused

        return fused
    return staged
