"""All layers of a DeepSeek-V4 model (or of its draft) in NVFP4 pages.

In-tree: ``sglang/srt/mem_cache/dsv4_nvfp4/token_to_kv_pool.py``.
"""

from __future__ import annotations

import inspect
import logging

import torch
from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout
from sglang.srt.environ import envs
from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
    DeepSeekV4SingleKVPool,
    DeepSeekV4TokenToKVPool,
    NopeFp8RopeBf16Pack,
)
from sglang.srt.runtime_context import get_exec, get_memory, get_spec

from sglang_dsv4_nvfp4 import seams
from sglang_dsv4_nvfp4.config import kernel, scale_rule, store_mode
from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, NVFP4_KV_LAYOUT, NVFP4KVLayout
from sglang_dsv4_nvfp4.machine import versions, versions_text
from sglang_dsv4_nvfp4.mem_cache.single_kv_pool import (
    PACKED_FP8_REFUSAL,
    DeepSeekV4NVFP4SingleKVPool,
)
from sglang_dsv4_nvfp4.store.dispatch import prepare, store_window_rows
from sglang_dsv4_nvfp4.unsupported import refuse, refuse_features

logger = logging.getLogger(__name__)


class DeepSeekV4NVFP4TokenToKVPool(DeepSeekV4TokenToKVPool):
    """The pool that SGLang builds for target and draft workers alike.

    Only what touches the latents' bytes differs from the base: the indexer's keys
    and the compressors' state stay as they are.
    """

    def __init__(self, *args, **kwargs) -> None:
        seams.require_installed()
        arguments = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        kv_layout = KVLayout.parse(arguments.get("kv_layout", KVLayout.V4))
        refuse(
            (
                f"the {kv_layout.value} KV layout (SGLANG_DSV4_KV_LAYOUT)",
                kv_layout is not KVLayout.V4,
            )
        )
        # The server's options were checked too, but not on every way to start one.
        refuse_features(
            hisparse=arguments.get("enable_hisparse", False),
            attention_kernels=get_exec().kernel.dsv4_attn_backend,
            encoder_replay=get_exec().features.enable_encoder_swa_bounded_replay,
            compress_ratios=arguments["compression_ratios"],
            hicache_storage=get_memory().hicache_storage_backend,
            speculative_algorithm=get_spec().speculative_algorithm,
        )
        prepare(torch.device(arguments["device"]))
        # The direct layout stores 64-token rows so that FP8 pages need no copy.
        # NVFP4 pages regroup without one, and HiCache needs the logical rows.
        with envs.SGLANG_OPT_SM120_DIRECT_SWA_KV.override(False):
            super().__init__(*args, **kwargs)
        self.kv_layout = NVFP4_KV_LAYOUT
        logger.info(
            "DeepSeek-V4 KV cache in NVFP4: %d bytes a token, %d tokens, %d in the window "
            "pool, worker=%s, kernel=%s, store=%s, scale_rule=%s, %s",
            BYTES_PER_TOKEN,
            arguments.get("full_size") or 0,
            arguments["swa_size"],
            "draft" if arguments.get("is_draft_worker", False) else "target",
            kernel(),
            store_mode(),
            scale_rule(),
            versions_text(versions()),
        )

    def _make_kv_pool(
        self,
        *,
        cls: type = DeepSeekV4SingleKVPool,
        kv_layout: KVLayout = KVLayout.V4,
        **kwargs,
    ) -> DeepSeekV4SingleKVPool:
        assert cls is DeepSeekV4SingleKVPool, f"{cls.__name__} has no NVFP4 form"
        return super()._make_kv_pool(cls=DeepSeekV4NVFP4SingleKVPool, **kwargs)

    def compressed_kv_layout(self, compress_ratio: int) -> NVFP4KVLayout:
        return NVFP4_KV_LAYOUT

    def pd_kv_layout(self) -> str:
        """The format that PD peers must share: ``nvfp4,c4:nvfp4,c128:nvfp4``."""
        ratios = sorted(set(self.compression_ratios) - {0})
        compressed = [f"c{ratio}:{NVFP4_KV_LAYOUT.value}" for ratio in ratios]
        return ",".join([NVFP4_KV_LAYOUT.value, *compressed])

    def get_swa_key_layout(self) -> NVFP4KVLayout:
        return NVFP4_KV_LAYOUT

    def get_swa_key_bytes_per_token(self) -> int:
        return BYTES_PER_TOKEN

    def set_swa_key_buffer(
        self,
        layer_id: int,
        loc: torch.Tensor,
        cache_nope_fp8_rope_bf16_pack: NopeFp8RopeBf16Pack,
    ) -> None:
        raise AssertionError(PACKED_FP8_REFUSAL)

    def set_swa_key_buffer_radix_fused(
        self, layer_id: int, swa_loc: torch.Tensor, cache_k: torch.Tensor
    ) -> None:
        """Quantize finished BF16 rows ``[n, 512]`` to the window slots ``[n]``."""
        self.swa_kv_pool.set_key_buffer_fused(
            self._swa_local_layer_id(layer_id), swa_loc, cache_k
        )

    def set_swa_key_buffer_radix_fused_norm_rope(
        self,
        layer_id: int,
        swa_loc: torch.Tensor,
        kv: torch.Tensor,
        kv_weight: torch.Tensor,
        eps: float,
        freqs_cis: torch.Tensor,
        positions: torch.Tensor,
        q: torch.Tensor | None = None,
    ) -> None:
        """RMS norm, RoPE and quantize rows ``[n, 512]`` to the window slots ``[n]``.

        Args:
            kv: BF16, read only; its rows may be a slice of a wider projection.
            kv_weight: ``[512]``.
            freqs_cis: ``[max_position, 32]`` complex64.
            positions: ``[n]`` int32 or int64.
        """
        assert q is None, "RoPE of queries in the store is ROCm only"
        store_window_rows(
            kv=kv,
            kv_weight=kv_weight,
            eps=eps,
            freqs_cis=freqs_cis,
            positions=positions,
            slots=swa_loc,
            cache=self.swa_kv_pool.kernel_view(self._swa_local_layer_id(layer_id)),
        )

    def set_unified_key_buffer_radix_fused_norm_rope(self, *args, **kwargs) -> None:
        raise AssertionError("the unified KV layout is not served in NVFP4")
