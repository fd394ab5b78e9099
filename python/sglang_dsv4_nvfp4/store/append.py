"""Quantizing finished BF16 rows into pages, by the best writer of the device.

In-tree: ``sglang/kernels/ops/kvcache/dsv4_nvfp4_append.py``.
"""

from __future__ import annotations

import torch

from sglang_dsv4_nvfp4.quantize import check_latent, check_slots, quantize_append

# Compute capability majors that FlashInfer compiles its writer for.
_FLASHINFER_MAJORS = (10, 12)


def append(
    latent_kv: torch.Tensor, slot_mapping: torch.Tensor, cache: torch.Tensor
) -> None:
    """Quantize rows and write each to its slot.

    Args:
        latent_kv: ``[n, 512]`` BF16, rows after norm and RoPE.
        slot_mapping: ``[n]`` int32 or int64; negative and out-of-range slots are
            skipped, of equal slots the lowest row wins.
        cache: ``[pages, page_size, 384]`` uint8 kernel view.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_latent(latent_kv)
    check_slots(slot_mapping)
    if latent_kv.shape[0] == 0 and slot_mapping.shape[0] == 0:
        return
    if flashinfer_writes(cache.device):
        from flashinfer.mla import nvfp4_quantize_append_sparse_mla_cache

        nvfp4_quantize_append_sparse_mla_cache(
            latent_kv=latent_kv.contiguous(),
            slot_mapping=slot_mapping.contiguous(),
            cache=cache,
        )
    else:
        quantize_append(latent_kv, slot_mapping, cache)


def flashinfer_writes(device: torch.device) -> bool:
    """Whether FlashInfer's append runs on ``device``; else the reference does."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] in _FLASHINFER_MAJORS
    )
