"""One cache's pages for some layers: the sliding window, c4 or c128.

In-tree: ``sglang/srt/mem_cache/dsv4_nvfp4/single_kv_pool.py``.
"""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
    DeepSeekV4SingleKVPool,
    NopeFp8RopeBf16Pack,
)

from sglang_dsv4_nvfp4.layout import BYTES_PER_TOKEN, NVFP4_KV_LAYOUT, kernel_view
from sglang_dsv4_nvfp4.store.dispatch import append

PACKED_FP8_REFUSAL = (
    "an NVFP4 cache takes BF16 latents; the packed FP8 (nope, rope, scales) write "
    "path must not reach it"
)


class DeepSeekV4NVFP4SingleKVPool(DeepSeekV4SingleKVPool):
    """NVFP4 pages of one cache, ``[rows, page_size * 384]`` uint8 a layer.

    A buffer row is one of SGLang's logical pages, which is what the allocators,
    HiCache and PD transfer count in. Kernels get :meth:`kernel_view`.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kv_layout = NVFP4_KV_LAYOUT
        self.quantize_block_size = NVFP4_KV_LAYOUT.tile_size

    def get_bytes_per_token(self) -> int:
        return BYTES_PER_TOKEN

    def create_buffer(self, *, num_pages: int) -> torch.Tensor:
        """``[num_pages, page_size * 384]`` zeros: no padding between pages."""
        if self.store_dtype != torch.uint8:
            raise ValueError(
                f"kv_cache_dtype={self.dtype} is not served in NVFP4: SGLang must "
                "keep raw bytes, so use --kv-cache-dtype fp8_e4m3 or auto"
            )
        self.kv_cache_total_dim = BYTES_PER_TOKEN
        self.bytes_per_page_padded = NVFP4_KV_LAYOUT.page_bytes(self.page_size)
        return torch.zeros(
            num_pages,
            self.bytes_per_page_padded,
            dtype=self.store_dtype,
            device=self.device,
        )

    def kernel_view(self, layer_id: int) -> torch.Tensor:
        """``[pages, kernel page size, 384]`` uint8 view of a layer; slot ids hold."""
        return kernel_view(self.kv_buffer[layer_id - self.start_layer], self.page_size)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """``[rows, page_size * 384]`` uint8: bytes, whatever dtype SGLang names."""
        return self.kv_buffer[layer_id - self.start_layer]

    def set_key_buffer(
        self,
        layer_id: int,
        loc: torch.Tensor,
        cache_nope_fp8_rope_bf16_pack: NopeFp8RopeBf16Pack,
    ) -> None:
        raise AssertionError(PACKED_FP8_REFUSAL)

    def set_key_buffer_fused(
        self,
        layer_id: int,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        freqs_cis: torch.Tensor | None = None,
    ) -> None:
        """Quantize finished BF16 rows ``[n, 512]`` to the slots ``loc`` ``[n]``.

        SGLang's slots are unique, save for padding rows at the dummy page.
        """
        assert freqs_cis is None, "an NVFP4 cache takes rows that are rotated already"
        append(cache_k, loc, self.kernel_view(layer_id), unique_slots=True)
