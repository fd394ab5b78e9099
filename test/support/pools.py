"""Pools and rows for tests, at the smallest sizes that cross every boundary."""

from contextlib import contextmanager
from unittest import mock

import torch

from sglang_dsv4_nvfp4.cli import pools
from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.cli.sandbox import kv_cache_format_scope
from sglang_dsv4_nvfp4.config import KVCacheFormat, kv_cache_format


def build_pool(device, compression_ratios=(0, 4, 128), num_pages=3, **changes):
    """The pool that SGLang builds here and now, with ``num_pages`` usable pages."""
    return pools.build_pool(
        pools.pool_class(kv_cache_format()),
        device=device,
        compression_ratios=compression_ratios,
        num_slots=(num_pages + 1) * PAGE_SIZE,
        **changes,
    )


@contextmanager
def fp8():
    """SGLang as it is without this feature: its own pools, and FP8 asked for."""
    from sglang.srt.mem_cache import deepseek_v4_memory_pool

    stock = pools.pool_class(KVCacheFormat.FP8)
    with (
        kv_cache_format_scope(KVCacheFormat.FP8),
        mock.patch.object(deepseek_v4_memory_pool, "DeepSeekV4TokenToKVPool", stock),
    ):
        yield


def random_rows(generator, count, device="cpu"):
    """``[count, 512]`` BF16 rows."""
    rows = torch.randn(count, 512, generator=generator)
    return rows.to(device, torch.bfloat16)
