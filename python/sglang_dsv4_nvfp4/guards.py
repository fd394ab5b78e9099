"""What SGLang does differently at each function that a seam touches.

A guard takes what it needs of its target's arguments, under the same names, and says in
its body what a maintainer of SGLang would write there. SGLang's plugin system calls it;
the in-tree form has its statements at the target itself:

- ``original`` comes first: they stand at the target's head. The last one, ``return
  original()``, goes on as if nothing had been asked, which is what comes there anyway;
- ``result`` comes first: they stand at the target's end.

Imports at the top of this module are at the top of the target's there, imports in a
guard stay in it.

Not in-tree: the statements are.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang_dsv4_nvfp4.kv_gate import is_nvfp4_kv_cache
from sglang_dsv4_nvfp4.layout import NVFP4_KV_LAYOUT, kernel_view
from sglang_dsv4_nvfp4.mem_cache.storage import tag_storage_keys


def count_paged_kv_bytes(original: Callable, *args, **kwargs):
    if is_nvfp4_kv_cache():
        # No page is padded, whatever its size.
        return float(NVFP4_KV_LAYOUT.bytes_per_token)
    return original()


def attend(original: Callable, **kwargs):
    # The last dimension tells a cache's format, here as in the kernels.
    if kwargs["k_cache"].shape[-1] == NVFP4_KV_LAYOUT.bytes_per_token:
        from sglang_dsv4_nvfp4.attention.dispatch import flash_mla_with_nvfp4_kvcache

        return flash_mla_with_nvfp4_kvcache(**kwargs)
    return original()


def store_compressed(
    original: Callable,
    kv,
    plan,
    *,
    norm_weight,
    norm_eps,
    freq_cis,
    out_loc,
    kvcache,
    page_size,
    layout=None,
    **others,
):
    # The latents' pool names the layout; the indexer's keys keep their own.
    if layout is NVFP4_KV_LAYOUT:
        from sglang_dsv4_nvfp4.store.dispatch import store_compressed_rows

        store_compressed_rows(
            kv,
            plan,
            norm_weight=norm_weight,
            norm_eps=norm_eps,
            freq_cis=freq_cis,
            out_loc=out_loc,
            cache=kernel_view(kvcache, page_size),
        )
        return
    return original()


def attach_storage(original: Callable, self, storage_backend: str, *args, **kwargs):
    # NVFP4 pools only: pages that FP8 stored must not be read as theirs.
    tag_storage_keys(self.mem_pool_device, self.storage_host_pool, storage_backend)
    return original()


def check_server_args(result: None, server_args, model_arch: str) -> None:
    if is_nvfp4_kv_cache():
        from sglang_dsv4_nvfp4.unsupported import check_nvfp4_server_args

        check_nvfp4_server_args(server_args)
