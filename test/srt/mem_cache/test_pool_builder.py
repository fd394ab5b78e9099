"""SGLang's own builder of pools: which class it takes, for target and draft."""

from types import SimpleNamespace

import pytest
import torch
from support.pools import PAGE_SIZE, fp8

from sglang_dsv4_nvfp4.cli import pools
from sglang_dsv4_nvfp4.config import KVCacheFormat


def build(device, is_draft_worker):
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    ratios = [0] if is_draft_worker else [0, 4, 128]
    configurator = SimpleNamespace(
        is_draft_worker=is_draft_worker,
        model_config=SimpleNamespace(
            compress_ratios=ratios,
            hf_config=SimpleNamespace(kv_source_layer_ids=[]),
            window_size=128,
            qk_nope_head_dim=448,
            qk_rope_head_dim=64,
            index_head_dim=128,
        ),
        layer_info=SimpleNamespace(
            num_effective_layers=len(ratios), start_layer=0, end_layer=len(ratios)
        ),
        pool_page_size=PAGE_SIZE,
        kv_cache_dtype=torch.float8_e4m3fn,
        device=device,
        spec_algorithm=SimpleNamespace(is_none=lambda: True),
    )
    slots = 4 * PAGE_SIZE
    return KVCacheConfigurator._build_dsv4_kv_pool(
        configurator,
        max_running_requests=2,
        full_max_total_num_tokens=slots,
        swa_max_total_num_tokens=slots,
        c4_max_total_num_tokens=slots // 4,
        c128_max_total_num_tokens=slots // 128,
        c4_state_pool_size=1,
        c128_state_pool_size=1,
        c4_state_dtype=torch.bfloat16,
        c128_state_dtype=torch.bfloat16,
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(2, 8)),
    )


@pytest.fixture(autouse=True)
def server(device, monkeypatch):
    """What SGLang resolves for a DeepSeek-V4 model, which there is none of here."""
    from sglang.srt.runtime_context import get_context

    monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", "v4")
    with get_context().override_server_args(device=device, page_size=PAGE_SIZE):
        yield


@pytest.mark.parametrize("is_draft_worker", [False, True])
def test_nvfp4_gets_our_pool(device, is_draft_worker):
    pool = build(device, is_draft_worker)
    assert type(pool) is pools.pool_class(KVCacheFormat.NVFP4)
    assert pool.swa_kv_pool.kv_buffer[0].shape[1] == PAGE_SIZE * 384


@pytest.mark.parametrize("is_draft_worker", [False, True])
def test_fp8_gets_sglangs(device, is_draft_worker, monkeypatch):
    from sglang.srt.mem_cache import kv_cache_configurator

    stock = pools.pool_class(KVCacheFormat.FP8)
    monkeypatch.setattr(kv_cache_configurator, "DeepSeekV4TokenToKVPool", stock)
    with fp8():
        pool = build(device, is_draft_worker)
    assert type(pool) is stock
    assert pool.swa_kv_pool.kv_buffer[0].shape[1] == 260 * 576
