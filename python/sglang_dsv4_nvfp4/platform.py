"""Where NVFP4 pages can be served: the device gate and the FlashInfer contract.

In-tree: ``is_nvfp4_kv_cache`` joins ``sglang/srt/layers/attention/dsv4/``, beside
``unified_kv_gate.py``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_dsv4_nvfp4 import __version__, signatures
from sglang_dsv4_nvfp4.config import (
    KV_CACHE_FORMAT_ENV,
    KVCacheFormat,
    checks_indices,
    kernel,
    kv_cache_format,
    scale_rule,
    store_mode,
)

if TYPE_CHECKING:
    import torch

_MLA = "flashinfer.mla"
_CAKE = f"{_MLA}.cake_sparse_mla_sm120_dsv4_nvfp4"
_NVFP4_MLA = "flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4"
_NVFP4_POLICY = "flashinfer.mla._sparse_mla_sm120._dsv4_nvfp4_policy"

_CAKE_TENSORS = (
    "q, kv_cache, indices, output, out_lse, sm_scale, *, topk_length=, attn_sink=, "
    "extra_kv_cache=, extra_indices=, extra_topk_length="
)
_CAKE_SHAPE = "*, num_tokens, num_heads, topk, extra_topk="

# Every FlashInfer function that this package calls, as flashinfer_python 0.7.2
# has it. The planner and the allocation-free op are private there, so a new
# FlashInfer may move them: better a line at startup than a failed request.
FLASHINFER_ENTRY_POINTS: dict[str, str] = {
    f"{_MLA}.nvfp4_quantize_append_sparse_mla_cache": (
        "(latent_kv, slot_mapping, cache)"
    ),
    f"{_NVFP4_MLA}._sparse_mla_nvfp4_sm120_paged_attention": (
        "(q, kv_cache, indices, output, out_lse, sm_scale, *, topk_length=, "
        "attn_sink=, extra_kv_cache=, extra_indices=, extra_topk_length=, mid_out=, "
        "mid_lse=, use_prefill, chunks_per_block_override=, lse_scale=)"
    ),
    f"{_NVFP4_POLICY}.plan_nvfp4_sparse_mla_sm120": (
        "(num_tokens, num_heads, topk, primary_page_size, device, *, extra_topk=, "
        "extra_page_size=, has_topk_length=, has_extra_topk_length=, has_attn_sink=, "
        "page_stride_bytes=, extra_page_stride_bytes=)"
    ),
    f"{_CAKE}_decode": (
        f"({_CAKE_TENSORS}, mid_out=, mid_lse=, lse_scale=, num_splits=, max_splits=, "
        "head_tiles=)"
    ),
    f"{_CAKE}_prefill": f"({_CAKE_TENSORS}, lse_scale=, head_tiles=)",
    f"{_CAKE}_select_kernel": f"({_CAKE_SHAPE}, num_sms)",
    f"{_CAKE}_plan_prefill": f"({_CAKE_SHAPE}, num_sms)",
    f"{_CAKE}_plan_head_tiles": f"({_CAKE_SHAPE}, num_sms)",
    f"{_CAKE}_plan_splits": f"({_CAKE_SHAPE}, num_sms, max_splits=, head_tiles=)",
    f"{_CAKE}_prefill_head_tiles": "(num_heads)",
    f"{_CAKE}_supported_heads": "()",
    f"{_CAKE}_format_info": "()",
}

_DISTRIBUTIONS = (
    "sglang",
    "flashinfer-python",
    "flashinfer-jit-cache",
    "torch",
    "triton",
)


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


def describe_device() -> str:
    """The CUDA device of this process in words, e.g. ``NVIDIA H200 (SM90)``."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return f"{name} (SM{major}{minor}, CUDA {torch.version.cuda})"


def require_cuda(command: str) -> None:
    """
    Raises:
        ValueError: naming the command, where there is no CUDA device for it.
    """
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"{command} needs a CUDA device, and there is none here")


def device_name() -> str:
    """The CUDA device of this process by name, or ``cpu``."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def device_slug() -> str:
    """:func:`device_name` as a file's name."""
    return re.sub(r"[^a-z0-9]+", "_", device_name().lower())


def cache_root() -> Path:
    """Where this package keeps what it can make anew; the folder may not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sglang-dsv4-nvfp4"


@functools.cache
def sm_count(device: torch.device) -> int | None:
    """Multiprocessors of a CUDA device; None where there is none."""
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count


def require_nvfp4_support() -> None:
    """Refuse a process that asks for NVFP4 and cannot serve it.

    Raises:
        ValueError: the device is not served, or a variable asks for what is not there.
        RuntimeError: the installed FlashInfer does not fit.
    """
    is_nvfp4_kv_cache()
    kernel()
    checks_indices()
    store_mode()
    scale_rule()
    problems = flashinfer_problems()
    if problems:
        raise RuntimeError("; ".join(problems))


def flashinfer_problems() -> list[str]:
    """What keeps the installed FlashInfer from serving NVFP4, each with its remedy."""
    version = distribution_version("flashinfer-python")
    if version is None:
        return ["FlashInfer is not installed: pip install flashinfer-python"]
    problems = [
        f"FlashInfer {version} does not fit: {problem}; install the one that SGLang "
        f"pins: pip install flashinfer-python=={sglang_flashinfer_pin() or '0.7.2'}"
        for target, expected in FLASHINFER_ENTRY_POINTS.items()
        if (problem := signatures.mismatch(target, expected))
    ]
    return problems + _stale_prebuilt_modules(version)


def versions() -> dict[str, str | None]:
    """What decides the behaviour of this package, by distribution name."""
    installed = {name: distribution_version(name) for name in _DISTRIBUTIONS}
    return {"sglang-dsv4-nvfp4": __version__, **installed}


def versions_text(found: Mapping[str, str | None]) -> str:
    """What :func:`versions` gave, in words; what is not installed is left out."""
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def distribution_version(name: str) -> str | None:
    """The installed version of a distribution, None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def sglang_flashinfer_pin() -> str | None:
    """The flashinfer-python version that the installed SGLang requires."""
    requirements = importlib.metadata.requires("sglang") or []
    for requirement in requirements:
        pinned = re.match(r"flashinfer[-_]python(?:\[[^]]*\])?==([^\s;]+)", requirement)
        if pinned:
            return pinned[1]
    return None


def _stale_prebuilt_modules(version: str) -> list[str]:
    """Prebuilt FlashInfer modules of another version.

    A module built before the NVFP4 kernels existed takes other arguments, for FP8
    too, and FlashInfer prefers a prebuilt one to compiling.
    """
    stale = []
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if not name.startswith("flashinfer-jit-cache"):
            continue
        # A local part names the CUDA version, not another FlashInfer.
        prebuilt = distribution.version.split("+")[0]
        if prebuilt != version.split("+")[0]:
            stale.append(
                f"{name} {distribution.version} was built for another FlashInfer than "
                f"{version}: pip uninstall {name}, or install its {version}"
            )
    return stale
