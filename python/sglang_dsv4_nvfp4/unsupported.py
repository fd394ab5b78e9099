"""What is refused together with NVFP4, by name and before memory is allocated.

In-tree: ``sglang/srt/arg_groups/deepseek_v4_nvfp4.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from sglang_dsv4_nvfp4.config import (
    FULL_HEADS,
    KERNEL_ENV,
    KV_CACHE_FORMAT_ENV,
    Kernel,
    KVCacheFormat,
    check_variables,
    kernel,
)
from sglang_dsv4_nvfp4.mem_cache.storage import STORAGE_BACKENDS

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

_REQUEST = f"{KV_CACHE_FORMAT_ENV}={KVCacheFormat.NVFP4.value}"


def refuse(*options: tuple[str, bool]) -> None:
    """Raise for the first ``(option, present)`` that is present.

    Raises:
        ValueError: naming the option.
    """
    for option, present in options:
        if present:
            raise ValueError(
                f"{_REQUEST} does not support {option}. Drop the option, or unset "
                f"{KV_CACHE_FORMAT_ENV} to serve in FP8"
            )


def refuse_features(
    *,
    hisparse: bool,
    attention_kernels: str,
    encoder_replay: bool,
    compress_ratios: Collection[int],
    hicache_storage: str | None,
    speculative_algorithm: str | None,
) -> None:
    """Refuse what both the server's options and a pool's surroundings can show.

    Raises:
        ValueError: naming the option.
    """
    from sglang.srt.layers.attention.dsv4.unified_kv_gate import is_unified_kv_triton

    refuse(
        ("HiSparse (--enable-hisparse)", hisparse),
        (
            f"--dsv4-attn-backend {attention_kernels}",
            attention_kernels in ("trtllm", "flashmla_mega"),
        ),
        ("the unified KV layout", is_unified_kv_triton()),
        ("layers of compress ratio 1 or 2", bool({1, 2} & set(compress_ratios))),
        ("--enable-encoder-swa-bounded-replay", encoder_replay),
        (
            f"--hicache-storage-backend {hicache_storage} (only "
            f"{', '.join(STORAGE_BACKENDS)} are known to keep formats apart)",
            hicache_storage is not None and hicache_storage not in STORAGE_BACKENDS,
        ),
        (
            "--speculative-algorithm DSPARK with the sparse kernel (its draft attends to "
            "windows that only the other kernels serve)",
            (speculative_algorithm or "").upper() == "DSPARK"
            and kernel() is Kernel.SPARSE,
        ),
    )


def check_nvfp4_server_args(server_args: ServerArgs) -> None:
    """Refuse the server options that NVFP4 cannot serve; warn of the slow one.

    Raises:
        ValueError: naming the option, or an environment variable whose value is unknown.
    """
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    check_variables()
    cfg = resolving_view(server_args)
    hf_config = model_config_of(server_args).hf_config
    _refuse_formats(cfg, hf_config)
    refuse(
        # Ray's actors do not get this process's environment: they would serve in FP8.
        ("--use-ray", cfg.use_ray),
        # Pages striped over ranks: no NVFP4 kernel reads a stripe.
        (f"--dcp-size {cfg.dcp_size}", cfg.dcp_size > 1),
        ("--enable-kv-cache-sharding", cfg.enable_kv_cache_sharding),
        # What these find stored pages by does not name the pages' format.
        ("--enable-lmcache", cfg.enable_lmcache),
        ("--enable-flexkv", cfg.enable_flexkv),
        # Nor is it known of a radix cache of another kind.
        (
            f"--radix-cache-backend {cfg.radix_cache_backend}",
            cfg.radix_cache_backend is not None,
        ),
        (
            "--enable-unified-cache-external-linker",
            cfg.enable_unified_cache_external_linker,
        ),
        # SGLang gives its checksum no window pages of a DeepSeek-V4 pool, in any
        # format, and so fails at the first request.
        (
            "--disaggregation-enable-kv-checksum",
            cfg.disaggregation_enable_kv_checksum and cfg.disaggregation_mode != "null",
        ),
        # SGLang has no host pool for it of a DeepSeek-V4 pool, in any format.
        (
            "--disaggregation-decode-enable-offload-kvcache",
            cfg.disaggregation_decode_enable_offload_kvcache,
        ),
    )
    refuse_features(
        hisparse=cfg.enable_hisparse,
        attention_kernels=cfg.dsv4_attn_backend,
        encoder_replay=cfg.enable_encoder_swa_bounded_replay,
        compress_ratios=getattr(hf_config, "compress_ratios", None) or (),
        hicache_storage=cfg.hicache_storage_backend,
        speculative_algorithm=cfg.speculative_algorithm,
    )
    _warn_of_attention_tp(cfg, hf_config)


def _refuse_formats(cfg, hf_config) -> None:
    """Refuse other latents, and other formats of these."""
    from sglang.srt.environ import envs

    kv_layout = envs.SGLANG_DSV4_KV_LAYOUT.get().lower()
    compressed_layout = envs.SGLANG_DSV4_COMPRESSED_KV_LAYOUT.get().lower()
    refuse(
        ("DeepSeek-V4.1 models", hf_config.model_type == "deepseek_v41"),
        (f"SGLANG_DSV4_KV_LAYOUT={kv_layout}", kv_layout not in ("auto", "v4")),
        (
            f"SGLANG_DSV4_COMPRESSED_KV_LAYOUT={compressed_layout}",
            compressed_layout not in ("auto", "fp8"),
        ),
        (
            f"--kv-cache-dtype {cfg.kv_cache_dtype}",
            cfg.kv_cache_dtype not in ("auto", "fp8_e4m3"),
        ),
        (
            f"--speculative-draft-kv-cache-dtype {cfg.speculative_draft_kv_cache_dtype}",
            cfg.speculative_draft_kv_cache_dtype not in (None, "fp8_e4m3"),
        ),
    )


def _warn_of_attention_tp(cfg, hf_config) -> None:
    from sglang.srt.runtime_context import derive_attn_tp_size

    # With prefill CP the CP group is the TP group, whatever the sizes say by now.
    if cfg.enable_prefill_cp:
        return
    attn_tp_size = derive_attn_tp_size(
        tp_size=cfg.tp_size,
        attn_cp_size=cfg.attn_cp_size,
        attn_dp_size=cfg.attn_dp_size,
    )
    if attn_tp_size > 1:
        num_heads = hf_config.num_attention_heads // attn_tp_size
        logger.warning(
            "NVFP4 KV cache with attention TP %d: %d heads a rank, %s. NVFP4 gains most "
            "at attention TP 1 (--enable-dp-attention or prefill CP)",
            attn_tp_size,
            num_heads,
            _reading_kernels(num_heads, kernel()),
        )


def _reading_kernels(num_heads: int, chosen: Kernel) -> str:
    """What will read the pages, and what is known of it."""
    if num_heads >= FULL_HEADS or chosen in (Kernel.CAKE, Kernel.TRITON, Kernel.TORCH):
        return f"read by kernel {chosen}"
    slow = "slower in prefill than FP8 where it was measured"
    measure = "`sglang-dsv4-nvfp4 tune` measures what is fastest here"
    if chosen is Kernel.SPARSE:
        return f"read by kernel sparse, {slow}; {measure}, with {KERNEL_ENV}=auto"
    return (
        "prefill by kernel cake unless it was measured otherwise; past 1024 candidates a "
        f"query by kernel sparse, {slow}; {measure}"
    )
