"""What this package needs of the installed FlashInfer, checked at startup.

Not in-tree: there the pin of FlashInfer moves together with what calls it.
"""

from __future__ import annotations

import importlib.metadata
import re

from sglang_dsv4_nvfp4 import signatures
from sglang_dsv4_nvfp4.machine import distribution_version

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
