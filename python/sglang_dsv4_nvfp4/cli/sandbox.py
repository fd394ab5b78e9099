"""SGLang in this process without a model: its pools and kernels under NVFP4.

Where no SM120 is present, SGLang is told that one is (``override_platform`` is its
own test seam), and the PyTorch backend reads the pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sglang_dsv4_nvfp4.config import (
    FLASHMLA_BACKEND_ENV,
    KV_CACHE_FORMAT_ENV,
    Kernel,
    KVCacheFormat,
)
from sglang_dsv4_nvfp4.intree import aliases


@contextmanager
def kv_cache_format_scope(kv_format: KVCacheFormat) -> Iterator[None]:
    """Ask for a format in this process, as the user's environment would."""
    with environment_scope(KV_CACHE_FORMAT_ENV, kv_format.value):
        yield


@contextmanager
def environment_scope(variable: str, value: str) -> Iterator[None]:
    """Set one environment variable, and leave it afterwards as it was."""
    previous = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[variable]
        else:
            os.environ[variable] = previous


@contextmanager
def hooked_sglang(**server_args) -> Iterator[str]:
    """SGLang with this feature, as a plugin if it has not got it in its tree, and
    published server args; yields the device.

    Call it before anything imports SGLang's kernels: Triton decides at import time
    whether it interprets. The hooks stay for the life of the process.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    is_sm120 = device == "cuda" and torch.cuda.get_device_capability()[0] == 12
    if not is_sm120:
        os.environ.setdefault(FLASHMLA_BACKEND_ENV, Kernel.TORCH.value)

    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.runtime_context import get_context, override_platform

    from sglang_dsv4_nvfp4 import plugin, seams

    with ExitStack() as stack:
        stack.enter_context(kv_cache_format_scope(KVCacheFormat.NVFP4))
        if not is_sm120:
            stack.enter_context(override_platform(is_sm120=True, is_sm90=False))
        if aliases.tree() is None:
            if not seams.is_registered():
                # Off SM120 FlashInfer's kernels are never called, so it need not fit.
                (plugin if is_sm120 else seams).register()
                HookRegistry.apply_hooks()
            seams.require_installed()
        override = get_context().override_server_args(device=device, **server_args)
        override.install()
        stack.callback(override.restore)
        yield device


def require_cuda(command: str) -> None:
    """
    Raises:
        ValueError: naming the command, where there is no CUDA device for it.
    """
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"{command} needs a CUDA device, and there is none here")
