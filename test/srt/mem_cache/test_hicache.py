"""HiCache's host pools over NVFP4 pools, as SGLang's assembler builds them.

Written back, evicted and loaded into other slots, pages come back byte for byte. Without
a GPU SGLang's row copy, a CUDA operator, is spelled out in PyTorch.
"""

from types import SimpleNamespace

import pytest
import torch
from support.pools import PAGE_SIZE, build_pool

NUM_PAGES = 6
WRITTEN = (1, 4, 2)
LOADED = (3, 5, 6)
CACHES = ("swa", "deepseek_v4_c4", "deepseek_v4_c128")


def copy_rows(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """What ``sgl_kernel.transfer_kv_direct`` does with rows of one page each."""
    assert page_size == 1
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices.long()] = source[src_indices.long()]


def build_stage(device):
    """A pipeline stage's pool: its layers' numbers are given, as a server gives them."""
    return build_pool(device, num_pages=NUM_PAGES, start_layer=0, end_layer=3)


@pytest.fixture
def pool(device, generator):
    made = build_stage(device)
    for cache in (made.swa_kv_pool, made.c4_kv_pool, made.c128_kv_pool):
        for buffer in cache.kv_buffer:
            drawn = torch.randint(0, 256, buffer.shape, generator=generator)
            buffer.copy_(drawn)
    return made


@pytest.fixture
def build_stack(monkeypatch):
    from sglang.srt.mem_cache import memory_pool_host
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
    from sglang.srt.runtime_context import get_context

    # The pools, without the threads and streams that would drive them.
    monkeypatch.setattr(
        hybrid_pool_assembler, "HybridCacheController", lambda *args, **kwargs: None
    )
    if not torch.cuda.is_available():
        monkeypatch.setattr(
            memory_pool_host, "transfer_kv_direct", copy_rows, raising=False
        )
        monkeypatch.setitem(
            memory_pool_host.ALLOC_MEMORY_FUNCS, "cpu", _allocate_unpinned
        )
        monkeypatch.setattr(
            memory_pool_host,
            "make_kernel_ptr_table",
            lambda refs, device, **kwargs: torch.tensor(
                [ref.data_ptr() for ref in refs], dtype=torch.uint64
            ),
        )

    def build(kvcache):
        allocator = SimpleNamespace(
            size_full=NUM_PAGES * PAGE_SIZE,
            swa_attn_allocator=SimpleNamespace(alloc=None, free=None),
        )
        params = SimpleNamespace(
            page_size=PAGE_SIZE,
            token_to_kv_pool_allocator=allocator,
            mtp_draft_device_pools=(),
            tp_cache_group=None,
            attn_cp_cache_group=None,
            attn_tp_cache_group=None,
            pp_cache_group=None,
        )
        group, _ = hybrid_pool_assembler.build_deepseek_v4_hicache_stack(
            params=params, kvcache=kvcache, load_cache_event=None, storage_backend=None
        )
        return {str(entry.name): entry.host_pool for entry in group.entries}

    with get_context().override_server_args(
        hicache_ratio=2.0,
        hicache_size=0,
        hicache_mem_layout="layer_first",
        hicache_io_backend="direct",
    ):
        yield build


def _allocate_unpinned(shape, dtype, device, pin_memory, allocator, **kwargs):
    return torch.zeros(shape, dtype=dtype, device=device)


def slots(pages):
    """Every logical slot of the pages, which all three caches are addressed by."""
    first = torch.tensor(pages)[:, None] * PAGE_SIZE
    return (first + torch.arange(PAGE_SIZE)).reshape(-1)


def test_pages_come_back_as_they_were(pool, build_stack):
    host_pools = build_stack(pool)
    sub_pools = (pool.swa_kv_pool, pool.c4_kv_pool, pool.c128_kv_pool)
    for name, sub_pool in zip(CACHES, sub_pools, strict=True):
        host_pool = host_pools[name]
        assert host_pool.item_bytes == sub_pool.kv_buffer[0].shape[1]
        assert host_pool.page_aligned_only
        before = [buffer.clone() for buffer in sub_pool.kv_buffer]
        host_slots = host_pool.alloc(len(WRITTEN) * PAGE_SIZE)
        host_pool.backup_from_device_all_layer(
            sub_pool, host_slots, slots(WRITTEN), "direct"
        )
        for buffer in sub_pool.kv_buffer:
            buffer[list(WRITTEN)] = 0
        for layer in range(len(before)):
            host_pool.load_to_device_per_layer(
                sub_pool, host_slots, slots(LOADED), layer, "direct"
            )
        for buffer, original in zip(sub_pool.kv_buffer, before, strict=True):
            assert torch.equal(buffer[list(LOADED)], original[list(WRITTEN)])
            assert torch.equal(buffer[0], original[0])


def test_single_tokens_are_refused(pool, build_stack):
    """SGLang's copy of single tokens knows the FP8 row only."""
    host_pool = build_stack(pool)[CACHES[1]]
    with pytest.raises(ValueError, match="page-aligned"):
        host_pool.backup_from_device_all_layer(
            pool.c4_kv_pool, torch.arange(3), torch.arange(3), "direct"
        )


def test_the_direct_layout_is_accepted(device, monkeypatch, build_stack):
    """SGLang refuses its own for HiCache; NVFP4's rows stay logical pages."""
    monkeypatch.setenv("SGLANG_OPT_SM120_DIRECT_SWA_KV", "1")
    assert CACHES[0] in build_stack(build_stage(device))
