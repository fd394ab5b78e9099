"""Pools and rows for tests, at the smallest sizes that cross every boundary."""

import torch

PAGE_SIZE = 256


def build_pool(device, compression_ratios=(0, 4, 128), num_pages=3, **kwargs):
    """The pool class that SGLang's own module names, built as it builds it."""
    from sglang.srt.mem_cache import deepseek_v4_memory_pool

    size = num_pages * PAGE_SIZE
    arguments = dict(
        max_num_reqs=2,
        swa_size=size,
        c4_size=size // 4,
        c128_size=size // 128,
        c4_state_pool_size=1,
        c128_state_pool_size=1,
        page_size=PAGE_SIZE,
        swa_page_size=PAGE_SIZE,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.bfloat16,
        c128_state_dtype=torch.bfloat16,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(compression_ratios),
        device=device,
        enable_memory_saver=False,
        compression_ratios=list(compression_ratios),
        full_size=size,
    )
    return deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool(**{**arguments, **kwargs})


def random_rows(generator, count, device="cpu"):
    """``[count, 512]`` BF16 rows."""
    rows = torch.randn(count, 512, generator=generator)
    return rows.to(device, torch.bfloat16)
