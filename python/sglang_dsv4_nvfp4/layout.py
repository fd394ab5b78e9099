"""The NVFP4 page format of DeepSeek-V4's latents: 384 bytes a token.

A page of P tokens is P data rows, then P scale rows, and nothing pads it::

    | data 0 | data 1 | ... | data P-1 | scales 0 | scales 1 | ... | scales P-1 |
      352 B                              32 B

    data row:  448 NoPE values as E2M1, two a byte, even index in the low nibble
               (224 B), then 64 RoPE values as BF16 bits (128 B)
    scale row: 28 E4M3 scales, one per 16 NoPE values, then 4 zero bytes

No other module writes these numbers. The format is FlashInfer's
(``flashinfer/attention/sparse_mla_sm120/model/dsv4_nvfp4_layout.cuh``, 0.7.2).

In-tree: ``sglang/kernels/ops/attention/dsv4_nvfp4/layout.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NOPE_DIM = 448
ROPE_DIM = 64
LATENT_DIM = NOPE_DIM + ROPE_DIM

# NoPE values that share one E4M3 scale.
GROUP_SIZE = 16
NUM_GROUPS = NOPE_DIM // GROUP_SIZE

NOPE_BYTES = NOPE_DIM // 2
ROPE_BYTES = ROPE_DIM * torch.bfloat16.itemsize
DATA_BYTES = NOPE_BYTES + ROPE_BYTES
# 28 scales padded to a 16-byte multiple; FlashInfer keeps scratch in the padding
# while it settles equal slots, and leaves it zero.
SCALE_BYTES = 32
BYTES_PER_TOKEN = DATA_BYTES + SCALE_BYTES

# Bytes that the widest loads and stores of the kernels move at a time.
PAGE_ALIGNMENT = 16

# The attention kernels read primary pages of 64 tokens, and extra pages of 64, 32
# or 2. SGLang's logical pages are multiples of these or equal to them.
MAX_KERNEL_PAGE_SIZE = 64


@dataclass(frozen=True)
class NVFP4KVLayout:
    """What SGLang asks a pool's ``kv_layout``, answered for this format.

    It is deliberately no ``KVLayout``: a SGLang kernel that is handed one fails on
    ``KVLayout.parse``, instead of reading these pages as FP8. HiCache sees a
    ``value`` other than ``v4`` and moves whole pages only.
    """

    value: str = "nvfp4"
    data_bytes: int = DATA_BYTES
    scale_bytes: int = SCALE_BYTES
    bytes_per_token: int = BYTES_PER_TOKEN
    tile_size: int = GROUP_SIZE
    is_interleaved: bool = False
    # SGLang's `is_fp4` means V41_FP4, whose RoPE values are quantized too.
    is_fp4: bool = False

    def page_bytes(self, page_size: int) -> int:
        return page_size * self.bytes_per_token


NVFP4_KV_LAYOUT = NVFP4KVLayout()


def kernel_page_size(page_size: int) -> int:
    """Tokens in the pages that kernels read, for a pool of ``page_size`` pages.

    Pages have no padding, so a 256-token buffer row is also four 64-token pages,
    byte for byte, and slot ids mean the same in both.

    Raises:
        ValueError: pages of this size cannot be regrouped.
    """
    if page_size <= 0:
        raise ValueError(f"page size must be positive, got {page_size}")
    if page_size <= MAX_KERNEL_PAGE_SIZE:
        return page_size
    if page_size % MAX_KERNEL_PAGE_SIZE:
        raise ValueError(
            f"a page of {page_size} tokens is no multiple of the kernels' "
            f"{MAX_KERNEL_PAGE_SIZE}"
        )
    return MAX_KERNEL_PAGE_SIZE


def kernel_view(buffer: torch.Tensor, page_size: int) -> torch.Tensor:
    """View a pool's buffer as the pages that kernels read and write.

    Args:
        buffer: ``[rows, page_size * 384]`` or ``[rows, page_size, 1, 384]``,
            contiguous, of any one-byte dtype (SGLang hands out FP8 views).
        page_size: tokens in one buffer row.

    Returns:
        ``[pages, kernel_page_size(page_size), 384]`` uint8, sharing the memory.

    Raises:
        ValueError: the buffer is not packed NVFP4 pages of that size.
    """
    row_bytes = page_size * BYTES_PER_TOKEN
    if buffer.element_size() != 1 or not buffer.is_contiguous():
        raise ValueError(
            "an NVFP4 cache must be contiguous one-byte elements, got "
            f"dtype={buffer.dtype}, strides={tuple(buffer.stride())}"
        )
    if buffer.ndim < 2 or buffer[0:1].numel() != row_bytes:
        raise ValueError(
            f"an NVFP4 cache of {page_size}-token pages has rows of {row_bytes} "
            f"bytes, got shape={tuple(buffer.shape)}"
        )
    return buffer.view(torch.uint8).view(
        -1, kernel_page_size(page_size), BYTES_PER_TOKEN
    )


def check_pages(cache: torch.Tensor) -> None:
    """Refuse a tensor that is not ``[pages, page_size, 384]`` uint8 pages.

    Pages may be apart (any ``stride(0)``); inside a page the bytes are dense.

    Raises:
        ValueError: naming what differs.
    """
    if (
        cache.dtype != torch.uint8
        or cache.ndim != 3
        or cache.shape[2] != BYTES_PER_TOKEN
        or cache.stride()[1:] != (BYTES_PER_TOKEN, 1)
    ):
        raise ValueError(
            f"cache must be uint8 [pages, page_size, {BYTES_PER_TOKEN}] with dense "
            f"pages, got {cache.dtype} {tuple(cache.shape)} with strides "
            f"{tuple(cache.stride())}"
        )


def pages_are_aligned(cache: torch.Tensor) -> bool:
    """Whether each of ``[pages, ...]`` bytes starts where the widest access may."""
    return not (cache.data_ptr() % PAGE_ALIGNMENT or cache.stride(0) % PAGE_ALIGNMENT)


def page_bytes_view(cache: torch.Tensor) -> torch.Tensor:
    """``[pages, page_size * 384]`` view of ``[pages, page_size, 384]`` pages."""
    pages, page_size, _ = cache.shape
    return cache.as_strided((pages, page_size * BYTES_PER_TOKEN), (cache.stride(0), 1))


def slot_offsets(
    slots: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the tokens of non-negative ``slots`` lie: page, and bytes inside it.

    Returns:
        int64 tensors of the shape of ``slots``: the page, the data row's first
        byte in the page, and the scale row's first byte in the page.
    """
    slots = slots.long()
    page = slots // page_size
    entry = slots % page_size
    return page, entry * DATA_BYTES, page_size * DATA_BYTES + entry * SCALE_BYTES
