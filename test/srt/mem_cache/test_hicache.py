"""HiCache over NVFP4 pools: SGLang's radix tree, controller, host pools and file store.

Written back, evicted and loaded into other slots, pages come back byte for byte.
"""

from contextlib import ExitStack

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool, fp8
from support.prefix_cache import PrefixCache, alone, host_memory

NUM_PAGES = 6
LENGTH = 2 * PAGE_SIZE
CACHES = {
    "swa": "swa_kv_pool",
    "deepseek_v4_c4": "c4_kv_pool",
    "deepseek_v4_c128": "c128_kv_pool",
}
# Its states travel with the window's pages; a server sizes them by the window.
STATES = dict(c4_state_pool_size=(NUM_PAGES + 1) * 8, start_layer=0, end_layer=3)


def build_stage(device):
    """A pipeline stage's pool: its layers' numbers are given, as a server gives them."""
    return build_pool(device, num_pages=NUM_PAGES, **STATES)


@pytest.fixture
def pool(device, generator):
    made = build_stage(device)
    for name in CACHES.values():
        for buffer in getattr(made, name).kv_buffer:
            buffer.copy_(torch.randint(0, 256, buffer.shape, generator=generator))
    return made


@pytest.fixture
def build_cache(device):
    """``build_cache(pool, **server_args)``: its radix cache with a host tier."""
    from sglang.srt.runtime_context import get_context

    server = dict(
        page_size=PAGE_SIZE,
        hicache_ratio=2.0,
        hicache_size=0,
        hicache_mem_layout="layer_first",
        hicache_io_backend="direct",
        hicache_write_policy="write_through",
    )
    with ExitStack() as stack:
        group = stack.enter_context(alone())
        stack.enter_context(host_memory())

        def build(pool, **server_args):
            override = get_context().override_server_args(**{**server, **server_args})
            stack.enter_context(override)
            cache = PrefixCache(pool, group, NUM_PAGES, hicache=True)
            stack.callback(stop_storage, cache)
            return cache

        yield build


def stop_storage(cache):
    if cache.tree.cache_controller.enable_storage:
        cache.tree.detach_storage_backend()


def host_pools(cache):
    return {str(one.name): one.host_pool for one in cache.tree.host_pool_group.entries}


def pages(pool, slots):
    """The rows of each cache's buffers that hold the slots' tokens."""
    full = slots[::PAGE_SIZE] // PAGE_SIZE
    window = pool.translate_loc_from_full_to_swa(slots)[::PAGE_SIZE] // PAGE_SIZE
    rows = {"swa_kv_pool": window, "c4_kv_pool": full, "c128_kv_pool": full}
    return {
        name: [buffer[rows[name]].clone() for buffer in getattr(pool, name).kv_buffer]
        for name in CACHES.values()
    }


def test_pages_come_back_as_they_were(pool, build_cache):
    cache = build_cache(pool)
    for name, host_pool in host_pools(cache).items():
        if name in CACHES:
            sub_pool = getattr(pool, CACHES[name])
            assert host_pool.item_bytes == sub_pool.kv_buffer[0].shape[1]
            assert host_pool.page_aligned_only
    slots = cache.allocate(LENGTH)
    before = pages(pool, slots)
    cache.publish(range(LENGTH), slots)
    cache.settle()
    assert cache.evict(LENGTH).num_tokens_evicted == LENGTH
    for name in CACHES.values():
        for buffer in getattr(pool, name).kv_buffer:
            buffer.zero_()
    # Another request takes the pages, so they are loaded into others.
    cache.allocate(LENGTH)
    assert cache.load_back(range(LENGTH)) == LENGTH
    loaded = cache.device_slots(range(LENGTH))
    assert not torch.equal(loaded, slots)
    after = pages(pool, loaded)
    # Of the window only the last page is kept: what lies before is never read again.
    for ours, theirs in zip(
        after.pop("swa_kv_pool"), before.pop("swa_kv_pool"), strict=True
    ):
        assert torch.equal(ours[-1], theirs[-1])
    for name, buffers in after.items():
        for ours, theirs in zip(buffers, before[name], strict=True):
            assert theirs.any() and torch.equal(ours, theirs)


def test_single_tokens_are_refused(pool, build_cache):
    """SGLang's copy of single tokens knows the FP8 row only."""
    host_pool = host_pools(build_cache(pool))["deepseek_v4_c4"]
    with pytest.raises(ValueError, match="page-aligned"):
        host_pool.backup_from_device_all_layer(
            pool.c4_kv_pool, torch.arange(3), torch.arange(3), "direct"
        )


def test_the_direct_layout_is_accepted(device, monkeypatch, build_cache):
    """SGLang refuses its own for HiCache; NVFP4's rows stay logical pages."""
    monkeypatch.setenv("SGLANG_OPT_SM120_DIRECT_SWA_KV", "1")
    assert "swa" in host_pools(build_cache(build_stage(device)))


@pytest.fixture
def file_store(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path))
    return dict(hicache_storage_backend="file", served_model_name="V4-Flash")


def transfers(cache):
    """One page of each cache's host pool under a key."""
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    made = []
    for entry in cache.tree.host_pool_group.entries:
        if str(entry.name) not in CACHES:
            continue
        indices = entry.host_pool.alloc(PAGE_SIZE)
        made.append(PoolTransfer(entry.name, host_indices=indices, keys=["key"]))
    return made


def fill(cache, made, generator):
    for one in made:
        host_pool = host_pools(cache)[str(one.name)]
        page = host_pool.get_dummy_flat_data_page()
        page.copy_(torch.randint(0, 256, page.shape, generator=generator))
        host_pool.set_from_flat_data_page(one.host_indices[0].item(), page)


def contents(cache, made):
    pools_by_name = host_pools(cache)
    return [
        pools_by_name[str(one.name)].get_data_page(
            one.host_indices[0].item(), flat=True
        )
        for one in made
    ]


def test_stored_pages_are_found_by_servers_of_the_same_format(
    device, build_cache, file_store, generator
):
    writer = build_cache(build_stage(device), **file_store)
    written = transfers(writer)
    fill(writer, written, generator)
    stored = writer.tree.cache_controller.storage_backend.batch_set_v2(written)
    assert all(all(done) for done in stored.values())
    reader = build_cache(build_stage(device), **file_store)
    read = transfers(reader)
    found = reader.tree.cache_controller.storage_backend.batch_get_v2(read)
    assert all(all(done) for done in found.values())
    for ours, theirs in zip(
        contents(reader, read), contents(writer, written), strict=True
    ):
        assert theirs.any() and torch.equal(ours, theirs)

    with fp8():
        other = build_cache(build_stage(device), **file_store)
        found = other.tree.cache_controller.storage_backend.batch_get_v2(
            transfers(other)
        )
    assert not any(any(done) for done in found.values())


def test_a_store_attached_later_is_tagged_or_refused(
    device, build_cache, file_store, caplog
):
    """By SGLang's admin API, long after its options were checked."""
    tree = build_cache(build_stage(device)).tree
    attached, reason = tree.attach_storage_backend("hf3fs", served_model_name="m")
    assert not attached and "hf3fs" in reason and "file, mooncake, nixl" in reason
    attached, _ = tree.attach_storage_backend("file", served_model_name="m")
    assert attached
    assert tree.cache_controller.storage_config.model_name == "m-nvfp4"
    detached, _ = tree.detach_storage_backend()
    assert detached
    attached, _ = tree.attach_storage_backend("file", served_model_name="other")
    assert attached
    assert tree.cache_controller.storage_config.model_name == "other-nvfp4"


def test_fp8_keys_stay_as_they_are(device, build_cache, file_store):
    with fp8():
        cache = build_cache(build_stage(device), **file_store)
    assert cache.tree.cache_controller.storage_config.model_name == "V4-Flash"
