"""The byte budget: SGLang's own configurator, in both formats."""

import pytest

from sglang_dsv4_nvfp4.cli.models import V4_FLASH, capacity_in_budget
from sglang_dsv4_nvfp4.cli.sandbox import kv_cache_format_scope
from sglang_dsv4_nvfp4.config import KVCacheFormat

GIB = 1 << 30
# One FP8 page of 64 c4 slots is padded to a multiple of 576 bytes, and so on.
FP8_PAGE_BYTES = {256: 149760, 64: 37440, 2: 1728}


@pytest.fixture
def capacity(device):
    def of(kv_format, budget=32 * GIB):
        with kv_cache_format_scope(KVCacheFormat(kv_format)):
            return capacity_in_budget(V4_FLASH, budget)

    return of


def layer_bytes(per_slot):
    """Bytes one token adds over V4-Flash's layers, by hand: latents and c4 keys."""
    c4, c128 = V4_FLASH.compress_ratios.count(4), V4_FLASH.compress_ratios.count(128)
    assert (c4, c128) == (21, 20)
    indexer_bytes = 132
    return c4 * (per_slot[64] + indexer_bytes) / 4 + c128 * per_slot[2] / 128


def test_bytes_per_token_are_the_formats_own(capacity):
    fp8 = {size: page / size for size, page in FP8_PAGE_BYTES.items()}
    assert capacity("fp8").bytes_per_full_token == pytest.approx(layer_bytes(fp8))
    nvfp4 = {size: 384 for size in FP8_PAGE_BYTES}
    assert capacity("nvfp4").bytes_per_full_token == pytest.approx(layer_bytes(nvfp4))


def test_tokens_grow_by_the_true_ratio(capacity):
    # Two budgets, so that the window's fixed share cancels.
    def marginal(kv_format):
        more, less = (capacity(kv_format, gib * GIB).tokens for gib in (60, 40))
        return more - less

    expected = (
        capacity("fp8").bytes_per_full_token / capacity("nvfp4").bytes_per_full_token
    )
    assert marginal("nvfp4") / marginal("fp8") == pytest.approx(expected, rel=1e-3)
    assert 1.4 < expected < 584 / 384


def test_window_pool_shrinks_with_the_format(capacity):
    fp8, nvfp4 = capacity("fp8"), capacity("nvfp4")
    assert nvfp4.window_pool_bytes < fp8.window_pool_bytes
    assert nvfp4.tokens > fp8.tokens


def test_the_pools_allocate_what_the_configurator_counted(device, capacity):
    """Bytes of real buffers against SGLang's price of a token, per cache."""
    from support.pools import build_pool

    pool = build_pool(device)
    per_slot = {
        sub_pool.page_size: sub_pool.kv_buffer[0][0].nbytes / sub_pool.page_size
        for sub_pool in (pool.swa_kv_pool, pool.c4_kv_pool, pool.c128_kv_pool)
    }
    counted = capacity("nvfp4")
    assert layer_bytes(per_slot) == counted.bytes_per_full_token
