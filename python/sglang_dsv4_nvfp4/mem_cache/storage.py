"""HiCache's third tier: pages of one format must not be read back as another.

A storage backend finds a page by the model's name and the tokens before it. SGLang
appends a host pool's ``storage_format_tag`` to the name, where there is one.

In-tree: ``sglang/srt/mem_cache/dsv4_nvfp4/storage.py``.
"""

from __future__ import annotations

from typing import Any

from sglang_dsv4_nvfp4.layout import NVFP4_KV_LAYOUT

# Those whose keys were found to hold the model's name: the file store by running it, the
# other two by reading them.
STORAGE_BACKENDS = ("file", "mooncake", "nixl")


def tag_storage_keys(device_pool: Any, host_pool: Any, storage_backend: str) -> None:
    """Name the format in what ``storage_backend`` will find an NVFP4 pool's pages by.

    Args:
        device_pool: SGLang's pool of all layers, of either format.
        host_pool: the anchor of its host pools.

    Raises:
        ValueError: the backend is not known to keep the model's name in its keys, so
            pages that FP8 stored might be taken for NVFP4's.
    """
    if getattr(device_pool, "kv_layout", None) is not NVFP4_KV_LAYOUT:
        return
    if storage_backend not in STORAGE_BACKENDS:
        raise ValueError(
            f"HiCache storage backend {storage_backend} is not known to keep NVFP4 "
            f"pages apart from FP8's; use one of {', '.join(STORAGE_BACKENDS)}"
        )
    host_pool.storage_format_tag = NVFP4_KV_LAYOUT.value
