"""Where NVFP4 pages can be served: the one question that every branch asks.

In-tree: ``sglang/srt/layers/attention/dsv4/nvfp4_kv_gate.py``.
"""

from __future__ import annotations

from sglang_dsv4_nvfp4.config import (
    KV_CACHE_FORMAT_ENV,
    KVCacheFormat,
    kv_cache_format,
)
from sglang_dsv4_nvfp4.machine import describe_device


def is_nvfp4_kv_cache() -> bool:
    """Whether DeepSeek-V4's KV cache is NVFP4 in this process.

    Raises:
        ValueError: NVFP4 is asked for on a device that is neither SM120 nor SM121,
            or the requested format is unknown.
    """
    if kv_cache_format() is not KVCacheFormat.NVFP4:
        return False
    from sglang.srt.runtime_context import get_platform

    # SGLang's fact covers compute capability 12.x with CUDA 12.8 or newer.
    if not get_platform().is_sm120:
        raise ValueError(
            f"{KV_CACHE_FORMAT_ENV}={KVCacheFormat.NVFP4.value} needs an SM120 or "
            f"SM121 GPU with CUDA 12.8 or newer; found {describe_device()}. "
            f"Unset {KV_CACHE_FORMAT_ENV} to serve in FP8"
        )
    return True
