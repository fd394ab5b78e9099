"""Pools and rows for tests, at the smallest sizes that cross every boundary."""

import torch

from sglang_dsv4_nvfp4.cli import pools
from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE


def build_pool(device, compression_ratios=(0, 4, 128), num_pages=3, **changes):
    """The pool class that SGLang's own module names, with ``num_pages`` usable pages."""
    from sglang.srt.mem_cache import deepseek_v4_memory_pool

    return pools.build_pool(
        deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool,
        device=device,
        compression_ratios=compression_ratios,
        num_slots=(num_pages + 1) * PAGE_SIZE,
        **changes,
    )


def random_rows(generator, count, device="cpu"):
    """``[count, 512]`` BF16 rows."""
    rows = torch.randn(count, 512, generator=generator)
    return rows.to(device, torch.bfloat16)
