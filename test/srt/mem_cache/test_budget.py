"""The byte budget: SGLang's own configurator, in both formats."""

import functools

import pytest
import torch

from sglang_dsv4_nvfp4.cli import pools
from sglang_dsv4_nvfp4.cli.models import (
    PAGE_SIZE,
    V4_FLASH,
    V4_PRO,
    Rank,
    capacity_in_budget,
    pool_configurator,
)
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


MTP = dict(
    speculative_algorithm="EAGLE",
    speculative_num_steps=3,
    speculative_eagle_topk=1,
    speculative_num_draft_tokens=4,
)
# MTP's one, and a DSpark draft's stages.
DRAFT_LAYERS = {"EAGLE": 1, "DSPARK": 3}
DSPARK = dict(speculative_algorithm="DSPARK", speculative_num_draft_tokens=4)
# The CP group is the TP group, and every rank of it keeps all pages.
PREFILL_CP = dict(
    tp_size=4,
    moe_tp_size=4,
    attn_cp_size=4,
    enable_prefill_cp=True,
    cp_strategy="interleave",
    # Whatever groups another test has built in this process, they are not these.
    tp_group=None,
    pp_group=None,
    attn_cp_group=None,
)
RANKS = {
    "whole": (Rank(), {}),
    "attention DP 4": (Rank(attn_dp_size=4), dict(max_running_requests=256)),
    "first of two stages": (Rank(layers=(0, 22)), {}),
    "last of two stages": (Rank(layers=(22, 43)), {}),
    # A stage without c128: its pool has no such cache, and its budget no such price.
    "a stage of one c4 layer": (Rank(layers=(2, 3)), {}),
    "MTP": (Rank(), MTP),
    "DSpark": (Rank(), DSPARK),
    "DSpark, attention DP 4": (
        Rank(attn_dp_size=4),
        dict(max_running_requests=1024) | DSPARK,
    ),
    "prefill CP 4": (Rank(), {}, PREFILL_CP),
    "prefill CP 2, last of two stages, MTP": (
        Rank(layers=(22, 43)),
        MTP,
        PREFILL_CP | dict(tp_size=2, moe_tp_size=2, attn_cp_size=2, pp_size=2),
    ),
    "prefill server": (Rank(), dict(disaggregation_mode="prefill")),
    "decode server": (
        Rank(),
        dict(disaggregation_mode="decode", disaggregation_decode_extra_slots=8),
    ),
}
BUDGET = 96 * GIB


def buffers(pool):
    """Every buffer that grows with the budget, and the bytes of it that SGLang reserves
    beyond: a full page of slots, whatever a buffer's own pages hold; of states, rings.
    """
    caches = (pool.swa_kv_pool, *pool.kv_pools.values())
    for cache in filter(None, caches):
        for buffer in cache.kv_buffer:
            yield buffer, buffer[0].nbytes * PAGE_SIZE // cache.page_size
    for indexer in filter(None, pool.index_pools.values()):
        for buffer in indexer.contiguous_page_row_buffers():
            yield buffer, buffer[0].nbytes * PAGE_SIZE // indexer.page_size
    for states in (pool.compress_state_pools, pool.indexer_compress_state_pools):
        for state in filter(None, states):
            scores = state.kv_score_buffer.kv_score
            yield scores, scores[0].nbytes * 2 * state.ring_size


def built(model, kv_format, rank, server_args, parallel=None):
    """The pools that SGLang would build in BUDGET, on the device of shapes alone: the
    target's, and with speculation the draft's, whose layers have the window only.
    """
    from sglang.srt.runtime_context import get_context, get_parallel

    server = dict(
        max_running_requests=64, chunked_prefill_size=8192, page_size=PAGE_SIZE
    )
    server |= server_args
    with (
        kv_cache_format_scope(KVCacheFormat(kv_format)),
        get_context().override_server_args(device="cpu", **server),
        get_parallel().override(**parallel or {}),
    ):
        config = pool_configurator(model, rank)
        sizes = config.calculate_pool_sizes(BUDGET, PAGE_SIZE)
        sizes.max_running_requests = config.requested_max_running_requests_per_worker
        sizes = config.finalize_with_max_running_requests(sizes)
        start_layer, end_layer = rank.layers or (0, len(model.compress_ratios))
        build = functools.partial(
            pools.build_pool,
            pools.pool_class(KVCacheFormat(kv_format)),
            device="meta",
            num_slots=sizes.full_max_total_num_tokens,
            max_num_reqs=sizes.max_running_requests,
            num_req_slots=config._get_num_req_slots(sizes.max_running_requests),
            swa_size=sizes.swa_max_total_num_tokens,
            c4_size=sizes.c4_max_total_num_tokens,
            c128_size=sizes.c128_max_total_num_tokens,
            c4_state_pool_size=sizes.c4_state_pool_size,
            c128_state_pool_size=sizes.c128_state_pool_size,
            c4_state_dtype=torch.float32,
            c128_state_dtype=torch.float32,
        )
        target = build(
            compression_ratios=model.compress_ratios,
            layer_num=end_layer - start_layer,
            start_layer=start_layer,
            end_layer=end_layer,
        )
        drafts = []
        num_layers = DRAFT_LAYERS.get(server_args.get("speculative_algorithm"))
        if num_layers:
            ratios = (0,) * num_layers
            drafts = [build(compression_ratios=ratios, is_draft_worker=True)]
    return target, drafts, config


@pytest.mark.parametrize("model", [V4_FLASH, V4_PRO], ids=lambda model: model.name)
@pytest.mark.parametrize("case", RANKS)
def test_pools_take_their_budget_and_no_more(device, model, case):
    """SGLang's budget leaves out what each buffer reserves; nothing else is over it,
    NVFP4 is over it by less than FP8, and what is left would hold no further page."""
    over = {}
    for kv_format in ("fp8", "nvfp4"):
        target, drafts, config = built(model, kv_format, *RANKS[case])
        taken, reserved = measure(target)
        # SGLang takes off a draft's share, an average layer's, before it counts tokens;
        # the states of requests are not shared out.
        fixed = request_state_bytes(target, config.ring_sizes.get(128))
        share = (BUDGET - fixed) / config._spec_infl + fixed
        assert taken - share <= reserved
        assert share - taken < PAGE_SIZE * config.bytes_per_full_token
        over[kv_format] = taken - BUDGET
        for draft in drafts:
            taken_more, reserved_more = measure(draft)
            assert taken_more > 0
            taken, reserved = taken + taken_more, reserved + reserved_more
        assert taken - BUDGET <= reserved
    assert over["nvfp4"] <= over["fp8"]


def measure(pool):
    """Bytes of a pool, and those of them that SGLang reserves beyond its budget."""
    sizes = [(buffer.nbytes, more) for buffer, more in buffers(pool)]
    return tuple(sum(column) for column in zip(*sizes, strict=True))


def request_state_bytes(pool, ring_size):
    """Bytes of the c128 compressors' states: a request has them, whatever its length."""
    states = (
        state.kv_score_buffer.kv_score
        for state in filter(None, pool.compress_state_pools)
        if state.ring_size == ring_size
    )
    return sum(scores.nbytes for scores in states)
