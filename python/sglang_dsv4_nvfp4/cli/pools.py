"""SGLang's all-layers pools, built as its configurator builds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_dsv4_nvfp4 import seams
from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.config import KVCacheFormat
from sglang_dsv4_nvfp4.layout import NOPE_DIM, ROPE_DIM


def pool_class(kv_format: KVCacheFormat) -> type:
    """The class that SGLang builds for ``kv_format``."""
    if kv_format is KVCacheFormat.NVFP4:
        return seams.replacement()
    return seams.stock(seams.TOKEN_TO_KV_POOL)


def build_pool(
    pool_cls: type,
    *,
    device: str,
    compression_ratios: Sequence[int],
    num_slots: int,
    max_num_reqs: int = 2,
    **changes,
):
    """A pool of ``pool_cls`` for a model of these layers.

    Args:
        num_slots: slots of the full pool, its dummy page included.
        changes: arguments of the pool that differ from what these lead to.
    """
    arguments = dict(
        max_num_reqs=max_num_reqs,
        swa_size=num_slots - PAGE_SIZE,
        c4_size=num_slots // 4,
        c128_size=num_slots // 128,
        c4_state_pool_size=1,
        c128_state_pool_size=1,
        page_size=PAGE_SIZE,
        swa_page_size=PAGE_SIZE,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.bfloat16,
        c128_state_dtype=torch.bfloat16,
        qk_nope_head_dim=NOPE_DIM,
        qk_rope_head_dim=ROPE_DIM,
        indexer_head_dim=128,
        layer_num=len(compression_ratios),
        device=device,
        enable_memory_saver=False,
        compression_ratios=list(compression_ratios),
        full_size=num_slots,
    )
    return pool_cls(**{**arguments, **changes})
