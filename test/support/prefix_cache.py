"""SGLang's radix cache over a pool, as its scheduler builds it: allocator, tree, HiCache.

SGLang's host pools move rows by a CUDA operator; where it is not installed, or there is
no GPU, it is spelled out in PyTorch. Streams and events are PyTorch's own.
"""

from array import array
from contextlib import ExitStack, contextmanager
from functools import partialmethod
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist

from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE
from sglang_dsv4_nvfp4.machine import distribution_version

# One process, in every group that SGLang asks about.
ALONE = dict(
    tp_rank=0,
    tp_size=1,
    pp_rank=0,
    pp_size=1,
    attn_tp_rank=0,
    attn_tp_size=1,
    attn_dp_rank=0,
    attn_cp_rank=0,
    attn_cp_size=1,
    attn_dcp_rank=0,
    attn_dcp_size=1,
)


@contextmanager
def alone():
    """The process group of a server of one rank."""
    from sglang.srt.runtime_context import get_parallel

    with ExitStack() as stack:
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo", store=dist.HashStore(), rank=0, world_size=1
            )
            stack.callback(dist.destroy_process_group)
        stack.enter_context(get_parallel().override(**ALONE))
        yield dist.group.WORLD


@contextmanager
def host_memory():
    """What HiCache needs of CUDA and of SGLang's operators, where they are not."""
    from sglang.srt.mem_cache import memory_pool_host

    with ExitStack() as stack:
        if not torch.cuda.is_available():
            for cls in (
                memory_pool_host.DeepSeekV4PagedHostPool,
                memory_pool_host.DeepSeekV4StateHostPool,
            ):
                unpinned = partialmethod(cls.__init__, pin_memory=False)
                stack.enter_context(mock.patch.object(cls, "__init__", unpinned))
        if (
            not torch.cuda.is_available()
            or distribution_version("sglang-kernel") is None
        ):
            stack.enter_context(
                mock.patch.object(
                    memory_pool_host, "transfer_kv_direct", _copy_rows, create=True
                )
            )
        yield


def _copy_rows(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """What ``sgl_kernel.transfer_kv_direct`` does with rows of one page each."""
    assert page_size == 1
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices.long()] = source[src_indices.long()].to(target.device)


class PrefixCache:
    """Requests as the radix cache sees them: token ids and the slots they hold."""

    def __init__(self, pool, group, num_pages, hicache=False):
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        device = str(pool.device)
        self.allocator = SWATokenToKVPoolAllocator(
            num_pages * PAGE_SIZE,
            num_pages * PAGE_SIZE,
            page_size=PAGE_SIZE,
            dtype=torch.float8_e4m3fn,
            device=device,
            kvcache=pool,
            need_sort=False,
            req_to_token_pool=None,
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=4, max_context_len=4096, device=device, enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE_SIZE,
            tp_cache_group=group,
            attn_cp_cache_group=group,
            attn_tp_cache_group=group,
            pp_cache_group=group,
            sliding_window_size=128,
            tree_components=(ComponentType.FULL, ComponentType.SWA),
        )
        self.tree = UnifiedRadixCache(params)
        if hicache:
            self.tree.init_hicache(SimpleNamespace(file_storage_path=None), params)

    def allocate(self, num_tokens):
        """Slots of a new request, in its tokens' order."""

        def one(value):
            return torch.tensor([value], device=self.allocator.device)

        return self.allocator.alloc_extend(
            one(0),
            torch.tensor([0]),
            one(num_tokens),
            torch.tensor([num_tokens]),
            one(-1),
            num_tokens,
        )

    def publish(self, token_ids, slots):
        """Give a finished request's pages to the tree."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        self.tree.insert(InsertParams(key=_key(token_ids), value=slots))

    def match(self, token_ids):
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.tree.match_prefix(MatchPrefixParams(key=_key(token_ids)))

    def evict(self, num_tokens):
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        return self.tree.evict(
            EvictParams(num_tokens=num_tokens, swa_num_tokens=num_tokens)
        )

    def device_slots(self, token_ids):
        """Slots in the full pool of the tokens that the device holds."""
        return self.tree.path_device_indices(self.match(token_ids).last_device_node)

    def load_back(self, token_ids):
        """Bring the pages of a prefix back from the host; how many tokens were."""
        from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

        found = self.match(token_ids)
        request = SimpleNamespace(
            rid="request",
            last_node=found.last_device_node,
            swa_host_hit_length=found.swa_host_hit_length,
            mamba_host_hit_length=0,
            kv=SimpleNamespace(mamba_pool_idx=None),
        )
        loaded, _ = self.tree.init_load_back(
            InitLoadBackParams(
                best_match_node=found.best_match_node,
                host_hit_length=found.host_hit_length,
                req=request,
            )
        )
        self.tree.ready_to_load_host_cache()
        self.settle()
        return loaded

    def settle(self):
        """Let the copies that are under way finish, and the tree learn of it."""
        self.tree.flush_pending_backups()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.tree.check_hicache_events()


def _key(token_ids):
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", token_ids))
