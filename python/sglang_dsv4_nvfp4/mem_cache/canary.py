"""SGLang's KV canary (``--kv-canary``) over NVFP4 pages of the window.

The canary keeps a fingerprint beside each slot and checks it before the slot is read.
SGLang's adapter for FP8 leaves the latents' bytes out, since its 584 bytes are no
multiple of 16, and counts one page of slots too few. NVFP4's parts are multiples of 16.

In-tree: ``sglang/srt/kv_canary/pool_patcher/adapters/dsv4_nvfp4.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.kv_canary.verify import RealKvSource
from sglang.srt.kv_canary.buffer_group import CanaryBufferGroup, PoolKind
from sglang.srt.kv_canary.pool_patcher.buf_info_splice import patch_buf_info_method
from sglang.srt.kv_canary.pool_patcher.buffer_alloc import alloc_canary_buf

from sglang_dsv4_nvfp4.layout import DATA_BYTES, SCALE_BYTES, page_bytes_view

if TYPE_CHECKING:
    from sglang_dsv4_nvfp4.mem_cache.token_to_kv_pool import (
        DeepSeekV4NVFP4TokenToKVPool,
    )


def attach_dsv4_nvfp4(
    *,
    pool: DeepSeekV4NVFP4TokenToKVPool,
    device: torch.device,
    read_bytes: int,
    kv_token_id_vs_position_offset: int,
) -> tuple[CanaryBufferGroup, ...]:
    """What SGLang asks an adapter for; of the window's caches, the first layer's bytes.

    Args:
        read_bytes: leading bytes of each part of a row that the fingerprint covers
            (``--kv-canary-real-data``): 0 for none, more than there are for all.
    """
    window = pool.swa_kv_pool
    num_slots = window.kv_buffer[0].shape[0] * window.page_size
    group = CanaryBufferGroup(
        kind=PoolKind.SWA,
        k_head=alloc_canary_buf(num_slots=num_slots, device=device),
        k_tail=alloc_canary_buf(num_slots=num_slots, device=device),
        v_head=None,
        v_tail=None,
        real_kv_sources_k=_sources(window.kernel_view(0), read_bytes),
        real_kv_sources_v=(),
        swa_index_lut=pool.full_to_swa_index_mapping,
        kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
    )
    # PD moves the fingerprints with the window's pages.
    patch_buf_info_method(
        pool,
        method_name="get_state_buf_infos",
        group=group,
        has_v_half=False,
        page_size=window.page_size,
    )
    return (group,)


def _sources(cache: torch.Tensor, read_bytes: int) -> tuple[RealKvSource, ...]:
    """The data rows and the scale rows of ``[pages, page_size, 384]`` pages."""
    if read_bytes == 0:
        return ()
    page_size = cache.shape[1]
    pages = page_bytes_view(cache)
    parts = (
        (pages, DATA_BYTES),
        (pages[:, page_size * DATA_BYTES :], SCALE_BYTES),
    )
    return tuple(
        RealKvSource(
            tensor=part,
            page_size=page_size,
            num_bytes_per_token=num_bytes,
            read_bytes=min(read_bytes, num_bytes),
        )
        for part, num_bytes in parts
    )
