"""Slots that SGLang's radix cache shares, frees and hands out again, over NVFP4 pages."""

from types import SimpleNamespace

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, random_rows
from support.prefix_cache import PrefixCache, alone

from sglang_dsv4_nvfp4.quantize import dequantize

NUM_PAGES = 8
LENGTH = 2 * PAGE_SIZE
TOKENS = {"first": range(LENGTH), "second": range(5000, 5000 + LENGTH)}
# Layers of build_pool's model: the window alone, c4, c128.
C4, C128 = 1, 2


@pytest.fixture
def pool(device):
    return build_pool(device, num_pages=NUM_PAGES, start_layer=0, end_layer=3)


@pytest.fixture
def cache(pool):
    from sglang.srt.runtime_context import get_context

    with alone() as group, get_context().override_server_args(page_size=PAGE_SIZE):
        yield PrefixCache(pool, group, NUM_PAGES)


@pytest.fixture
def latents(generator, device):
    """Rows of each request, one per token: the window's, and those that compress it."""
    return {name: random_rows(generator, LENGTH, device) for name in TOKENS}


def store(pool, slots, rows):
    """Write what a prefill of these tokens writes to each of the three caches."""
    window = pool.translate_loc_from_full_to_swa(slots)
    for layer in range(3):
        pool.set_swa_key_buffer_radix_fused(layer, window, rows)
    for layer, ratio in ((C4, 4), (C128, 128)):
        entries = slots[::ratio] // ratio
        pool.set_extra_key_buffer_fused(layer, entries, rows[::ratio])


def read(pool, slots):
    """The bytes' values, layer by layer, in the tokens' order."""
    window = pool.translate_loc_from_full_to_swa(slots)
    views = [(pool.swa_kv_pool.kernel_view(layer), window) for layer in range(3)]
    views.append((pool.c4_kv_pool.kernel_view(0), slots[::4] // 4))
    views.append((pool.c128_kv_pool.kernel_view(0), slots[::128] // 128))
    return torch.cat([dequantize(view, at) for view, at in views])


def serve(pool, cache, name, latents):
    slots = cache.allocate(LENGTH)
    store(pool, slots, latents[name])
    return slots


def test_a_shared_prefix_is_read_where_it_was_stored(pool, cache, latents):
    slots = serve(pool, cache, "first", latents)
    cache.publish(TOKENS["first"], slots)
    stored = read(pool, slots)
    serve(pool, cache, "second", latents)
    shared = cache.device_slots(TOKENS["first"])
    assert torch.equal(shared, slots)
    assert torch.equal(read(pool, shared), stored)


def test_a_retracted_request_leaves_the_others_pages_alone(pool, cache, latents):
    """SGLang frees its slots and computes it again, into whatever slots come."""
    kept = serve(pool, cache, "first", latents)
    cache.publish(TOKENS["first"], kept)
    before = read(pool, kept)
    retracted = serve(pool, cache, "second", latents)
    once = read(pool, retracted)
    free = cache.allocator.full_available_size()
    cache.allocator.free(retracted)
    assert cache.allocator.full_available_size() == free + LENGTH
    # Others take its slots before it runs again.
    other = cache.allocate(LENGTH)
    store(pool, other, latents["first"])
    again = serve(pool, cache, "second", latents)
    assert torch.equal(read(pool, again), once)
    assert torch.equal(read(pool, kept), before)


def test_evicted_slots_are_filled_anew(pool, cache, latents):
    cache.publish(TOKENS["first"], serve(pool, cache, "first", latents))
    assert cache.evict(LENGTH).num_tokens_evicted == LENGTH
    assert cache.match(TOKENS["first"]).device_prefix_len == 0
    slots = torch.cat([serve(pool, cache, "second", latents) for _ in range(4)])
    assert len(slots) == NUM_PAGES * PAGE_SIZE
    first, *others = read_requests(pool, slots)
    assert all(torch.equal(first, other) for other in others)


def read_requests(pool, slots):
    return [read(pool, one) for one in slots.split(LENGTH)]


@pytest.mark.parametrize("gone", [False, True], ids=["flushed", "memory given back"])
def test_a_flushed_cache_serves_as_a_new_one(pool, cache, latents, gone):
    """SGLang clears the allocator and the tree; stale pages stay, and are not read. With
    --enable-memory-saver it gives the memory back, and gets it with anything in it."""
    slots = serve(pool, cache, "first", latents)
    cache.publish(TOKENS["first"], slots)
    fresh = read(pool, slots)
    cache.tree.reset()
    cache.allocator.clear()
    if gone:
        for sub_pool in (pool.swa_kv_pool, pool.c4_kv_pool, pool.c128_kv_pool):
            for buffer in sub_pool.kv_buffer:
                buffer.fill_(0xFF)
    assert cache.allocator.full_available_size() == NUM_PAGES * PAGE_SIZE
    assert cache.match(TOKENS["first"]).device_prefix_len == 0
    again = serve(pool, cache, "first", latents)
    assert torch.equal(read(pool, again), fresh)


@pytest.mark.parametrize("backend", ["cpu_tensor", "host_pool"])
def test_pd_retraction_computes_again_instead_of_copying(pool, cache, backend):
    """As for FP8: no pool of DeepSeek-V4 copies a request's slots to the CPU."""
    from sglang.srt.mem_cache.common import backup_kv_cache

    request = SimpleNamespace(multimodal_inputs=None)
    assert backup_kv_cache(
        request, cache.tree, cache.tree.req_to_token_pool, cache.allocator, backend
    )
    assert not hasattr(request, "kv")


def test_single_slots_are_neither_copied_nor_moved(pool, cache):
    """Nothing that serves DeepSeek-V4 asks for it: retraction computes again, and
    drafts of more than one branch, which move accepted slots, are refused."""
    slots = torch.arange(4, device=cache.allocator.device)
    with pytest.raises(NotImplementedError):
        cache.allocator.get_cpu_copy(slots)
    with pytest.raises(NotImplementedError):
        cache.allocator.load_cpu_copy([], slots)
    assert not hasattr(pool, "move_kv_cache")
